"""Configuration: a command's YAML, its groups' choices and the user's overrides, checked by dataclasses.

`configs/<command>.yaml` holds Hydra's defaults list and the values that differ from those of the
command's `Config`. The command's `GROUPS` has the dataclass of each choice of each group ("*": for all
choices); a file `configs/<group>/<choice>.yaml` exists only where values differ from the dataclass's
defaults. A group whose choices all have one dataclass (`task`) takes the user's own files as well: see
`robot_rl.cli.user_files`. Nothing here, and no resolver, evaluates Python.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar, cast

from hydra import compose as hydra_compose
from hydra import initialize_config_dir
from hydra.core.config_store import ConfigStore
from hydra.errors import ConfigCompositionException
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import ConfigKeyError, OmegaConfBaseException

from robot_rl.assets import asset_path
from robot_rl.cli.command import Command, Draft
from robot_rl.cli.overrides import override, split_arguments, unknown_choice
from robot_rl.cli.user_files import ALONE, NO_FILE, check_file, find_file, own_files
from robot_rl.errors import UserError, as_user_errors

T = TypeVar("T")


def compose(command: Command, arguments: Sequence[str] = ()) -> Any:
    """The `Config` of a command from `key=value` arguments; its groups are instances of their dataclasses.

    Raises:
        UserError: if a key or choice is unknown, a value has the wrong type, or a mandatory one is missing.
    """
    made = draft(command, arguments)
    for group, choice in made.chosen.items():
        if choice == "???":
            raise UserError(f"{group} is required: add {group}={'|'.join(command.choices(group))}")
    for option in made.options():
        if option.value == "???":
            raise UserError(f"{option.key} is required: add {option.key}=…  ({option.meaning})")
    try:
        OmegaConf.resolve(made.values)
        with as_user_errors():
            config = OmegaConf.to_object(made.values)
            _check_numbers(OmegaConf.to_container(made.values))
            _check_sizes(config)
            return config
    except OmegaConfBaseException as error:
        key = getattr(error, "full_key", None) or command.name
        raise UserError(f"{key}: {_first_line(error)}") from error


def checked(command: Command, arguments: Sequence[str]) -> Any:
    """The `Config` of a command that has all it needs for these arguments.

    Raises:
        UserError: as `compose`, or if the command would refuse options that do not go together.
    """
    config = compose(command, arguments)
    check_options(command, config)
    return config


def check_options(command: Command, config: Any) -> None:
    """Raises UserError if a command would refuse options that do not go together, or what they name."""
    if command.check:
        with as_user_errors():
            command.check(config)


def _check_numbers(values: Any, key: str = "") -> None:
    """Check that no option is NaN, which comparisons with a limit let pass."""
    if isinstance(values, dict):
        for name, value in values.items():
            _check_numbers(value, f"{key}.{name}" if key else str(name))
    elif isinstance(values, list):
        for value in values:
            _check_numbers(value, key)
    elif values != values:
        raise ValueError(f"{key}: NaN is not a number")


def _check_sizes(config: Any) -> None:
    """Check the numbers that numpy and torch would refuse much later, or that would never end."""
    for name, least, most in (("seed", 0, 2**63 - 1), ("threads", 1, 2**31 - 1)):
        value = getattr(config, name, None)
        if isinstance(value, int) and not least <= value <= most:
            bound = f"at least {least}" if value < least else f"at most {most}"
            raise ValueError(f"{name}={value}: it must be {bound}")
    seconds = getattr(config, "seconds", None)
    if isinstance(seconds, float) and not 0 < seconds < float("inf"):
        raise ValueError(f"seconds={seconds:g}: it must be more than 0")


def load_group(group: str, choice: str, schema: type[T]) -> T:
    """One choice of a group as its dataclass, e.g. `load_group("task", "lift", TaskConfig)`.

    Args:
        group: name of the group.
        choice: name of a shipped file or of one in the current folder's `configs/`, or a file's path.
        schema: the dataclass.

    Raises:
        UserError: if there is no such choice.
    """
    folder = asset_path("configs", group)
    path = find_file(group, choice) or folder / f"{choice}.yaml"
    if not path.is_file():
        raise unknown_choice(
            group, choice, sorted({p.stem for p in folder.glob("*.yaml")} | {*own_files(group)})
        )
    with as_user_errors():
        values = OmegaConf.create(check_file(group, path, schema))
        return cast(T, OmegaConf.to_object(OmegaConf.merge(OmegaConf.structured(schema), values)))


def draft(command: Command, arguments: Sequence[str]) -> Draft:
    """A configuration in which mandatory values may be missing; for `compose` and `--help`."""
    defaults = _default_choices(command)
    pairs, chosen, paths = _choose(command, defaults, split_arguments(command, arguments))
    files = _files(command, chosen)
    selection = []
    for group, choice in chosen.items():
        if choice == "???" or group in files:
            selection += [f"~{group}"] if defaults[group] is not None else []
        elif choice is not None:
            selection.append(f"{group}={choice}")
    root = command.root if (command.configs / f"{command.root}.yaml").is_file() else None
    try:
        with (
            _registered_choices(command, chosen),
            initialize_config_dir(str(command.configs), version_base="1.3"),
        ):
            composed = hydra_compose(root, selection)
    except ConfigCompositionException as error:
        raise _contradiction(chosen, error.__context__ or error) from error
    # As plain values: Hydra's config refuses new entries in the dicts of an option.
    plain = cast(dict[str, Any], OmegaConf.to_container(composed))
    values = OmegaConf.create({**plain, **files})
    made = Draft(command, _structured(command, chosen, values), chosen)
    for group, path in paths.items():
        OmegaConf.update(made.values, f"{group}.path", path)
    for key, text in pairs:
        override(made, key, text)
    return made


def _choose(
    command: Command, defaults: Mapping[str, str | None], pairs: list[tuple[str, str]]
) -> tuple[list[tuple[str, str]], dict[str, str | None], dict[str, str]]:
    """Separate the choices of groups from the other arguments; the last of several counts.

    Returns:
        The other arguments; the choice of each group; the path of each group chosen by a run's path.
    """
    chosen = dict(defaults)
    values: list[tuple[str, str]] = []
    paths: dict[str, str] = {}
    keys = {key for key, _ in pairs}
    chosen |= {g: NO_FILE for g, alone in ALONE.items() if g in chosen and alone in keys and g not in keys}
    for key, text in pairs:
        if key not in chosen:
            values.append((key, text))
            continue
        paths.pop(key, None)
        choice = text.strip("'\"")
        valid = command.choices(key)
        if choice in valid or (command.takes_files(key) and find_file(key, choice)):
            chosen[key] = choice
        elif choice == "null" and defaults[key] is None:
            chosen[key] = None
        elif "run" in valid and ("/" in choice or Path(choice).exists()):
            # The path of an earlier run in place of a name.
            chosen[key] = "run"
            paths[key] = choice
        else:
            raise unknown_choice(key, choice, valid)
    return values, chosen, paths


def _files(command: Command, chosen: Mapping[str, str | None]) -> dict[str, dict[str, Any]]:
    """Plain values of the user's own files and of `NO_FILE`, which Hydra does not find."""
    found: dict[str, dict[str, Any]] = {}
    for group, choice in chosen.items():
        if choice in (None, "???") or not command.takes_files(group):
            continue
        if path := find_file(group, choice):
            found[group] = check_file(group, path, command.groups[group]["*"])
        elif choice == NO_FILE:
            found[group] = {}
    return found


@contextmanager
def _registered_choices(command: Command, chosen: Mapping[str, str | None]) -> Iterator[None]:
    """Registers the choices without a YAML file in Hydra's ConfigStore, what is chosen as its dataclass."""
    store = ConfigStore.instance()
    for group, schemas in command.groups.items():
        for choice, schema in schemas.items():
            if choice != "*" and not (command.configs / group / f"{choice}.yaml").is_file():
                # Of the others Hydra needs the names, and dataclasses take time.
                store.store(choice, schema if choice == chosen[group] else {}, group)
    try:
        yield
    finally:
        for group in command.groups:
            store.repo.pop(group, None)


def _default_choices(command: Command) -> dict[str, str | None]:
    """Default choice of each group, from the defaults list of the command's YAML."""
    path = command.configs / f"{command.root}.yaml"
    plain = OmegaConf.to_container(OmegaConf.load(path)) if path.is_file() else {}
    assert isinstance(plain, dict), path
    entries = plain.get("defaults", [])
    listed = {key: choice for entry in entries if isinstance(entry, dict) for key, choice in entry.items()}
    if set(listed) != set(command.groups):
        raise AssertionError(
            f"{path}: the defaults list has {sorted(listed)}, GROUPS has {sorted(command.groups)}"
        )
    return listed


def _structured(command: Command, chosen: Mapping[str, str | None], values: DictConfig) -> DictConfig:
    """Plain values, typed by the dataclasses of the command and of the chosen groups."""
    typed = OmegaConf.structured(command.config)
    for group, choice in chosen.items():
        schema = command.schema(group, choice) if choice not in (None, "???") else None
        typed[group] = OmegaConf.structured(schema) if schema else None
    try:
        merged = OmegaConf.merge(typed, values)
    except OmegaConfBaseException as error:
        raise _contradiction(chosen, error) from error
    assert isinstance(merged, DictConfig)
    return merged


def _contradiction(chosen: Mapping[str, str | None], error: BaseException) -> UserError:
    choices = ", ".join(f"{group}={choice}" for group, choice in chosen.items() if choice is not None)
    key = str(getattr(error, "full_key", None) or "")
    if isinstance(error, ConfigKeyError) and (of := key.partition(".")[0]) in chosen:
        setting = f"{key.rpartition('.')[2]}:"
        by = [
            f"{group}={choice}"
            for group, choice in chosen.items()
            if group != of
            and (path := asset_path("configs", group, f"{choice}.yaml")).is_file()
            and setting in path.read_text()
        ]
        return UserError(
            f"{of}={chosen[of]} takes no {key}, which {', '.join(by)} sets: leave one of them out"
        )
    return UserError(f"{choices} do not go together: {_first_line(error)}")


def _first_line(error: BaseException) -> str:
    return str(error).splitlines()[0]
