"""Checks the options of `hil=on` against the method."""

from typing import Any, Final

from robot_rl.hardware.protocol.endpoints import parse
from robot_rl.hil.config import NO_OPERATOR, SCRIPTED, HilConfig
from robot_rl.learning.config import OffPolicyConfig
from robot_rl.methods.method import OffPolicyMethod
from robot_rl.methods.registry import METHODS
from robot_rl.robot.operators.person import MOTION_DEVICES, device_settings

_WEB: Final = "web"


def check_hil_config(config: HilConfig, method: Any) -> None:
    """Raises ValueError if the options contradict each other or the method."""
    if not isinstance(method, OffPolicyConfig):
        raise ValueError(
            f"method={method.name} does not learn from a replay, so not from interventions: hil=on supports "
            + ", ".join(name for name, kind in METHODS.items() if issubclass(kind, OffPolicyMethod))
        )
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
    if method.num_envs != 1:
        raise ValueError(
            f"method.num_envs={method.num_envs}: an operator watches one arm; "
            "leave it out with hil=on, or set it to 1"
        )
    if max(method.demo_ratios) > 0 and method.replay_capacity < method.steps:
        raise ValueError(
            f"method.replay_capacity={method.replay_capacity} is less than method.steps={method.steps}: "
            "interventions would be overwritten; make it as large"
        )
    if config.link and not parse(config.link).is_loopback and not config.keys:
        raise ValueError(
            f"hil.link={config.link} is reachable from a network: give hil.keys=…, a directory made by "
            "`robot-rl robot keys`"
        )
    if config.keys and not config.remote:
        raise ValueError("hil.keys is for a network: give hil.link=tcp://…, or leave it out")
