"""A command of robot-rl, its options, and its configuration before it is complete.

Options are read from dataclasses; the documentation of a field is the string literal under it.
"""

import ast
import inspect
import textwrap
import types
import typing
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, fields, is_dataclass
from enum import Enum
from functools import cache
from pathlib import Path
from typing import Any

from omegaconf import DictConfig, OmegaConf

from robot_rl.assets import asset_path
from robot_rl.cli.user_files import own_files


@dataclass(frozen=True)
class Option:
    """An option that the user can set."""

    key: str
    type_name: str
    value: Any
    """Plain value with unresolved interpolations; "???" if it is mandatory and not set."""
    meaning: str


@cache
def meanings(schema: type) -> dict[str, str]:
    """Documentation of every field of a dataclass, inherited ones included."""
    found: dict[str, str] = {}
    for cls in reversed(schema.__mro__):
        if is_dataclass(cls):
            found.update(_meanings_in(cls))
    return found


def options(config: DictConfig, prefix: str = "") -> Iterator[Option]:
    """Every option of a structured config, depth first, in the order of its dataclasses' fields."""
    schema = OmegaConf.get_type(config)
    assert is_dataclass(schema), schema
    plain = OmegaConf.to_container(config, resolve=False, enum_to_str=True)
    assert isinstance(plain, dict)
    types_of = typing.get_type_hints(schema)
    for one in fields(schema):
        key = prefix + one.name
        node = config._get_node(one.name)
        inner = OmegaConf.get_type(node) if isinstance(node, DictConfig) else None
        if inner is not None and is_dataclass(inner):
            assert isinstance(node, DictConfig)
            yield from options(node, f"{key}.")
        else:
            meaning = meanings(schema).get(one.name, "")
            yield Option(key, type_name(types_of[one.name]), plain[one.name], meaning)


def type_name(hint: Any) -> str:
    """A type as shown to the user: `int`, `list[str]`, `a|b` for an enumeration, `float or null`."""
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin in (typing.Union, types.UnionType):
        return " or ".join(type_name(a) for a in arguments)
    if origin is not None:
        return f"{origin.__name__}[{', '.join(type_name(a) for a in arguments)}]"
    if hint is types.NoneType:
        return "null"
    if hint is Any:
        return "any"
    if isinstance(hint, type) and issubclass(hint, Enum):
        return "|".join(hint.__members__)
    return str(getattr(hint, "__name__", hint))


def _meanings_in(cls: type) -> Iterator[tuple[str, str]]:
    tree = ast.parse(textwrap.dedent(inspect.getsource(cls)))
    definition = tree.body[0]
    assert isinstance(definition, ast.ClassDef)
    for statement, below in zip(definition.body, definition.body[1:], strict=False):
        match statement, below:
            case (
                ast.AnnAssign(target=ast.Name(id=name)),
                ast.Expr(value=ast.Constant(value=str(text))),
            ):
                yield name, " ".join(text.split())


@dataclass(frozen=True)
class Command:
    """A command of robot-rl: its configuration and the function that runs it."""

    name: str
    config: type
    run: Callable[[Any], None]
    groups: Mapping[str, Mapping[str, type]] = field(default_factory=dict)
    """Schema of each choice of each group."""
    summary: str = ""
    output_directory: Callable[[Any], Path] | None = None
    """Directory that the command writes with a configuration; needed for `--multirun`."""
    check: Callable[[Any], None] | None = None
    """Raises ValueError for options that do not go together."""
    configs: Path = field(default_factory=lambda: asset_path("configs"))

    @property
    def root(self) -> str:
        """Name of the YAML file in `configs/`."""
        return self.name.replace(" ", "_")

    def choices(self, group: str) -> list[str]:
        """Names that `group=` takes: those of `GROUPS`, of shipped files and of the user's."""
        names = {path.stem for path in (self.configs / group).glob("*.yaml")}
        names |= self.groups[group].keys() - {"*"}
        if self.takes_files(group):
            names |= own_files(group).keys()
        return sorted(name for name in names if self.schema(group, name) is not None)

    def takes_files(self, group: str) -> bool:
        """Whether `group=` takes the user's own files."""
        return "*" in self.groups[group]

    def fixes_name(self, group: str, choice: str) -> bool:
        """Whether the field `name` is that of the choice, one of the program's own, and so no option."""
        schema = self.groups[group].get(choice)
        # `hil.name` is that of a client.
        return schema is not None and getattr(schema, "name", choice) == choice

    def schema(self, group: str, choice: str) -> type | None:
        """Dataclass of a choice, None if there is no such choice."""
        return self.groups[group].get(choice, self.groups[group].get("*"))


@dataclass(frozen=True)
class Draft:
    """A checked configuration in which mandatory values may still be missing."""

    command: Command
    values: DictConfig
    chosen: dict[str, str | None]
    """Choice of each group: None if there is none, "???" if the user must choose."""

    def options(self) -> list[Option]:
        """Every option with its value; groups without a choice have none."""
        chosen = [(group, choice) for group, choice in self.chosen.items() if choice is not None]
        fixed = {f"{group}.name" for group, choice in chosen if self.command.fixes_name(group, choice)}
        fixed |= self.chosen.keys()
        return [option for option in options(self.values) if option.key not in fixed]
