"""The user's own configuration files: `task=my_task.yaml`, or `task=my_task` for one in `./configs/task/`."""

from dataclasses import fields
from pathlib import Path
from typing import Any, Final

from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException
from yaml import YAMLError

from robot_rl.assets import asset_path
from robot_rl.errors import UserError, nearest

ALONE: Final = {"task": "task.env"}
"""Groups that need no file: with this key alone they start from the dataclass's defaults."""
NO_FILE: Final = "(no file)"
"""Name of the choice of such a group."""


def own_files(group: str) -> dict[str, Path]:
    """The user's files of a group in the current folder's `configs/`, by name."""
    if Path("configs").resolve() == asset_path("configs").resolve():
        return {}
    return {path.stem: path for path in sorted(Path("configs", group).glob("*.yaml"))}


def find_file(group: str, choice: str) -> Path | None:
    """The user's file that a choice names, by its name or its path; None if it names none.

    Raises:
        UserError: if the choice is a path and there is no such file.
    """
    if (own := own_files(group).get(choice)) is not None:
        return own
    if "/" not in choice and not choice.endswith((".yaml", ".yml")):
        return None
    path = Path(choice)
    if not path.is_file():
        raise UserError(f"{group}={choice}: there is no such file")
    return path


def check_file(group: str, path: Path, schema: type) -> dict[str, Any]:
    """Plain values of a file, checked against the dataclass `schema`; `name` is the file's name by default.

    Raises:
        UserError: if the file cannot be read, a key is unknown, or a value has the wrong type.
    """
    try:
        values = OmegaConf.to_container(OmegaConf.load(path))
    except (OSError, YAMLError, UnicodeDecodeError, OmegaConfBaseException) as error:
        raise UserError(f"{path}: {error}") from error
    if not isinstance(values, dict):
        raise UserError(f"{path}: a {group}'s file is a map of keys to values")
    config = OmegaConf.structured(schema)
    known = [field.name for field in fields(schema)]
    for key, value in ((str(key), value) for key, value in values.items()):
        if key not in known:
            spelled = nearest(key, known)
            hint = f"did you mean {spelled}?" if spelled else f"the keys are {', '.join(known)}"
            raise UserError(f"{path}: there is no key {key}; {hint}")
        try:
            OmegaConf.update(config, key, value)
        except OmegaConfBaseException as error:
            raise UserError(f"{path}: {key}: {str(error).splitlines()[0]}") from error
    named = {"name": path.stem} if "name" in known else {}
    return {**named, **{str(key): value for key, value in values.items()}}
