"""`key=value` arguments, in Hydra's grammar."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import QuotedString
from hydra.errors import HydraException

from robot_rl.errors import UserError

_GRAMMAR = set("[]{}()'\",$\\")
"""Characters that mean something in a value; a value without them is a plain word."""


@dataclass(frozen=True)
class Override:
    """One `key=value` of the command line."""

    key: str
    value: Any
    text: str
    """The value as it was written."""


def split(
    arguments: Sequence[str], spelled: Callable[[str], str | None] = lambda word: word
) -> list[tuple[str, str]]:
    """Arguments as (key, text of the value).

    Args:
        arguments: of the command line, after the verb.
        spelled: the valid key, or `group=choice`, that a word means; asked only for advice.

    Raises:
        UserError: an argument of another form; the message says how to write it.
    """
    pairs: list[tuple[str, str]] = []
    for i, argument in enumerate(arguments):
        key, equals, text = argument.partition("=")
        if argument.startswith(("-", "+", "~")) or not equals:
            following = arguments[i + 1] if i + 1 < len(arguments) else ""
            raise _malformed(argument, following, spelled)
        if not key:
            raise UserError(f"{argument}: the key is missing; write key=value")
        pairs.append((key, text))
    return pairs


def parse(key: str, text: str) -> Override:
    """Read a value: a number, `true`, `null`, `[1,2]`, `{a: 1}`, a quoted string or a word.

    Raises:
        UserError: the value cannot be read, or asks for a sweep.
    """
    try:
        # The key has been checked; Hydra need not know its spelling (`task.cameras[0]`).
        parsed = OverridesParser.create().parse_override(f"key={text}")
    except HydraException as error:
        if _GRAMMAR.isdisjoint(text):
            # Hydra's words are ASCII without `=` and `~`; a path may hold them.
            return Override(key, text, text)
        raise UserError(f"cannot read the value of {key}={text} ; quote it: '{key}=\"…\"'") from error
    if parsed.is_sweep_override():
        raise UserError(f"{key}={text}: one value is wanted, not a sweep; a list is written {key}=[…]")
    value = parsed.value()
    return Override(key, value.text if isinstance(value, QuotedString) else value, text)


def _malformed(argument: str, following: str, spelled: Callable[[str], str | None]) -> UserError:
    """What to write in place of an argument that is not `key=value`."""
    key, equals, text = argument.lstrip("-+~").partition("=")
    if not equals and "=" not in following and not following.startswith(("-", "+", "~")):
        text = following
    known = spelled(key)
    advice = known or key
    if "=" not in advice:
        advice = f"{advice}={text or '…'}"
    if argument.startswith("-"):
        return UserError(f"options have no dashes here: write {advice} in place of {argument}")
    if argument.startswith("+"):
        return UserError(f"{argument}: no key can be added, since all are known; write {advice}")
    if argument.startswith("~"):
        return UserError(f"{argument}: no key can be removed; set it to a value: {advice}")
    hint = f"; did you mean {advice}?" if known or text else ""
    return UserError(f"{argument} is not key=value{hint}")
