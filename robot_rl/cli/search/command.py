"""`robot-rl train --multirun search=asha`: trains with sampled options, and stops runs that are bad.

The trials are the runs of a sweep, each a command in its own process (`robot_rl.launchers`). Those that
are stopped finish their step and save, and could be resumed by hand. A record of what has happened
(`trials.jsonl`) lets the same command go on.
"""

import shlex
from collections.abc import Sequence
from contextlib import ExitStack

from robot_rl.cli.command import Command
from robot_rl.cli.multirun import refuse_torchrun, say
from robot_rl.cli.progress import progress
from robot_rl.cli.search.advisor import Advisor, check_libraries
from robot_rl.cli.search.plan import SAMPLES, Plan, check_folder, read_plan, write_plan
from robot_rl.cli.search.record import FILE, Record
from robot_rl.cli.search.space import words
from robot_rl.cli.search.trials import Trials, outcome
from robot_rl.cli.signals import stop_on_signal
from robot_rl.errors import UserError
from robot_rl.launchers import make_launcher
from robot_rl.launchers.launcher import Launcher
from robot_rl.launchers.lock import lock_folder
from robot_rl.runs import write_text

_BEST = "best.txt"


def asks_for_search(arguments: Sequence[str]) -> bool:
    """Whether arguments have an option of searches."""
    keys = [argument.lstrip("-").partition("=")[0] for argument in arguments]
    return any(key == "search" or key.startswith("search.") for key in keys)


def run_search(command: Command, arguments: Sequence[str], plugins: Sequence[str] = ()) -> None:
    """Run a search, or what is left of it.

    Raises:
        UserError: if it cannot start; nothing has run then.
        KeyboardInterrupt: if the user stopped; the running trials have saved.
        SystemExit: with code 1, if trials have failed.
    """
    refuse_torchrun()
    plan = read_plan(command, arguments, plugins)
    check_libraries()
    check_folder(plan)
    with ExitStack() as closing:
        launcher = _launcher(plan, closing)
        write_plan(plan, arguments)
        record = Record(plan.folder / FILE)
        if len(record.trials) > plan.samples:
            raise UserError(f"{SAMPLES}={plan.samples}: the search has {len(record.trials)} trials already")
        trials = Trials(plan, record, Advisor(plan.space, plan.rungs, plan.seed, record), launcher)
        with stop_on_signal() as stop, progress(plan.samples, "search", "trials") as bar:
            trials.run(stop, bar)
            stopped = stop()
    if stopped:
        ended = sum(trial.end is not None for trial in record.trials.values())
        say(f"stopped after {ended} of {plan.samples} trials; the same command goes on from here")
        raise KeyboardInterrupt
    _report(plan, record)


def _launcher(plan: Plan, closing: ExitStack) -> Launcher:
    """The launcher of the trials, and a lock of their folder, which trials on this machine share."""
    # The cluster first: without one there is to be no folder.
    cluster = closing.enter_context(make_launcher("ray", plan.device)) if plan.launcher == "ray" else None
    held = closing.enter_context(lock_folder(plan.folder, "robot-rl train --multirun", "name"))
    return cluster or closing.enter_context(make_launcher("local", plan.device, [held]))


def _report(plan: Plan, record: Record) -> None:
    """Say how each trial has ended, and which was the best."""
    trials = sorted(record.trials.items())
    for number, trial in trials:
        say(f"{plan.run(number, trial.values)}: {outcome(trial)}")
    finished = [(number, trial) for number, trial in trials if trial.end == "finished"]
    if finished:
        number, best = max(finished, key=lambda one: one[1].last[1])
        say(f"best: {plan.run(number, best.values)}, success {best.last[1]:.2f} on the validation states")
        name = f"{plan.name}_best_s${{seed}}"
        again = plan.line(words({**plan.fixed, **best.values, "name": name}))
        text = f"robot-rl {shlex.join(again)}"
        say(text)
        write_text(plan.folder / _BEST, f"{text}\n")
    failed = sum(bool(trial.failure) for _, trial in trials)
    if failed:
        say(f"{failed} of {len(trials)} trials failed; the same command tries them again")
        raise SystemExit(1)
