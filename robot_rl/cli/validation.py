"""Checks the user's overrides against the options; error messages name the nearest valid key or choice."""

from collections.abc import Iterable, Iterator

from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException

from robot_rl.cli.command import Command, Draft, Option, options
from robot_rl.cli.overrides import Override
from robot_rl.cli.spelling import nearest, nearest_key
from robot_rl.cli.user_files import ALONE
from robot_rl.errors import UserError

FORMER_NAMES = {
    "method.commit": ("method.execute_fraction",),
    "method.exploration": ("method.exploration_std",),
    "method.imitation": ("method.bc_weight",),
    "method.members": ("method.num_critics",),
    "method.pessimism": ("method.uncertainty_penalty",),
    "method.proposals": ("method.base_samples",),
    "method.scale": ("method.residual_scale", "method.edit_scale"),
    "method.subset": ("method.critics_per_target",),
}
"""Options that were renamed, with their new names, of which a method has one."""


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
    return UserError(f"{group}={choice}: there is no such {group}{hint} choose from {', '.join(valid)}{more}")


def check_key(draft: Draft, key: str, text: str) -> None:
    """Check that the configuration has a key.

    Raises:
        UserError: if it has not; names the nearest key, or the choice of a group that has this key.
    """
    known = draft.options()
    keys = [option.key for option in known]
    if key in keys or _within(key, known):
        return
    if now := next((new for new in FORMER_NAMES.get(key, ()) if new in keys), None):
        raise UserError(f"{key} is now {now}: write {now}={text}")
    group = key.partition(".")[0]
    owners = [
        choice for choice in _choices(draft.command, group) if key in _keys_of(draft.command, group, choice)
    ]
    if owners:
        now = {None: "not set", "???": "not chosen"}.get(draft.chosen[group], draft.chosen[group])
        raise UserError(f"{key} belongs to {group}={'|'.join(owners)}, and {group} is {now}")
    if any(other.startswith(f"{key}.") for other in keys):
        raise UserError(f"{key} is a section; set one of its keys, e.g. {_first_below(key, keys)}=…")
    found = nearest_key(key, list(dict.fromkeys([*keys, *draft.chosen, *all_keys(draft.command)])))
    if found:
        raise UserError(f"unknown key {key}; did you mean {' or '.join(f'{k}={text}' for k in found)}?")
    raise UserError(f"unknown key {key}; robot-rl {draft.command.name} --help lists all keys")


def as_list(draft: Draft, key: str, text: str) -> str:
    """The text of a value; a list gets the brackets that may be left out: `tasks=Lift,Door`."""
    if not any(option.key == key and option.type_name.startswith("list") for option in draft.options()):
        return text
    return text if text.startswith(("[", "$")) or text == "null" else f"[{text}]"


def assign(draft: Draft, override: Override) -> None:
    """Set a value.

    Raises:
        UserError: if the value does not have the type of the option.
    """
    try:
        OmegaConf.update(draft.values, override.key, override.value, merge=True)
    except OmegaConfBaseException as error:
        option = _option(override.key, draft.options())
        whole = (
            isinstance(override.value, float) and override.value.is_integer() and option.type_name == "int"
        )
        hint = f"; write {override.key}={int(override.value)}" if whole else ""
        raise UserError(
            f"{override.key}={override.text}: the value must be {option.type_name}{hint} ({option.meaning})"
        ) from error


def spelled_key(command: Command, word: str) -> str | None:
    """The key, or `group=choice`, that a word most likely means, or None."""
    for group in command.groups:
        if word in command.choices(group):
            return f"{group}={word}"
    found = nearest_key(word, [*command.groups, *all_keys(command)])
    return found[0] if found else None


def all_keys(command: Command) -> list[str]:
    """Every key of a command, with every choice of its groups."""
    return list(dict.fromkeys(option.key for option in _all_options(command)))


def flags(command: Command) -> set[str]:
    """The boolean keys of a command, with every choice of its groups."""
    return {option.key for option in _all_options(command) if option.type_name == "bool"}


def _choices(command: Command, group: str) -> list[str]:
    return command.choices(group) if group in command.groups else []


def _all_options(command: Command) -> Iterator[Option]:
    yield from options(OmegaConf.structured(command.config))
    for group in command.groups:
        for choice in command.choices(group):
            yield from _options_of(command, group, choice)


def _keys_of(command: Command, group: str, choice: str) -> list[str]:
    return [option.key for option in _options_of(command, group, choice)]


def _options_of(command: Command, group: str, choice: str) -> Iterator[Option]:
    schema = command.schema(group, choice)
    assert schema is not None
    return options(OmegaConf.structured(schema), f"{group}.")


def _within(key: str, known: Iterable[Option]) -> bool:
    """Whether the key is an entry of a dict or list option."""
    return any(
        key.startswith((f"{option.key}.", f"{option.key}["))
        and (isinstance(option.value, (dict, list)) or option.type_name.startswith(("dict", "list")))
        for option in known
    )


def _option(key: str, known: Iterable[Option]) -> Option:
    return next(option for option in known if key == option.key or _within(key, [option]))


def _first_below(key: str, keys: Iterable[str]) -> str:
    return next(other for other in keys if other.startswith(f"{key}."))
