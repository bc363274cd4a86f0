"""The options of a configuration, read from its dataclasses: key, type, value and documentation.

The documentation of a field is the string literal under it.
"""

import ast
import inspect
import textwrap
import types
import typing
from collections.abc import Iterator
from dataclasses import dataclass, fields, is_dataclass
from enum import Enum
from functools import cache
from typing import Any

from omegaconf import DictConfig


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
    from omegaconf import OmegaConf

    schema = OmegaConf.get_type(config)
    assert is_dataclass(schema), schema
    plain = OmegaConf.to_container(config, resolve=False, enum_to_str=True)
    assert isinstance(plain, dict)
    types_of = typing.get_type_hints(schema)
    for field in fields(schema):
        key = prefix + field.name
        node = config._get_node(field.name)
        inner = OmegaConf.get_type(node) if isinstance(node, DictConfig) else None
        if inner is not None and is_dataclass(inner):
            assert isinstance(node, DictConfig)
            yield from options(node, f"{key}.")
        else:
            meaning = meanings(schema).get(field.name, "")
            yield Option(key, type_name(types_of[field.name]), plain[field.name], meaning)


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
