"""A simulated arm in its own process, for the drivers of real arms.

A test's module names the arm in `KIND` and has the fixture `driver`.
"""

import subprocess
from collections.abc import Iterator

import pytest

from robot_rl.hardware.drivers.driver import Driver
from tests.hardware.drivers.cases import Rig
from tests.hardware.drivers.motion import Motion
from tests.hardware.fakes import franka, ur
from tests.hardware.fakes.arm_process import ArmClock, SimulatedArm, running, streaming

MOVING = 0.06
"""Speed of the fastest joint from which an arm moves, rad/s."""
_PROGRAMS = {"franka": franka.PROGRAM, "ur": ur.PROGRAM}


@pytest.fixture(scope="module")
def simulation(request: pytest.FixtureRequest) -> Iterator[SimulatedArm]:
    with running(_PROGRAMS[request.module.KIND]) as arm:
        yield arm


@pytest.fixture
def arm(simulation: SimulatedArm) -> SimulatedArm:
    simulation.tell("reset")
    return simulation


@pytest.fixture
def motion(arm: SimulatedArm, driver: Driver) -> Motion:
    return Motion(Rig(driver, ArmClock(arm)))


@pytest.fixture
def streamer(request: pytest.FixtureRequest, arm: SimulatedArm) -> Iterator[subprocess.Popen[str]]:
    """Another process that moves the arm."""
    with streaming(request.module.KIND, arm, MOVING) as process:
        yield process
