"""Checks the options of an actor: those of the learner, and those that an actor replaces."""

from typing import Final

from robot_rl.hil.config import NO_OPERATOR, SCRIPTED, HilConfig
from robot_rl.robot.deploy.resets import RESETS
from robot_rl.robot.operators.person import MOTION_DEVICES, device_settings

_WEB: Final = "web"


def check_actor(config: HilConfig) -> None:
    """Raises ValueError if there is no such operator or reset, or if options contradict each other."""
    if config.reset not in (None, *RESETS):
        raise ValueError(f"hil.reset={config.reset}: choose {', '.join(RESETS)}")
    operators = [*MOTION_DEVICES, SCRIPTED, NO_OPERATOR]
    if config.operator not in operators:
        raise ValueError(
            f"hil.operator={config.operator}: choose {', '.join(operators)}; "
            "the device must give motions of the tool"
        )
    if config.has_person:
        device_settings(config.operator, config.device)
    elif config.device:
        raise ValueError(
            f"hil.device is for a device, and hil.operator={config.operator} is none: leave it out"
        )
    if config.operator == _WEB and not config.robot:
        raise ValueError(
            "hil.operator=web requires a robot server: give hil.robot=…, e.g. the address of "
            "`robot-rl robot task=…`"
        )
