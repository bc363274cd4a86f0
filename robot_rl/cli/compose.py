"""Configuration: a command's YAML, its groups' choices and the user's overrides, checked by dataclasses.

`configs/<command>.yaml` holds Hydra's defaults list and the values that differ from those of the
command's `Config`. The command's `GROUPS` has the dataclass of each choice of each group ("*": for all
choices); a file `configs/<group>/<choice>.yaml` exists only where values differ from the dataclass's
defaults. A group whose choices all have one dataclass (`task`) takes the user's own files as well: see
`robot_rl.cli.user_files`. Nothing here, and no resolver, evaluates Python.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, TypeVar, cast

from hydra import compose as hydra_compose
from hydra import initialize_config_dir
from hydra.core.config_store import ConfigStore
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from robot_rl.assets import asset_path
from robot_rl.cli.options import Option, options
from robot_rl.cli.overrides import Override, parse, split
from robot_rl.cli.user_files import ALONE, NO_FILE, check_file, find_file, own_files
from robot_rl.cli.validation import as_list, assign, check_key, flags, spelled_key, unknown_choice
from robot_rl.errors import UserError, mistakes

T = TypeVar("T")


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
    """Directory that a run with a configuration writes; needed for `--multirun`."""
    configs: Path = field(default_factory=lambda: asset_path("configs"))

    @property
    def root(self) -> str:
        """Name of its YAML."""
        return self.name.replace(" ", "_")

    def choices(self, group: str) -> list[str]:
        """Names that `group=` takes: those of `GROUPS`, of shipped files and of the user's."""
        names = {path.stem for path in (self.configs / group).glob("*.yaml")}
        names |= self.groups[group].keys() - {"*"}
        if self.takes_files(group):
            names |= own_files(group).keys()
        return sorted(name for name in names if self.schema(group, name) is not None)

    def takes_files(self, group: str) -> bool:
        """Whether `group=` takes files of the user's own."""
        return "*" in self.groups[group]

    def schema(self, group: str, choice: str) -> type | None:
        """The dataclass of a choice."""
        return self.groups[group].get(choice, self.groups[group].get("*"))


@dataclass(frozen=True)
class Draft:
    """A checked configuration in which mandatory values may still be missing."""

    command: Command
    values: DictConfig
    chosen: dict[str, str | None]
    """The choice of each group; None for none, "???" if the user must choose."""

    def options(self) -> list[Option]:
        """Every option with its value; a group that is not chosen is none."""
        return [option for option in options(self.values) if option.key not in self.chosen]


def compose(command: Command, arguments: Sequence[str] = ()) -> tuple[Any, dict[str, Any]]:
    """The configuration of a command from `key=value` arguments.

    Returns:
        The command's `Config` with its groups as instances of their dataclasses, and the same as plain
        values with the chosen names under `groups` (`restore` reads it back).

    Raises:
        UserError: an unknown key or choice, a wrong type, a missing mandatory value.
    """
    made = draft(command, arguments)
    for group, choice in made.chosen.items():
        if choice == "???":
            raise UserError(f"{group} is required: add {group}={'|'.join(command.choices(group))}")
    for option in made.options():
        if option.value == "???":
            raise UserError(f"{option.key} is required: add {option.key}=…  ({option.meaning})")
    return _finish(made)


def restore(command: Command, plain: Mapping[str, Any]) -> Any:
    """The typed configuration of plain values that `compose` returned (of an earlier run).

    Raises:
        UserError: the values do not fit the dataclasses of this version of the program.
    """
    values = {key: value for key, value in plain.items() if key != "groups"}
    chosen = dict(plain.get("groups", {}))
    return _finish(Draft(command, _structured(command, chosen, OmegaConf.create(values)), chosen))[0]


def load_group(group: str, choice: str, schema: type[T]) -> T:
    """One choice of a group as its dataclass, e.g. `load_group("task", "lift", TaskConfig)`.

    Args:
        group: its name.
        choice: a name, of a file of the user's own too, or a file's path.
        schema: the dataclass.

    Raises:
        UserError: there is no such choice.
    """
    folder = asset_path("configs", group)
    path = find_file(group, choice) or folder / f"{choice}.yaml"
    if not path.is_file():
        raise unknown_choice(
            group, choice, sorted({p.stem for p in folder.glob("*.yaml")} | {*own_files(group)})
        )
    with mistakes():
        values = OmegaConf.create(check_file(group, path, schema))
        return cast(T, OmegaConf.to_object(OmegaConf.merge(OmegaConf.structured(schema), values)))


def split_arguments(command: Command, arguments: Sequence[str]) -> list[tuple[str, str]]:
    """Arguments as (key, text of the value).

    Raises:
        UserError: if an argument has another form.
    """
    return split(arguments, partial(spelled_key, command), flags(command))


def draft(command: Command, arguments: Sequence[str]) -> Draft:
    """`compose` without the check that nothing is missing."""
    pairs, chosen, paths = _choose(command, split_arguments(command, arguments))
    usual, files = _default_choices(command), _files(command, chosen)
    selection = []
    for group, choice in chosen.items():
        if choice == "???" or group in files:
            selection += [f"~{group}"] if usual[group] is not None else []
        elif choice is not None:
            selection.append(f"{group}={choice}")
    root = command.root if (command.configs / f"{command.root}.yaml").is_file() else None
    with _registered_choices(command), initialize_config_dir(str(command.configs), version_base="1.3"):
        composed = hydra_compose(root, selection)
    # As plain values: Hydra's config refuses new entries in the dicts of an option.
    plain = cast(dict[str, Any], OmegaConf.to_container(composed))
    values = OmegaConf.create({**plain, **files})
    made = Draft(command, _structured(command, chosen, values), chosen)
    for group, path in paths.items():
        assign(made, Override(f"{group}.path", path, path))
    for key, text in pairs:
        check_key(made, key, text)
        assign(made, parse(key, as_list(made, key, text)))
    return made


def _choose(
    command: Command, pairs: list[tuple[str, str]]
) -> tuple[list[tuple[str, str]], dict[str, str | None], dict[str, str]]:
    """Take the choices of groups out of the arguments; the last of several counts.

    Returns:
        The other arguments; the choice of each group; the path of each group that was chosen by one.
    """
    chosen = _default_choices(command)
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
        elif choice == "null" and _default_choices(command)[key] is None:
            chosen[key] = None
        elif "run" in valid and ("/" in choice or Path(choice).exists()):
            # A path in place of a name: something that an earlier run made.
            chosen[key] = "run"
            paths[key] = choice
        else:
            raise unknown_choice(key, choice, valid)
    return values, chosen, paths


def _files(command: Command, chosen: Mapping[str, str | None]) -> dict[str, dict[str, Any]]:
    """The plain values of the user's own files and of `NO_FILE`, which Hydra does not find."""
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
def _registered_choices(command: Command) -> Iterator[None]:
    """The choices that have no YAML file are in Hydra's ConfigStore, as their dataclasses."""
    store = ConfigStore.instance()
    for group, schemas in command.groups.items():
        for choice, schema in schemas.items():
            if choice != "*" and not (command.configs / group / f"{choice}.yaml").is_file():
                store.store(choice, schema, group)
    try:
        yield
    finally:
        for group in command.groups:
            store.repo.pop(group, None)


def _default_choices(command: Command) -> dict[str, str | None]:
    """The defaults list of the command's YAML."""
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
    """Plain values under the dataclasses of the command and of the chosen groups."""
    typed = OmegaConf.structured(command.config)
    for group, choice in chosen.items():
        schema = command.schema(group, choice) if choice not in (None, "???") else None
        typed[group] = OmegaConf.structured(schema) if schema else None
    try:
        merged = OmegaConf.merge(typed, values)
    except OmegaConfBaseException as error:
        raise UserError(f"{_choices_text(chosen)} do not go together: {_first_line(error)}") from error
    assert isinstance(merged, DictConfig)
    return merged


def _finish(made: Draft) -> tuple[Any, dict[str, Any]]:
    try:
        plain = OmegaConf.to_container(made.values, resolve=True, enum_to_str=True)
        with mistakes():
            typed = OmegaConf.to_object(made.values)
    except OmegaConfBaseException as error:
        raise UserError(
            f"{getattr(error, 'full_key', None) or made.command.name}: {_first_line(error)}"
        ) from error
    return typed, {**cast(dict[str, Any], plain), "groups": dict(made.chosen)}


def _choices_text(chosen: Mapping[str, str | None]) -> str:
    return ", ".join(f"{group}={choice}" for group, choice in chosen.items())


def _first_line(error: Exception) -> str:
    return str(error).splitlines()[0]
