"""The simulated Franka arm with the driver on its other end."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import msgspec

from robot_rl.hardware.drivers.franka import make
from robot_rl.hardware.robot_file import RobotConfig, load_robot
from tests.hardware.drivers.cases import CONFIGS, Rig
from tests.hardware.fakes.arm_process import PATIENT_WATCHDOG, ArmClock, running

PROGRAM = "franka_arm.py"
ROBOT = CONFIGS / "franka.yaml"


def config(host: str, **options: Any) -> RobotConfig:
    """The project's own file for this arm, which needs no real-time kernel."""
    own = load_robot(ROBOT)
    changed = {**own.options, "host": host, "realtime": False, **options}
    return msgspec.structs.replace(own, options=changed)


@contextmanager
def rig() -> Iterator[Rig]:
    """For the conformance suite."""
    with running(PROGRAM) as arm:
        clock = ArmClock(arm)

        def break_it() -> str:
            arm.tell("reflex joint_reflex")
            return "reflex: joint_reflex"

        yield Rig(make(config(arm.host, watchdog=PATIENT_WATCHDOG), clock), clock, break_it, tolerance=0.01)
