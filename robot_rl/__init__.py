"""Robot learning: a base policy from demonstrations, improved by reinforcement learning, deployed.

The public API. Each name is imported when it is first used: `from robot_rl import make_env`.
"""

from importlib import import_module
from typing import Any

__version__ = "0.1.0"

_EXPORTS: dict[str, str] = {
    "RecorderProcess": "robot_rl.hardware.recording.recorder_process",
    "RobotClient": "robot_rl.hardware.client",
    "UserError": "robot_rl.errors",
    "asset_path": "robot_rl.assets",
    "load_dataset": "robot_rl.data.dataset",
    "load_group": "robot_rl.cli.compose",
    "load_policy": "robot_rl.saved_policies.loading",
    "make_env": "robot_rl.factory",
    "make_vector_env": "robot_rl.factory",
}
"""Name → module that defines it."""

__all__ = ["__version__", *_EXPORTS]


def __getattr__(name: str) -> Any:
    if name not in _EXPORTS:
        raise AttributeError(f"module 'robot_rl' has no attribute {name!r}")
    # Before MuJoCo is imported, which then chooses how it renders: without a display its default fails.
    import_module("robot_rl.graphics").choose_backend()
    value = getattr(import_module(_EXPORTS[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *_EXPORTS})
