"""The trials of a search: starts them, reads their evaluations, and ends those that are bad."""

import shlex
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from pathlib import Path

from robot_rl.cli.compose import checked
from robot_rl.cli.multirun import log_of
from robot_rl.cli.progress import Progress
from robot_rl.cli.search.advisor import Advisor
from robot_rl.cli.search.plan import Plan
from robot_rl.cli.search.record import Began, Ended, Evaluated, Record, Trial
from robot_rl.errors import UserError
from robot_rl.launchers.launcher import Launcher, NodesLost, Stopped, run_parallel
from robot_rl.runs import training_progress, validation_success

_POLL = 0.5
"""s between two looks at whether a trial may begin."""
_ASK_AGAIN = 20.0
"""s after which a trial that was asked to end is asked again."""


class Trials:
    """Runs what is left of a search.

    Args:
        plan: the search.
        record: what has happened in it, to which this adds.
        advisor: knows the same.
        launcher: runs the commands of the trials.
    """

    def __init__(self, plan: Plan, record: Record, advisor: Advisor, launcher: Launcher) -> None:
        self._plan, self._record, self._advisor, self._launcher = plan, record, advisor, launcher
        self._lock = threading.Lock()
        self._waiting: list[int] = []
        """Trials that have not begun in this process, in their order."""
        self._active: set[int] = set()
        self._ask_after: dict[int, float] = {}
        """When a trial is asked again to end, s."""
        self._places = 0

    def run(self, stop: Callable[[], bool], bar: Progress) -> None:
        """Run trials until all have ended, or until they have saved after `stop()`."""
        trials = self._record.trials
        left = [
            number
            for number in range(1, self._plan.samples + 1)
            if number not in trials or trials[number].end is None
        ]
        if not left:
            return
        self._waiting = list(left)

        def execute(number: int) -> int:
            self._begin_when_free(number)
            return self._launcher.run(self._command(number), self._log(number))

        def ended(number: int, future: "Future[int]") -> None:
            with self._lock:
                self._note_end(number, future, bar)

        def show() -> None:
            with self._lock:
                self._watch(bar)

        run_parallel(self._launcher, left, execute, min(self._plan.jobs, len(left)), stop, ended, show)

    def _begin_when_free(self, number: int) -> None:
        """Begin a trial when those before it have begun and there is a core for it.

        So its values follow from what was known then, and are the same in each search.
        """
        while not self._launcher.stopping:
            with self._lock:
                if number == self._waiting[0] and len(self._active) < self._places:
                    self._begin(self._waiting.pop(0))
                    return
            time.sleep(_POLL)
        raise Stopped

    def _begin(self, number: int) -> None:
        if number not in self._record.trials:
            self._record.add(Began(number, self._advisor.suggest(number)))
        trial = self._record.trials[number]
        checked(self._plan.command, self._plan.trial(number, trial.values))
        self._active.add(number)

    def _watch(self, bar: Progress) -> None:
        """Read the evaluations of running trials, ask those to end that are to stop, and show them all."""
        places = self._launcher.places()
        self._places = self._plan.jobs if places is None else max(1, min(self._plan.jobs, places))
        rows = []
        for number in sorted(self._active):
            trial = self._record.trials[number]
            if trial.end is None and self._read(number):
                self._stop(number, bar)
            if trial.end == "stopped" and time.monotonic() > self._ask_after.get(number, 0):
                # Again: another node may have restarted the command.
                self._ask_after[number] = time.monotonic() + _ASK_AGAIN
                self._launcher.end(self._log(number))
            rows.append(self._row(number))
        bar.show_lines(rows)
        trials = self._record.trials.values()
        done = sum(bool(trial.end or trial.failure) for trial in trials)
        best = max((trial.last[1] for trial in trials), default=0.0)
        bar.update(done, now=f"{len(self._active)} running", best_success=best)

    def _read(self, number: int) -> bool:
        """Record new evaluations of a trial, up to one after which it is to stop. Returns whether one is."""
        known = self._record.trials[number].evaluations
        for step, success in validation_success(self._run(number), known):
            self._record.add(Evaluated(number, step, success))
            if self._advisor.stops(number, step, success):
                return True
        return False

    def _stop(self, number: int, bar: Progress) -> None:
        self._record.add(Ended(number, "stopped"))
        trial = self._record.trials[number]
        self._advisor.end(number, trial.last[1])
        bar.note(f"{self._run(number)}: {outcome(trial)}")

    def _note_end(self, number: int, future: "Future[int]", bar: Progress) -> None:
        """Record that a trial has ended by itself, unless all are stopped; then no other takes its place."""
        reason = ""
        try:
            if code := future.result():
                reason = f"exit code {code}"
        except Stopped:
            return
        except (NodesLost, UserError) as error:
            reason = str(error)
        self._active.discard(number)
        trial = self._record.trials[number]
        if trial.end == "stopped":
            return
        while not reason and self._read(number):
            pass  # it has taken all its steps before it could be stopped
        if not reason and not trial.evaluations:
            reason = "it was never evaluated; eval_every=… has to be smaller"
        if reason:
            trial.failure = (
                f"{reason}: robot-rl {shlex.join(self._command(number))} (more in {self._log(number)})"
            )
        else:
            self._record.add(Ended(number, "finished"))
        self._advisor.end(number, None if reason else trial.last[1])
        bar.note(f"{self._run(number)}: {outcome(trial)}")

    def _command(self, number: int) -> list[str]:
        return self._plan.line(self._plan.trial(number, self._record.trials[number].values))

    def _run(self, number: int) -> Path:
        return self._plan.run(number, self._record.trials[number].values)

    def _log(self, number: int) -> Path:
        return log_of(self._run(number))

    def _row(self, number: int) -> str:
        trial = self._record.trials[number]
        step, _ = training_progress(self._run(number))
        success = f", success {trial.last[1]:.2f} on the validation states" if trial.evaluations else ""
        return f"{self._run(number)}: step {step:,}{success}{', stopping' if trial.end else ''}"


def outcome(trial: Trial) -> str:
    """How a trial has ended, for a user."""
    step, success = trial.last
    if trial.failure:
        return f"failed, {trial.failure}"
    if trial.end == "stopped":
        return f"stopped at step {step:,} with success {success:.2f}"
    if trial.end == "finished":
        return f"finished with success {success:.2f} at step {step:,}"
    return "not finished"
