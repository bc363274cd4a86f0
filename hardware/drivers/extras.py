"""Imports optional vendor libraries that only one driver or device needs."""

import importlib
from typing import Any


def needed(module: str, extra: str) -> Any:
    """Import a module that is installed by `extra` of this project.

    Raises:
        ValueError: if it cannot be imported; the message says how to install it.
    """
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise ValueError(f"this arm needs {module} ({error}): pip install 'robot-rl[{extra}]'") from error
