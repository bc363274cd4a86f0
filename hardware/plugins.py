"""Imports user modules that add to the registries: `plugins=[my_package.my_tasks]`.

A module registers what it defines when it is imported: a robosuite environment by its class, an expert in
`robot_rl.envs.experts.EXPERTS`, a driver in `robot_rl.hardware.drivers.DRIVERS`, a device in
`robot_rl.hardware.teleop.devices.DEVICES`. Plugins run with the user's rights; only the command line and the
environment variable can name them, never a data file.
"""

import importlib
import importlib.util
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from traceback import extract_tb
from typing import Final

VARIABLE: Final = "ROBOT_RL_PLUGINS"
"""Environment variable with the comma-separated plugins of this process and its children."""


def inherited_plugins() -> list[str]:
    """Names of the plugins in the environment variable."""
    return [name for name in os.environ.get(VARIABLE, "").split(",") if name]


def load_plugins(names: Sequence[str] = ()) -> None:
    """Import these modules and those of the environment variable, and set it for child processes.

    Modules are found among the installed packages, then in the current folder.

    Raises:
        ValueError: if there is no such module, or its import fails.
    """
    wanted = list(dict.fromkeys([*inherited_plugins(), *names]))
    if not wanted:
        return
    here = str(Path.cwd())
    if here not in sys.path:
        # Last, so that a file there never hides a package.
        sys.path.append(here)
    for name in wanted:
        _load(name)
    os.environ[VARIABLE] = ",".join(wanted)


def _load(name: str) -> None:
    if name.endswith(".py") or not all(part.isidentifier() for part in name.split(".")):
        hint = f"; write {name.removesuffix('.py').replace('/', '.')}" if name.endswith(".py") else ""
        raise ValueError(
            f"plugins={name}: give a module name as in an import, like my_package.my_tasks{hint}"
        )
    try:
        importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name is None or not (name == error.name or name.startswith(f"{error.name}.")):
            raise ValueError(f"plugins={name}: it needs {error.name}, which is not installed") from error
        raise ValueError(
            f"plugins={name}: there is no module {error.name}, neither installed nor in {Path.cwd()}"
        ) from error
    except Exception as error:
        where = extract_tb(error.__traceback__)[-1]
        raise ValueError(
            f"plugins={name}: {type(error).__name__} when it was imported, {where.filename}:{where.lineno}: "
            f"{error}; ROBOT_RL_DEBUG=1 shows the traceback"
        ) from error
