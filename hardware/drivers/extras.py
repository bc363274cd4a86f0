"""Libraries that only one driver needs."""

import importlib
from typing import Any


def needed(module: str, extra: str) -> Any:
    """The module, which comes with an extra of this project.

    Raises:
        ValueError: it cannot be imported.
    """
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise ValueError(f"this arm needs {module} ({error}): pip install 'robot-rl[{extra}]'") from error
