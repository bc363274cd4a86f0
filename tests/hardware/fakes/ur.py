"""The simulated UR5e with the driver on its other end."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import msgspec

from robot_rl.hardware.drivers.ur import make
from robot_rl.hardware.robot_file import RobotConfig, load_robot
from tests.hardware.drivers.cases import CONFIGS, Rig
from tests.hardware.fakes.arm_process import PATIENT_WATCHDOG, ArmClock, running

PROGRAM = "ur_controller.py"
ROBOT = CONFIGS / "ur5e.yaml"


def config(host: str, **options: Any) -> RobotConfig:
    """The project's own file for this arm."""
    own = load_robot(ROBOT)
    return msgspec.structs.replace(own, options={**own.options, "host": host, **options})


@contextmanager
def rig() -> Iterator[Rig]:
    """For the conformance suite."""
    with running(PROGRAM) as arm:
        clock = ArmClock(arm)

        def break_it() -> str:
            arm.tell("protective_stop 0")
            return "protective stop"

        yield Rig(make(config(arm.host, watchdog=PATIENT_WATCHDOG), clock), clock, break_it)
