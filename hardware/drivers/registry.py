"""Drivers by name; the module of one is imported when it is asked for."""

import difflib
import importlib
from typing import cast

import numpy as np

from robot_rl.hardware.clock import Clock
from robot_rl.hardware.config import RobotConfig
from robot_rl.hardware.drivers.base import Driver

DRIVERS: dict[str, str] = {
    "franka": "robot_rl.hardware.drivers.franka:make",
    "sim": "robot_rl.hardware.drivers.sim:make",
    "ur": "robot_rl.hardware.drivers.ur:make",
}
"""The factory of each, `module:function`: it takes a `RobotConfig` and a `Clock` and returns a `Driver`."""


def make_driver(config: RobotConfig, clock: Clock) -> Driver:
    """The driver that a robot's file names, not yet open.

    Raises:
        ValueError: there is no such driver, or the file does not suit it.
    """
    spec = config.spec
    if spec.driver not in DRIVERS:
        near = difflib.get_close_matches(spec.driver, DRIVERS, 1)
        hint = f"did you mean {near[0]}?" if near else f"there are {', '.join(sorted(DRIVERS))}"
        raise ValueError(f"there is no driver {spec.driver!r}; {hint}")
    module, function = DRIVERS[spec.driver].split(":")
    driver = cast(Driver, getattr(importlib.import_module(module), function)(config, clock))
    position = driver.kinematics.forward(np.array(spec.home)).position
    if (position < spec.limits.workspace_lower).any() or (position > spec.limits.workspace_upper).any():
        raise ValueError(
            f"at home the tool point of {spec.name} is at {position.round(3).tolist()}, outside the "
            f"workspace {list(spec.limits.workspace_lower)} … {list(spec.limits.workspace_upper)}"
        )
    return driver
