"""What cannot work with somebody who may take over."""

from typing import Any, Final

from robot_rl.hardware.protocol.endpoints import parse
from robot_rl.hardware.teleop.devices import DEVICES
from robot_rl.hil.config import NOBODY, SCRIPTED, HilConfig
from robot_rl.hil.operators.device import device_settings
from robot_rl.learning.config import OffPolicyConfig

_PAGE: Final = "web"
_JOINTS: Final = "leader"
"""A leader arm gives joints, of which no action is made."""


def refuse_what_cannot_work(config: HilConfig, method: Any) -> None:
    """Raises ValueError for a combination that no actor could run."""
    if not isinstance(method, OffPolicyConfig):
        raise ValueError(
            f"method={method.name} does not learn from what others did: hil=on goes with "
            "residual, residual_chunk, expo, dsrl, dsrl_na, ibrl and rlpd"
        )
    operators = [*(name for name in DEVICES if name != _JOINTS), SCRIPTED, NOBODY]
    if config.operator not in operators:
        raise ValueError(
            f"hil.operator={config.operator}: choose {', '.join(operators)}; "
            "it has to give motions of the tool"
        )
    if config.has_person:
        device_settings(config.operator, config.device)
    elif config.device:
        raise ValueError(
            f"hil.device is for somebody at a device, and hil.operator={config.operator}: leave it out"
        )
    if config.operator == _PAGE and not config.robot:
        raise ValueError(
            "hil.operator=web shows a robot's server and can stop it: give hil.robot=…, as of "
            "`robot-rl robot task=…`"
        )
    if method.num_envs != 1:
        raise ValueError(
            f"method.num_envs={method.num_envs}: somebody who may take over watches one arm; "
            "leave it out with hil=on, or set it to 1"
        )
    if max(method.demo_ratios) > 0 and method.replay_capacity < method.steps:
        raise ValueError(
            f"method.replay_capacity={method.replay_capacity} is less than method.steps={method.steps}: "
            "interventions would be overwritten; give it as many rows"
        )
    if config.link and not parse(config.link).is_loopback and not config.keys:
        raise ValueError(
            f"hil.link={config.link} can be reached from a network: give hil.keys=…, a directory that "
            "`robot-rl robot keys` makes"
        )
    if config.keys and not config.remote:
        raise ValueError("hil.keys are for a network: give hil.link=tcp://…, or leave them out")
