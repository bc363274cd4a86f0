"""`robot-rl <command> --help`: every option with its value, type and documentation."""

from collections.abc import Iterable, Sequence
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from robot_rl.cli.command import Command, Draft, Option, meanings
from robot_rl.cli.compose import draft

_PLUGINS = (
    "       plugins=[my_package.my_tasks] imports your own modules first (environments, experts, drivers …)"
)
_MULTIRUN = (
    "       -m or --multirun runs every combination: -m seed=0,1,2 method=expo,ibrl …; jobs=N at a time,"
    " with launcher=ray or slurm on a cluster"
)
_SEARCH = (
    "       -m search=asha samples options and stops bad runs: -m search=asha eval_every=5000"
    " method.actor_lr=tag(log,interval(1e-5,1e-3)) …"
)


def print_help(command: Command, arguments: Sequence[str] = (), console: Console | None = None) -> None:
    """Print the options of a command and of the chosen (or default) choices of its groups.

    Raises:
        UserError: if the arguments are invalid.
    """
    made = draft(command, arguments)
    console = console or Console(highlight=False)
    console.print(f"[bold]robot-rl {command.name}[/bold]: {command.summary}\n")
    console.print(
        Text(f"usage: robot-rl {command.name} {'[group=choice …] ' if command.groups else ''}[key=value …]")
    )
    console.print(Text(_PLUGINS))
    if command.output_directory:
        console.print(Text(_MULTIRUN))
        console.print(Text(_SEARCH))
    console.print()
    if command.groups:
        console.print("[bold]groups[/bold]")
        console.print(_choices_table(made))
    groups: dict[str, list[Option]] = {"options": []}
    for option in made.options():
        group = option.key.partition(".")[0]
        title = f"{group}={made.chosen[group]}" if group in made.chosen else "options"
        groups.setdefault(title, []).append(option)
    for group, choice in made.chosen.items():
        if choice == "???":
            console.print(f"options of {group}: robot-rl {command.name} {group}=… --help\n", markup=False)
    for title, group_options in groups.items():
        if group_options:
            console.print(f"[bold]{title}[/bold]")
            console.print(_options_table(group_options))


def value_text(value: Any) -> str:
    """A value as it is written on the command line."""
    match value:
        case None:
            return "null"
        case bool():
            return str(value).lower()
        case list():
            return f"[{','.join(value_text(v) for v in value)}]"
        case dict():
            return f"{{{','.join(f'{k}: {value_text(v)}' for k, v in value.items())}}}"
        case "":
            return "''"
    return str(value)


def _choices_table(made: Draft) -> Table:
    table = _table()
    meaning = meanings(made.command.config)
    for group, choice in made.chosen.items():
        given = "… (required)" if choice == "???" else value_text(choice)
        names = made.command.choices(group)
        path = ", or the path of a run" if "run" in names else ""
        path = ", or a file's path" if made.command.takes_files(group) else path
        table.add_row(Text(f"  {group}={given}"), Text(f"{meaning[group]} ({' | '.join(names)}{path})"))
    table.add_row("", "")
    return table


def _options_table(shown: Iterable[Option]) -> Table:
    table = _table()
    for option in shown:
        given = "… (required)" if option.value == "???" else value_text(option.value)
        table.add_row(Text(f"  {option.key}={given}"), Text(f"{option.meaning} ({option.type_name})"))
    table.add_row("", "")
    return table


def _table() -> Table:
    table = Table(box=None, show_header=False, pad_edge=False, padding=(0, 2, 0, 0))
    table.add_column(overflow="fold", max_width=44)
    table.add_column(overflow="fold")
    return table
