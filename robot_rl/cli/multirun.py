"""`--multirun`: a command runs once for each combination of values.

The syntax is that of Hydra's basic sweeper: `seed=0,1,2 method=expo,ibrl` or `seed=range(0,3)`. Each run is
its own process, started with the command that `run.json` records, so that it can be repeated alone. They
run one after another in this terminal, or `jobs=…` at a time with their output in files.
"""

import itertools
import os
import shlex
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from pathlib import Path

from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override
from hydra.errors import HydraException

from robot_rl.cli.command import Command
from robot_rl.cli.compose import check_options, compose
from robot_rl.cli.overrides import split_arguments
from robot_rl.cli.progress import progress
from robot_rl.cli.signals import stop_on_signal
from robot_rl.errors import INTERRUPTED, UserError
from robot_rl.hardware.child_process import command_line
from robot_rl.launchers import check_launcher, make_launcher
from robot_rl.launchers.launcher import Launcher, NodesLost, Stopped, run_parallel
from robot_rl.runs import training_progress

OWN = ("jobs", "launcher")
"""Keys of the sweep itself."""
_MOST = 1000
"""Most runs at a time: each waits in a thread of this process."""
_POLL = 0.2
"""s between two checks of whether the user asked to stop."""
_PATIENCE = 10.0
"""s for a run to end after a second Ctrl-C, before it is killed."""


def run_all(command: Command, arguments: Sequence[str], plugins: Sequence[str] = ()) -> None:
    """Run a command once for each combination of the values in its arguments.

    A run that fails does not stop those after it.

    Raises:
        UserError: if a run cannot start or two would share a directory; nothing has run then.
        KeyboardInterrupt: if the user stopped; the current runs have saved.
        SystemExit: with code 1, if runs have failed.
    """
    refuse_torchrun()
    pairs = split_arguments(command, arguments)
    at_once, launcher = runs_at_a_time(dict(pairs)), dict(pairs).get("launcher", "local")
    check_launcher(launcher)
    jobs = combinations([pair for pair in pairs if pair[0] not in OWN])
    directories = _check(command, jobs)
    also = [f"plugins=[{','.join(plugins)}]"] if plugins else []
    if launcher != "local" or at_once > 1:
        commands = [[*command.name.split(), *job, *also] for job in jobs]
        with make_launcher(launcher, dict(pairs).get("device", "auto")) as launches:
            _run_parallel(launches, commands, directories, at_once)
        return
    failed: list[str] = []
    with stop_on_signal() as stop:
        for number, job in enumerate(jobs, 1):
            words = [*command.name.split(), *job, *also]
            text = f"robot-rl {shlex.join(words)}"
            say(f"[{number}/{len(jobs)}] {text}")
            code = _run(words, stop)
            if stop() or code == INTERRUPTED:
                say(f"stopped in run {number} of {len(jobs)}; the same command goes on from here")
                raise KeyboardInterrupt
            if code:
                failed.append(f"exit code {code}: {text}")
    _report(len(jobs), failed)


def refuse_torchrun() -> None:
    """Raises UserError if torchrun started this process, and others like it."""
    if (count := int(os.environ.get("WORLD_SIZE", "1"))) > 1:
        raise UserError(
            f"{count} processes were started (WORLD_SIZE), and each would run the whole sweep: leave "
            "--multirun out, and start each run with torchrun"
        )


def _report(runs: int, failed: Sequence[str]) -> None:
    say(f"{runs - len(failed)} of {runs} runs are done" + "; failed:" * bool(failed))
    if failed:
        say("\n".join(f"  {line}" for line in failed))
        raise SystemExit(1)


def runs_at_a_time(given: Mapping[str, str]) -> int:
    """How many runs run at once: `jobs=`, or else one, or on a cluster as many as it has cores for.

    Args:
        given: arguments of the command.

    Raises:
        UserError: if `jobs=` is no such number.
    """
    text = given.get("jobs", "1" if given.get("launcher", "local") == "local" else str(_MOST))
    if not text.isdecimal() or not 1 <= int(text) <= _MOST:
        raise UserError(f"jobs={text}: give the number of runs at a time, 1 to {_MOST}")
    return int(text)


def _run_parallel(
    launcher: Launcher, commands: Sequence[Sequence[str]], directories: Sequence[Path], at_once: int
) -> None:
    """Run commands, so many at a time; the output of each is appended to `<its directory>.log`."""
    logs = [log_of(directory) for directory in directories]
    failed: list[str] = []
    active: set[int] = set()
    done = 0

    def execute(number: int) -> int:
        logs[number].parent.mkdir(parents=True, exist_ok=True)
        active.add(number)
        try:
            return launcher.run(commands[number], logs[number])
        finally:
            active.discard(number)

    with stop_on_signal() as stop, progress(len(commands), "multirun", "runs") as bar:

        def ended(number: int, future: "Future[int]") -> None:
            nonlocal done
            try:
                code = future.result()
                reason = f"exit code {code}" if code else ""
            except Stopped:
                return
            except NodesLost as lost:
                reason = str(lost)
            done += not reason
            if reason:
                failed.append(f"{reason}: robot-rl {shlex.join(commands[number])} (more in {logs[number]})")
            bar.note(f"{directories[number]}: {reason or 'done'}")

        def show() -> None:
            bar.show_lines([_row(directories[number]) for number in sorted(active)])
            bar.update(done + len(failed), now=f"{len(active)} running")

        run_parallel(launcher, range(len(commands)), execute, at_once, stop, ended, show)
        stopped = stop()
    if stopped:
        say(f"stopped after {done} of {len(commands)} runs; the same command goes on from here")
        raise KeyboardInterrupt
    _report(len(commands), failed)


def log_of(run: Path) -> Path:
    """File of the output of a run that has not this terminal to itself."""
    return run.with_name(f"{run.name}.log")


def _row(run: Path) -> str:
    step, success = training_progress(run)
    return f"{run}: step {step:,}" + (f", success {success:.2f}" if success is not None else "")


def combinations(pairs: Sequence[tuple[str, str]]) -> list[list[str]]:
    """The product of all values as `key=value` arguments; the last key varies fastest.

    Args:
        pairs: keys, and their values as written; the last of several with the same key counts.

    Raises:
        UserError: if the values cannot be read.
    """
    values = {key: [f"{key}={value}" for value in _values(key, text)] for key, text in pairs}
    return [list(job) for job in itertools.product(*values.values())]


def _values(key: str, text: str) -> list[str]:
    override = parse_sweep(key, text)
    if override is None:
        return [text]
    if not override.is_discrete_sweep():
        raise UserError(
            f"{key}={text}: list the values, like {key}=1,2 or {key}=range(0,3), or add search=asha"
        )
    values = [str(value) for value in override.sweep_string_iterator()]
    if not values:
        raise UserError(f"{key}={text}: the range is empty")
    return values


def of_one_run(command: Command, arguments: Sequence[str]) -> list[str]:
    """The arguments that all runs of a sweep or search have.

    Raises:
        UserError: if an argument has another form.
    """
    return [
        f"{key}={text}"
        for key, text in split_arguments(command, arguments)
        if key not in OWN and key.partition(".")[0] != "search" and parse_sweep(key, text) is None
    ]


def parse_sweep(key: str, text: str) -> Override | None:
    """Several values in Hydra's grammar, like `1,2` or `interval(0,1)`; None for a single one.

    Raises:
        UserError: if they cannot be read.
    """
    try:
        override = OverridesParser.create().parse_override(f"key={text}")
    except HydraException as error:
        if "," in text or "(" in text:
            raise UserError(f"cannot read the values of {key}={text} ; quote each: {key}='…','…'") from error
        return None  # a word that Hydra's grammar lacks, like a path with ~
    return override if override.is_sweep_override() else None


def _check(command: Command, jobs: Sequence[Sequence[str]]) -> list[Path]:
    """Check the configuration of every run, and that no two have the same directory; returns these."""
    if command.output_directory is None:
        raise UserError(f"robot-rl {command.name} has no --multirun; robot-rl train has")
    seen: dict[Path, Sequence[str]] = {}
    configs = [compose(command, job) for job in jobs]
    directories = [command.output_directory(config) for config in configs]
    for directory, job in zip(directories, jobs, strict=True):
        other = seen.setdefault(directory.resolve(), job)
        if other is not job:
            first, second = (
                " ".join(word for word in one if word not in two) for one, two in ((other, job), (job, other))
            )
            raise UserError(
                f"two runs would share {directory}: {first or 'the same values'} and {second or 'again'}; "
                "put what varies into the name, like name='${method.name}_lr${method.lr}_s${seed}'"
            )
    for config in configs:
        check_options(command, config)
    return directories


def _run(arguments: Sequence[str], stop: Callable[[], bool]) -> int:
    """Run a command to its end, or until it has saved after a stop. Returns its exit code."""
    child = subprocess.Popen(command_line(arguments))
    try:
        while True:
            try:
                return child.wait(_POLL)
            except subprocess.TimeoutExpired:
                if stop():
                    # Ctrl-C in a terminal has reached the child, too; a second SIGINT would cut it off.
                    child.terminate()
                    return child.wait()
    except KeyboardInterrupt:
        try:
            child.wait(_PATIENCE)
        finally:
            child.kill()
        raise


def say(text: str) -> None:
    """Write a line to stderr at once."""
    print(text, file=sys.stderr, flush=True)
