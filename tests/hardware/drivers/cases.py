"""Which drivers the conformance suite runs, and how each comes to stand before it."""

import importlib
import os
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import pytest

from robot_rl.hardware.clock import Clock, MonotonicClock, SteppedClock
from robot_rl.hardware.drivers import make_driver
from robot_rl.hardware.drivers.driver import Driver, DriverError
from robot_rl.hardware.drivers.sim import SimDriver
from robot_rl.hardware.robot_file import load_robot

CONFIGS = Path(__file__).resolve().parents[3] / "configs" / "robot"


@dataclass
class Rig:
    """A driver that is not open yet, and what the suite may expect of it."""

    driver: Driver
    clock: Clock
    """The driver's; to sleep on it lets time pass."""
    break_it: Callable[[], str] | None = None
    """Makes the arm report an error, where that can be arranged; returns words that the error has."""
    tolerance: float = 0.005
    """How close to its setpoint the arm settles, in rad, or in m for a cartesian driver."""
    pose_tolerance: float = 0.001
    """How well the arm's own tool point agrees with the kinematics, m."""
    settle: float = 1.0
    """How long that takes, s."""


Case = Callable[[], AbstractContextManager[Rig]]


@contextmanager
def stepped(name: str) -> Iterator[Rig]:
    """A robot's file whose driver goes by its clock alone, in time that the test lets pass."""
    clock = SteppedClock()
    driver = make_driver(load_robot(CONFIGS / f"{name}.yaml"), clock)
    if isinstance(driver, SimDriver):
        yield Rig(driver, clock, break_it=partial(_break_sim, driver), tolerance=0.001)
    else:
        yield Rig(driver, clock)


def _break_sim(driver: SimDriver) -> str:
    driver.inject(DriverError("joint 3 felt a wall"))
    return "wall"


@contextmanager
def real_time(name: str) -> Iterator[Rig]:
    """Any robot's file, in real time."""
    yield Rig(make_driver(load_robot(CONFIGS / f"{name}.yaml"), MonotonicClock()), MonotonicClock())


@contextmanager
def simulated(name: str, library: str) -> Iterator[Rig]:
    """The driver of a real arm, with its library, against an arm in its own process."""
    pytest.importorskip(library)
    # Only now: it needs this module.
    fake = importlib.import_module(f"tests.hardware.fakes.{name}")
    with fake.rig() as rig:
        yield rig


CASES: dict[str, Case] = {
    "sim_panda": partial(stepped, "sim_panda"),
    "sim_ur5e": partial(stepped, "sim_ur5e"),
    "franka": partial(simulated, "franka", "franky_sim"),
    "ur5e": partial(simulated, "ur", "rtde_control"),
}
LONG = {"franka", "ur5e"}
"""In real time, where it takes minutes: for the full tests."""

# A real arm moves: it joins only when somebody who stands beside it names its file.
if named := os.environ.get("ROBOT_RL_TEST_ROBOT"):
    CASES[named] = partial(real_time, named)
    LONG.discard(named)
