"""Drivers of arms: the registry by name. A driver's module is imported when it is used."""

import difflib
import importlib
from typing import cast

import numpy as np

from robot_rl.hardware.clock import Clock
from robot_rl.hardware.drivers.driver import Driver
from robot_rl.hardware.robot_file import RobotConfig

DRIVERS: dict[str, str] = {
    "franka": "robot_rl.hardware.drivers.franka:make",
    "sim": "robot_rl.hardware.drivers.sim:make",
    "ur": "robot_rl.hardware.drivers.ur:make",
}
"""Factory of each driver, `module:function`: takes a `RobotConfig` and a `Clock`, returns a `Driver`."""


def make_driver(config: RobotConfig, clock: Clock) -> Driver:
    """Create the driver that a robot's file names; it is not open yet.

    Raises:
        ValueError: if there is no such driver or the file does not suit it.
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
