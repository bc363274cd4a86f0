"""The conformance suite of all drivers, applied to a simulated task."""

from collections.abc import Iterator

import pytest

from robot_rl.envs.task import TaskConfig
from robot_rl.envs.task_driver import TaskDriver
from robot_rl.hardware.clock import SteppedClock
from tests.hardware.drivers import test_conformance
from tests.hardware.drivers.cases import Rig
from tests.hardware.drivers.test_conformance import *  # noqa: F403
from tests.hardware.drivers.test_conformance import Timed

STATE_KEYS = ["robot0_eef_pos", "robot0_eef_quat", "robot0_gripper_qpos", "cube_pos"]


@pytest.fixture(scope="module")
def scene() -> tuple[TaskDriver, SteppedClock]:
    clock = SteppedClock()
    return TaskDriver(TaskConfig(name="lift", env="Lift", state_keys=STATE_KEYS), clock), clock


@pytest.fixture
def rig(scene: tuple[TaskDriver, SteppedClock]) -> Iterator[Rig]:
    """Replaces the fixture of the suite: the scene of one seed, closed."""
    driver, clock = scene
    driver.close()
    driver.reset(0)
    # The elbow goes on drifting to its rest when the tool point stands.
    yield Rig(Timed(driver), clock, settle=3.0)
    driver.close()


def test_the_suite_is_here() -> None:
    asked = {name for name in vars(test_conformance) if name.startswith("test_")}
    assert asked
    assert asked <= globals().keys()
