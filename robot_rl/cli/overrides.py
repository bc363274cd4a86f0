"""Parses `key=value` arguments, in Hydra's grammar.

`--key value` and `--key=value` also mean `key=value`, and `--key` alone means `key=true`.
"""

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Any

from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import QuotedString
from hydra.errors import HydraException

from robot_rl.errors import UserError

_GRAMMAR = set("[]{}()'\",$\\")
"""Characters with a meaning in Hydra's grammar; a value without them is a plain word."""


@dataclass(frozen=True)
class Override:
    """One `key=value` of the command line."""

    key: str
    value: Any
    text: str
    """The value as the user wrote it."""


def split(
    arguments: Sequence[str],
    spelled: Callable[[str], str | None] = lambda word: word,
    flags: Collection[str] = (),
) -> list[tuple[str, str]]:
    """Arguments as (key, text of the value).

    Args:
        arguments: those of the command line after the name of the command.
        spelled: the valid key, or `group=choice`, that a word means; used in error messages only.
        flags: boolean keys.

    Raises:
        UserError: if an argument has another form; the message says how to write it.
    """
    pairs: list[tuple[str, str]] = []
    left = list(arguments)
    while left:
        argument = left.pop(0)
        following = left[0] if left else ""
        key, equals, text = argument.partition("=")
        if argument.startswith("--"):
            key = key[2:].replace("-", "_")
            if key and not equals:
                text = _value(argument, key in flags, left, spelled)
        elif argument.startswith(("-", "+", "~")) or not equals:
            raise _malformed(argument, following, spelled)
        if not key:
            raise UserError(f"{argument}: the key is missing; write key=value")
        pairs.append((key, text))
    return pairs


def parse(key: str, text: str) -> Override:
    """Parse a value: a number, `true`, `null`, `[1,2]`, `{a: 1}`, a quoted string or a word.

    Raises:
        UserError: if the value cannot be parsed, or is a sweep.
    """
    try:
        # The key was checked elsewhere; Hydra cannot parse every form of it (`task.cameras[0]`).
        parsed = OverridesParser.create().parse_override(f"key={text}")
    except HydraException as error:
        if _GRAMMAR.isdisjoint(text):
            # Hydra's words are ASCII without `=` and `~`; a path may contain others.
            return Override(key, text, text)
        raise UserError(f"cannot read the value of {key}={text} ; quote it: '{key}=\"…\"'") from error
    if parsed.is_sweep_override():
        raise UserError(
            f"{key}={text}: one value is wanted; a list is written {key}=[…], and robot-rl train runs "
            "several values with --multirun"
        )
    value = parsed.value()
    return Override(key, value.text if isinstance(value, QuotedString) else value, text)


def _value(argument: str, flag: bool, left: list[str], spelled: Callable[[str], str | None]) -> str:
    """The value of `--key`, taken from the arguments that follow."""
    following = left[0] if left else ""
    if flag and following not in ("true", "false"):
        return "true"
    if not left or following.startswith("--"):
        key = argument[2:].replace("-", "_")
        advice = (spelled(key) or key).partition("=")[0]
        raise UserError(f"{argument}: the value is missing; write {advice}=…")
    return left.pop(0)


def _malformed(argument: str, following: str, spelled: Callable[[str], str | None]) -> UserError:
    """The error for an argument that is not `key=value`; says what to write instead."""
    key, equals, text = argument.lstrip("-+~").partition("=")
    if not equals and "=" not in following and not following.startswith(("-", "+", "~")):
        text = following
    known = spelled(key)
    advice = known or key
    if "=" not in advice:
        advice = f"{advice}={text or '…'}"
    if argument.startswith("-"):
        return UserError(f"options have two dashes or none: write {advice} instead of {argument}")
    if argument.startswith("+"):
        return UserError(f"{argument}: keys cannot be added; write {advice}")
    if argument.startswith("~"):
        return UserError(f"{argument}: keys cannot be removed; set a value: {advice}")
    hint = f"; did you mean {advice}?" if known or text else ""
    return UserError(f"{argument} is not key=value{hint}")
