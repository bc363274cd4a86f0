"""The user's overrides: `key=value` arguments in Hydra's grammar, checked against the options.

`--key value` and `--key=value` also mean `key=value`, and `--key` alone means `key=true`. Error messages say
what to write and name the nearest valid key or choice.
"""

import os
from collections.abc import Iterator, Sequence
from typing import Any

from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import QuotedString
from hydra.errors import HydraException
from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException

from robot_rl.cli.command import Command, Draft, Option, options
from robot_rl.cli.user_files import ALONE
from robot_rl.errors import UserError, nearest, nearest_key

FORMER_NAMES = {
    "hil.most_owed": ("hil.max_pending",),
    "method.commit": ("method.execute_fraction",),
    "method.exploration": ("method.exploration_std",),
    "method.imitation": ("method.bc_weight",),
    "method.members": ("method.num_critics",),
    "method.pessimism": ("method.uncertainty_penalty",),
    "method.proposals": ("method.base_samples",),
    "method.scale": ("method.residual_scale", "method.edit_scale"),
    "method.subset": ("method.critics_per_target",),
    "workers": ("jobs",),
}
"""Options that were renamed, with their new names, of which a method has one."""

OTHER_NAMES = {
    "address": ("robot", "hil.robot"),
    "data": ("dataset",),
    "dataset": ("data",),
    "device": ("operator", "hil.operator"),
    "go": ("yes",),
    "operator": ("device", "hil.operator"),
    "robot": ("address", "driver"),
    "yes": ("go",),
}
"""What an option of other commands is called in a command that has none of that name."""

_GRAMMAR = set("[]{}()'\",$\\")
"""Characters with a meaning in Hydra's grammar; a value without them is a plain word."""


def split_arguments(command: Command, arguments: Sequence[str]) -> list[tuple[str, str]]:
    """Arguments as (key, text of the value).

    Raises:
        UserError: if an argument has another form.
    """
    pairs: list[tuple[str, str]] = []
    left = list(arguments)
    while left:
        argument = left.pop(0)
        key, equals, text = argument.partition("=")
        if argument.startswith("--"):
            key = key[2:].replace("-", "_")
            if key and not equals:
                text = _following_value(command, argument, key, left)
        elif argument.startswith(("-", "+", "~")) or not equals:
            raise _malformed(command, argument, left[0] if left else "")
        if not key:
            raise UserError(f"{argument}: the key is missing; write key=value")
        # A shell expands it after `key=` or a blank, if at all.
        pairs.append((key, os.path.expanduser(text) if text.startswith("~/") else text))
    return pairs


def override(draft: Draft, key: str, text: str) -> None:
    """Set the value of a key.

    Raises:
        UserError: if there is no such key, or the value cannot be parsed or does not have the option's type.
    """
    option = _option_of(draft, key, text)
    if option.key == key and option.type_name.startswith("list"):
        # The brackets of a list may be left out: `tasks=Lift,Door`.
        text = text if text.startswith(("[", "$")) or text == "null" else f"[{text}]"
    value = _parse(key, text)
    if "str" in option.type_name and "any" not in option.type_name:
        value = _as_written(key, text, value)
    try:
        OmegaConf.update(draft.values, key, value, merge=True)
    except OmegaConfBaseException as error:
        whole = isinstance(value, float) and value.is_integer() and option.type_name == "int"
        hint = f"; write {key}={int(value)}" if whole else ""
        raise UserError(
            f"{key}={text}: the value must be {option.type_name}{hint} ({option.meaning})"
        ) from error


def literal(text: str) -> str:
    """How a text, like a path, is written as a value, so that Hydra's grammar takes it as it is."""
    if _GRAMMAR.isdisjoint(text):
        return text
    escaped = text.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'


def unknown_choice(group: str, choice: str, valid: list[str]) -> UserError:
    """The error for `group=choice` with a choice that does not exist."""
    if choice.startswith("[") or "," in choice:
        return UserError(
            f"{group}={choice}: only one {group} at a time (robot-rl train takes several with --multirun); "
            f"choose from {', '.join(valid)}"
        )
    spelled = nearest(choice, valid)
    hint = f"; did you mean {group}={spelled}?" if spelled else ";"
    more = f"; give a file's path, or {alone}=… without a file" if (alone := ALONE.get(group)) else ""
    more += "; a trained one is given by the folder of its run" if group == "base" else ""
    return UserError(f"{group}={choice}: there is no such {group}{hint} choose from {', '.join(valid)}{more}")


def _parse(key: str, text: str) -> Any:
    """Parse a value: a number, `true`, `null`, `[1,2]`, `{a: 1}`, a quoted string or a word."""
    try:
        # The key was checked elsewhere; Hydra cannot parse every form of it (`task.cameras[0]`).
        parsed = OverridesParser.create().parse_override(f"key={text}")
    except HydraException as error:
        if _GRAMMAR.isdisjoint(text):
            # Hydra's words are ASCII without `=` and `~`; a path may contain others.
            return text
        raise UserError(f"cannot read the value of {key}={text} ; quote it: '{key}=\"…\"'") from error
    if parsed.is_sweep_override():
        raise UserError(
            f"{key}={text}: one value is wanted; a list is written {key}=[…], and robot-rl train runs "
            "several values with --multirun"
        )
    value = parsed.value()
    return value.text if isinstance(value, QuotedString) else value


def _as_written(key: str, text: str, value: Any) -> Any:
    """The value of an option that holds texts; Hydra's grammar makes numbers of `2024_05_01` and `1.10`.

    Raises:
        UserError: if the texts of a list or dict cannot be told apart.
    """
    if not isinstance(value, list | dict):
        return text.strip() if isinstance(value, int | float) else value
    parts = value.values() if isinstance(value, dict) else value
    if not any(isinstance(part, int | float) for part in parts):
        return value
    words = [word.strip() for word in text.strip()[1:-1].split(",")]
    if isinstance(value, dict) or len(words) != len(value):
        raise UserError(f'{key}={text}: texts that look like numbers or bools need quotes, like "1.10"')
    return [word if isinstance(part, int | float) else part for word, part in zip(words, value, strict=True)]


def _following_value(command: Command, argument: str, key: str, left: list[str]) -> str:
    """The value of `--key`, taken from the arguments that follow."""
    following = left[0] if left else ""
    if following not in ("true", "false") and key in _flags(command):
        return "true"
    if not left or following.startswith("--"):
        advice = (_spelled_key(command, key) or key).partition("=")[0]
        raise UserError(f"{argument}: the value is missing; write {advice}=…")
    return left.pop(0)


def _malformed(command: Command, argument: str, following: str) -> UserError:
    """The error for an argument that is not `key=value`."""
    key, equals, text = argument.lstrip("-+~").partition("=")
    if not equals and "=" not in following and not following.startswith(("-", "+", "~")):
        text = following
    known = _spelled_key(command, key)
    advice = known or key
    if "=" not in advice:
        advice = f"{advice}={text or '…'}"
    if argument.startswith("-"):
        return UserError(f"options have two dashes or none: write {advice} instead of {argument}")
    if argument.startswith("+"):
        return UserError(f"{argument}: keys cannot be added; write {advice}")
    if argument.startswith("~"):
        return UserError(f"{argument}: keys cannot be removed; set a value: {advice}")
    if not (known or text):
        # As a file or folder without its key.
        needed = _first_needed(command)
        advice = f"{needed}={argument}" if needed else ""
    hint = f"; did you mean {advice}?" if advice else ""
    return UserError(f"{argument} is not key=value{hint}")


def _option_of(draft: Draft, key: str, text: str) -> Option:
    """The option that a key names, or of whose dict or list it names an entry.

    Raises:
        UserError: if there is none; names the nearest key, or the choice of a group that has this key.
    """
    known = draft.options()
    for option in known:
        if key == option.key or _is_entry(key, option):
            return option
    keys = [option.key for option in known]
    if now := next((new for new in FORMER_NAMES.get(key, ()) if new in keys), None):
        raise UserError(f"{key} is now {now}: write {now}={text}")
    command, group = draft.command, key.partition(".")[0]
    choices = command.choices(group) if group in command.groups else []
    choice = draft.chosen.get(group) or "???"
    if (
        group in draft.chosen
        and key == f"{group}.name"
        and (choice == "???" or command.fixes_name(group, choice))
    ):
        raise UserError(f"{key} is the choice itself: write {group}={text}")
    owners = [c for c in choices if any(key == option.key for option in _options_of(command, group, c))]
    if owners:
        chosen = {None: "not set", "???": "not chosen"}.get(draft.chosen[group], draft.chosen[group])
        raise UserError(f"{key} belongs to {group}={'|'.join(owners)}, and {group} is {chosen}")
    if below := next((other for other in keys if other.startswith(f"{key}.")), None):
        raise UserError(f"{key} is a section; set one of its keys, e.g. {below}=…")
    if there := next((other for other in OTHER_NAMES.get(key, ()) if other in keys), None):
        raise UserError(f"unknown key {key}; here it is {there}={text}")
    if found := nearest_key(key, [*keys, *draft.chosen, *_all_keys(command)]):
        raise UserError(f"unknown key {key}; did you mean {' or '.join(f'{k}={text}' for k in found)}?")
    raise UserError(f"unknown key {key}; robot-rl {command.name} --help lists all keys")


def _is_entry(key: str, option: Option) -> bool:
    """Whether the key is an entry of a dict or list option."""
    return key.startswith((f"{option.key}.", f"{option.key}[")) and (
        isinstance(option.value, (dict, list)) or option.type_name.startswith(("dict", "list"))
    )


def _spelled_key(command: Command, word: str) -> str | None:
    """The key, or `group=choice`, that a word most likely means, or None."""
    for group in command.groups:
        if word in command.choices(group):
            return f"{group}={word}"
    return next(iter(nearest_key(word, [*command.groups, *_all_keys(command)])), None)


def _all_keys(command: Command) -> list[str]:
    return [option.key for option in _all_options(command)]


def _flags(command: Command) -> set[str]:
    return {option.key for option in _all_options(command) if option.type_name == "bool"}


def _first_needed(command: Command) -> str | None:
    """The first option that has no default, if there is one."""
    values = OmegaConf.structured(command.config)
    needed = [str(key) for key in values if OmegaConf.is_missing(values, key)]
    return next((key for key in needed if key not in command.groups), None)


def _all_options(command: Command) -> Iterator[Option]:
    """Every option of a command, with every choice of its groups."""
    yield from options(OmegaConf.structured(command.config))
    for group in command.groups:
        for choice in command.choices(group):
            yield from _options_of(command, group, choice)


def _options_of(command: Command, group: str, choice: str) -> Iterator[Option]:
    schema = command.schema(group, choice)
    assert schema is not None
    found = options(OmegaConf.structured(schema), f"{group}.")
    return (one for one in found if one.key != f"{group}.name" or not command.fixes_name(group, choice))
