"""`--multirun`: a command runs once for each combination of values, one run after another.

The syntax is that of Hydra's basic sweeper: `seed=0,1,2 method=expo,ibrl` or `seed=range(0,3)`. Each run is
a process of its own, started with the command that `run.json` records, so that it can be repeated alone.
"""

import itertools
import shlex
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.errors import HydraException

from robot_rl.cli.command import Command
from robot_rl.cli.compose import compose
from robot_rl.cli.overrides import split_arguments
from robot_rl.cli.signals import stop_on_signal
from robot_rl.errors import INTERRUPTED, UserError
from robot_rl.hardware.child_process import command_line

_POLL = 0.2
"""s between two checks of whether the user asked to stop."""
_PATIENCE = 10.0
"""s for a run to end after a second Ctrl-C, before it is killed."""


def run_all(command: Command, arguments: Sequence[str], plugins: Sequence[str] = ()) -> None:
    """Run a command once for each combination of the values in its arguments.

    A run that fails does not stop those after it.

    Raises:
        UserError: if a run cannot start or two would share a directory; nothing has run then.
        KeyboardInterrupt: if the user stopped; the current run has saved.
        SystemExit: with code 1, if runs have failed.
    """
    jobs = combinations(split_arguments(command, arguments))
    _check(command, jobs)
    also = [f"plugins=[{','.join(plugins)}]"] if plugins else []
    failed: list[str] = []
    with stop_on_signal() as stop:
        for number, job in enumerate(jobs, 1):
            words = [*command.name.split(), *job, *also]
            text = f"robot-rl {shlex.join(words)}"
            _say(f"[{number}/{len(jobs)}] {text}")
            code = _run(words, stop)
            if stop() or code == INTERRUPTED:
                _say(f"stopped in run {number} of {len(jobs)}; the same command goes on from here")
                raise KeyboardInterrupt
            if code:
                failed.append(f"exit code {code}: {text}")
    _say(f"{len(jobs) - len(failed)} of {len(jobs)} runs are done" + "; failed:" * bool(failed))
    if failed:
        _say("\n".join(f"  {line}" for line in failed))
        raise SystemExit(1)


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
    try:
        override = OverridesParser.create().parse_override(f"key={text}")
    except HydraException as error:
        if "," in text or "(" in text:
            raise UserError(f"cannot read the values of {key}={text} ; quote each: {key}='…','…'") from error
        return [text]  # a word that Hydra's grammar lacks, like a path with ~
    if not override.is_sweep_override():
        return [text]
    if not override.is_discrete_sweep():
        raise UserError(f"{key}={text}: list the values, like {key}=1,2 or {key}=range(0,3)")
    return [str(value) for value in override.sweep_string_iterator()]


def _check(command: Command, jobs: Sequence[Sequence[str]]) -> None:
    """Check the configuration of every run, and that no two have the same directory."""
    if command.output_directory is None:
        raise UserError(f"robot-rl {command.name} has no --multirun; robot-rl train has")
    seen: dict[Path, Sequence[str]] = {}
    for job in jobs:
        directory = command.output_directory(compose(command, job))
        other = seen.setdefault(directory.resolve(), job)
        if other is not job:
            first, second = (
                " ".join(word for word in one if word not in two) for one, two in ((other, job), (job, other))
            )
            raise UserError(
                f"two runs would share {directory}: {first or 'the same values'} and {second or 'again'}; "
                "put what varies into the name, like name='${method.name}_lr${method.lr}_s${seed}'"
            )


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


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)
