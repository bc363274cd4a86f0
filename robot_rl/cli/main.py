"""The command line: `robot-rl <command> [group=choice …] [key=value …] [plugins=[module]]`."""

import ast
import gc
import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING

from robot_rl import __version__
from robot_rl.errors import UserError, as_user_errors, nearest, report, trace_crashes
from robot_rl.graphics import choose_backend
from robot_rl.hardware.plugins import load_plugins

if TYPE_CHECKING:
    from robot_rl.cli.command import Command

choose_backend()

COMMANDS: dict[str, tuple[str, ...]] = {
    "Setup": ("doctor",),
    "Data": (
        "collect",
        "states",
        "teleop",
        "record",
        "replay",
        "data derive",
        "data info",
        "data view",
        "data validate",
        "data merge",
        "data split",
        "data convert",
        "data repair",
    ),
    "Training": ("train", "actor", "eval", "report", "imagine report", "demo", "rehearse"),
    "Robot": ("robot", "robot keys", "robot latency", "export", "deploy", "serve"),
    "Benchmarks": (
        "bench sim",
        "bench update",
        "bench gpu",
        "bench imagine",
        "bench serve",
        "bench control",
        "bench record",
        "bench data",
        "bench methods",
        "bench scale",
        "bench table",
    ),
}
"""Commands in the order of the listing, by topic."""

_HELP = {"-h", "--help", "help"}
_MULTIRUN = {"-m", "--multirun"}
_FOLDER = Path(__file__).resolve().parents[1] / "commands"


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; returns its exit code (see `robot_rl.errors`)."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    trace_crashes()
    try:
        return report(lambda: _dispatch(arguments))
    finally:
        # The process ends here, and the last garbage collection of torch's and numba's objects takes seconds.
        # ruckig needs it: it warns about each of its objects that is still alive at exit.
        if argv is None and "ruckig" not in sys.modules:
            gc.freeze()


def load_command(name: str) -> "Command":
    """Import a command's module: that of `bench sim` is `commands/bench_sim.py`.

    Raises:
        UserError: if there is no such command.
    """
    from robot_rl.cli.command import Command

    if name not in command_names():
        spelled = nearest(name, command_names())
        hint = f"did you mean robot-rl {spelled}? " if spelled else ""
        raise UserError(f"there is no command {name!r}; {hint}robot-rl alone lists the commands")
    module = import_module(f"robot_rl.commands.{_module(name)}")
    return Command(
        name,
        module.Config,
        module.run,
        getattr(module, "GROUPS", {}),
        summary(name),
        getattr(module, "output_directory", None),
        getattr(module, "check_options", None),
    )


def command_names() -> list[str]:
    """All commands, in the order of the listing."""
    return [name for names in COMMANDS.values() for name in names]


def summary(command: str) -> str:
    """First line of a command's docstring, read without importing the module, which may import torch."""
    text = ast.get_docstring(ast.parse((_FOLDER / f"{_module(command)}.py").read_text(encoding="utf-8")))
    assert text, f"command {command} has no docstring"
    return text.splitlines()[0]


def listing() -> str:
    """The text that `robot-rl` without arguments prints."""
    lines = [
        f"robot-rl {__version__}: a learned base policy, improved by reinforcement learning, deployed",
        "",
    ]
    lines += ["usage: robot-rl <command> [group=choice …] [key=value …]", "       robot-rl <command> --help"]
    lines += ["       (--key value and --key=value also mean key=value;"]
    lines += ["        plugins=[my_package.my_tasks] imports your own modules first, with every command;"]
    lines += ["        train --multirun seed=0,1,2 method=expo,ibrl … trains every combination)", ""]
    for topic, names in COMMANDS.items():
        lines += [topic, *_lines(names), ""]
    return "\n".join(lines).rstrip()


def _dispatch(arguments: list[str]) -> None:
    rest = [argument for argument in arguments if argument not in _HELP]
    asks_help = rest != arguments
    if not rest:
        with _broken_pipe_ignored():
            print(listing())
        return
    if rest == ["--version"]:
        print(__version__)
        return
    name, rest = _split_name(rest)
    if not rest and name not in command_names() and (family := _family(name)):
        with _broken_pipe_ignored():
            print("\n".join([f"usage: robot-rl {name} <which> [key=value …]", "", *_lines(family)]))
        return
    plugins, rest = _split_plugins(rest)
    multirun = not _MULTIRUN.isdisjoint(rest)
    rest = [argument for argument in rest if argument not in _MULTIRUN]
    with as_user_errors():
        load_plugins(plugins)
    command = load_command(name)
    if asks_help:
        from robot_rl.cli.help import print_help

        if multirun:
            from robot_rl.cli.multirun import of_one_run

            rest = of_one_run(command, rest)
        with _broken_pipe_ignored():
            print_help(command, rest)
        return
    if multirun:
        from robot_rl.cli.multirun import run_all
        from robot_rl.cli.search.command import asks_for_search, run_search

        (run_search if asks_for_search(rest) else run_all)(command, rest, plugins)
        return
    from robot_rl.cli.compose import compose

    config = compose(command, rest)
    command.run(config)


def _split_name(arguments: list[str]) -> tuple[str, list[str]]:
    """The name of the command, which may have two words, and the other arguments."""
    first, two = arguments[0], " ".join(arguments[:2])
    words = 2 if two in command_names() or (_family(first) and first not in command_names()) else 1
    return " ".join(arguments[:words]), arguments[words:]


def _split_plugins(arguments: list[str]) -> tuple[list[str], list[str]]:
    """The modules of `plugins=[…]`, to be imported before the command, and the other arguments."""
    names: list[str] = []
    rest: list[str] = []
    left = iter(arguments)
    for argument in left:
        key, equals, text = argument.partition("=")
        if key not in ("plugins", "--plugins"):
            rest.append(argument)
            continue
        text = text if equals else next(left, "")
        found = [name.strip(" '\"") for name in text.strip().strip("[]").split(",")]
        if not all(found):
            raise UserError(f"{argument}: name modules: plugins=[my_package.my_tasks]")
        names += found
    return names, rest


def _family(word: str) -> list[str]:
    """The commands of two words that begin with this one."""
    return [name for name in command_names() if name.startswith(f"{word} ")]


def _module(command: str) -> str:
    return command.replace(" ", "_")


def _lines(names: Sequence[str]) -> list[str]:
    width = max(map(len, command_names())) + 1
    return [f"  {name:<{width}} {summary(name)}" for name in names]


@contextmanager
def _broken_pipe_ignored() -> Iterator[None]:
    """Ignores that the reader of stdout has gone, as with `robot-rl | head`."""
    try:
        yield
        sys.stdout.flush()
    except BrokenPipeError:
        # Python flushes stdout once more at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
