"""The conformance suite is asked too: a driver that breaks a promise does not pass it."""

from collections.abc import Callable
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from robot_rl.hardware.clock import MS, SteppedClock
from robot_rl.hardware.drivers.driver import Array, DriverError, Measurement, Pose
from robot_rl.hardware.drivers.sim import SimDriver
from tests.hardware.drivers import test_conformance as suite
from tests.hardware.drivers.cases import stepped
from tests.hardware.drivers.motion import Motion


class Faulty:
    """The simulated Panda with one call that is not as it should be."""

    def __init__(self, driver: SimDriver) -> None:
        self.driver = driver

    def __getattr__(self, name: str) -> Any:
        return getattr(self.driver, name)


class FollowsWhenDisabled(Faulty):
    """Takes setpoints whether it may or not."""

    def write(self, setpoint: Array | Pose) -> None:
        if not self.driver._enabled:
            self.driver.enable()
        self.driver.write(setpoint)


class MovesAtEnable(Faulty):
    def enable(self) -> None:
        self.driver.enable()
        self.driver.write(self.driver.read().q + 0.05)

    def write(self, setpoint: Array | Pose) -> None:
        pass


class InDegrees(Faulty):
    def read(self) -> Measurement:
        measured = self.driver.read()
        return replace(measured, q=np.degrees(measured.q))


class WithQuaternionsWxyz(Faulty):
    def read(self) -> Measurement:
        measured = self.driver.read()
        pose = Pose(measured.pose.position, np.roll(measured.pose.quaternion, 1))
        return replace(measured, pose=pose)


class WithOldTimes(Faulty):
    def read(self) -> Measurement:
        return replace(self.driver.read(), t=10**9)


class WithTimesAhead(Faulty):
    def read(self) -> Measurement:
        measured = self.driver.read()
        return replace(measured, t=measured.t + 10**9)


class WithOneBuffer(Faulty):
    """Hands out what it overwrites later."""

    def __init__(self, driver: SimDriver) -> None:
        super().__init__(driver)
        self.q = np.zeros(7)

    def read(self) -> Measurement:
        measured = self.driver.read()
        self.q[:] = measured.q
        return replace(measured, q=self.q)


class WithoutSensors(Faulty):
    def read(self) -> Measurement:
        return replace(self.driver.read(), sensors={})


class Limp(Faulty):
    """Falls short of its setpoints."""

    def write(self, setpoint: Array | Pose) -> None:
        assert not isinstance(setpoint, Pose)
        self.driver.write(setpoint - 0.01)


class WithoutBrakes(Faulty):
    def stop(self) -> None:
        pass


class Forgetful(Faulty):
    """Clears its errors itself."""

    def read(self) -> Measurement:
        try:
            return self.driver.read()
        except DriverError:
            self.driver.recover()
            return self.driver.read()


class GoesOnAfterRecovery(Faulty):
    def recover(self) -> None:
        self.driver.recover()
        self.driver.enable()


class TakesAnything(Faulty):
    def write(self, setpoint: Array | Pose) -> None:
        if isinstance(setpoint, Pose) or np.isfinite(setpoint).all():
            self.driver.write(setpoint)


class ReadsWhenClosed(Faulty):
    def read(self) -> Measurement:
        self.driver.open()
        return self.driver.read()


FAULTS: list[tuple[type[Faulty], Callable[[Motion], None]]] = [
    (FollowsWhenDisabled, suite.test_opening_moves_nothing_and_takes_no_setpoints),
    (FollowsWhenDisabled, suite.test_a_stop_comes_to_rest_and_setpoints_are_ignored_until_enabled),
    (FollowsWhenDisabled, suite.test_a_stop_from_another_thread_is_one),
    (MovesAtEnable, suite.test_enabling_holds_still),
    (InDegrees, suite.test_a_measurement_has_the_shapes_and_units_of_the_spec),
    (WithQuaternionsWxyz, suite.test_the_measured_pose_is_that_of_the_kinematics),
    (WithOldTimes, suite.test_measurements_are_fresh_and_their_times_go_forward),
    (WithTimesAhead, suite.test_measurements_are_fresh_and_their_times_go_forward),
    (WithOneBuffer, suite.test_what_was_measured_does_not_change_afterwards),
    (WithoutSensors, suite.test_a_measurement_has_the_shapes_and_units_of_the_spec),
    (Limp, suite.test_it_moves_to_its_setpoint_and_settles),
    (Limp, suite.test_it_takes_a_setpoint_one_tick_away),
    (WithoutBrakes, suite.test_a_stop_comes_to_rest_and_setpoints_are_ignored_until_enabled),
    (Forgetful, suite.test_an_error_is_reported_until_recovery_and_no_motion_follows),
    (GoesOnAfterRecovery, suite.test_recovering_without_an_error_changes_nothing),
    (GoesOnAfterRecovery, suite.test_an_error_is_reported_until_recovery_and_no_motion_follows),
    (TakesAnything, suite.test_what_is_no_setpoint_is_refused_and_moves_nothing),
    (ReadsWhenClosed, suite.test_closing_twice_is_as_good_as_once),
]


@pytest.mark.parametrize(
    ("fault", "test"), FAULTS, ids=[f"{fault.__name__}-{test.__name__[5:]}" for fault, test in FAULTS]
)
def test_a_broken_promise_is_found(fault: type[Faulty], test: Callable[[Motion], None]) -> None:
    with stepped("sim_panda") as rig:
        assert isinstance(rig.driver, SimDriver)
        rig.driver = fault(rig.driver)
        rig.driver.open()
        with pytest.raises((AssertionError, pytest.fail.Exception)):
            test(Motion(rig))


def test_a_call_that_waits_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = SteppedClock()
    monkeypatch.setattr(suite, "time", SimpleNamespace(monotonic=lambda: clock.now() * 1e-9))

    class Waits:
        def read(self) -> None:
            clock.advance(50 * MS)

        def stop(self) -> None:
            pass

    timed = suite.Timed(Waits())
    timed.read()
    timed.stop()
    assert timed.longest == {"read": pytest.approx(0.05), "stop": 0.0}
