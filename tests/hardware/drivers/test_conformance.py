"""What every driver promises (hardware/drivers/driver.py), asked of each one that can run here."""

import itertools
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

from robot_rl.hardware.drivers.driver import Array, DriverError, Measurement, Pose
from tests.hardware.drivers.cases import CASES, LONG, Rig
from tests.hardware.drivers.motion import Motion

LONGEST_CALL = 2.0
"""s. A tick is far less, but the machine that tests may be busy with other things."""
CALLS_IN_A_TICK = ("enable", "read", "write", "stop")
AT_REST = 0.01
"""rad/s"""


class Timed:
    """A driver whose calls are timed."""

    def __init__(self, driver: Any) -> None:
        self._driver = driver
        self.longest: dict[str, float] = {}

    def __getattr__(self, name: str) -> Any:
        value = getattr(self._driver, name)
        return self._timed(name, value) if name in CALLS_IN_A_TICK else value

    def _timed(self, name: str, call: Callable[..., Any]) -> Callable[..., Any]:
        def timed(*arguments: Any) -> Any:
            begun = time.monotonic()
            try:
                return call(*arguments)
            finally:
                self.longest[name] = max(self.longest.get(name, 0), time.monotonic() - begun)

        return timed


@pytest.fixture(
    params=[pytest.param(name, marks=[pytest.mark.full] if name in LONG else []) for name in sorted(CASES)]
)
def rig(request: pytest.FixtureRequest) -> Iterator[Rig]:
    """A closed driver. Whatever a test does, no call may wait and the arm is left disconnected."""
    with CASES[request.param]() as rig:
        timed = Timed(rig.driver)
        rig.driver = timed
        yield rig
        timed.close()
        assert {name: t for name, t in timed.longest.items() if t > LONGEST_CALL} == {}


@pytest.fixture
def arm(rig: Rig) -> Motion:
    """An open arm."""
    rig.driver.open()
    return Motion(rig)


def test_opening_moves_nothing_and_takes_no_setpoints(arm: Motion) -> None:
    start = arm.rest(0.1)
    away = arm.shifted(arm.here(start))
    for measured in arm.ticks(0.5, away):
        assert arm.distance(measured, arm.here(start)) < arm.rig.tolerance


def test_a_measurement_has_the_shapes_and_units_of_the_spec(arm: Motion) -> None:
    spec = arm.driver.spec
    n = len(spec.joints)
    for measured in arm.ticks(0.2):
        assert measured.q.shape == measured.dq.shape == (n,)
        assert measured.tau.shape in ((n,), (0,))
        assert measured.wrench.shape in ((6,), (0,))
        assert {name: value.shape for name, value in measured.sensors.items()} == {
            name: (size,) for name, size in spec.sensors.items()
        }
        pose = measured.pose
        parts = [measured.q, measured.dq, measured.tau, measured.wrench, pose.position, pose.quaternion]
        for part in [*parts, *measured.sensors.values()]:
            assert part.dtype == np.float64
            assert np.isfinite(part).all()
        assert pose.position.shape == (3,)
        assert abs(np.linalg.norm(pose.quaternion) - 1) < 1e-6
        # Degrees would be far outside of ranges in radians, and so would joints in another order.
        assert (measured.q >= np.array(spec.limits.joint_lower) - 0.1).all()
        assert (measured.q <= np.array(spec.limits.joint_upper) + 0.1).all()
        assert np.abs(measured.dq).max() < AT_REST


def test_measurements_are_fresh_and_their_times_go_forward(arm: Motion) -> None:
    before = arm.rest(0.05)
    times = [before.t]
    for measured in arm.ticks(0.5):
        age = arm.clock.now() - measured.t
        assert 0 <= age < 1e9 * LONGEST_CALL
        times.append(measured.t)
    steps = np.diff(times)
    assert (steps >= 0).all()
    assert times[-1] - times[0] > 0.2e9


def test_what_was_measured_does_not_change_afterwards(arm: Motion) -> None:
    first = arm.rest(0.02)
    arm.driver.enable()
    parts = [first.q, first.dq, first.pose.position]
    kept = [part.copy() for part in parts]
    for _ in arm.go(arm.here(first), arm.shifted(arm.here(first))):
        pass
    assert all(
        np.array_equal(a, b) for a, b in zip(kept, [first.q, first.dq, first.pose.position], strict=True)
    )


def test_the_measured_pose_is_that_of_the_kinematics(arm: Motion) -> None:
    start = arm.here(arm.rest(0.05))
    arm.driver.enable()
    for _ in arm.go(start, arm.shifted(start)):
        pass
    measured = arm.rest(arm.rig.settle, arm.shifted(start))
    pose = arm.driver.kinematics.forward(measured.q)
    assert np.linalg.norm(pose.position - measured.pose.position) < arm.rig.pose_tolerance
    # Half of the angle between them; q and -q are the same rotation.
    assert abs(float(pose.quaternion @ measured.pose.quaternion)) > np.cos(0.02 / 2)


def test_the_kinematics_find_the_way_back(arm: Motion) -> None:
    kinematics, near = arm.driver.kinematics, arm.rest(0.02).q
    goal = near + 0.02 * np.where(near > 0, -1, 1)
    pose = kinematics.forward(goal)
    found = kinematics.inverse(pose, near)
    assert found is not None
    assert np.abs(found - near).max() < 0.1
    reached = kinematics.forward(found)
    assert np.linalg.norm(reached.position - pose.position) < 5e-4
    assert abs(float(reached.quaternion @ pose.quaternion)) > np.cos(5e-3 / 2)
    far = Pose(pose.position + np.array([100.0, 0, 0]), pose.quaternion)
    assert kinematics.inverse(far, near) is None


def test_enabling_holds_still(arm: Motion) -> None:
    start = arm.here(arm.rest(0.1))
    arm.driver.enable()
    for measured in arm.ticks(0.5, start):
        assert arm.distance(measured, start) < arm.rig.tolerance


def test_it_moves_to_its_setpoint_and_settles(arm: Motion) -> None:
    start = arm.here(arm.rest(0.1))
    end = arm.shifted(start)
    arm.driver.enable()
    whole = arm.distance(arm.rest(0.02, start), end)
    left = [arm.distance(measured, end) for measured in arm.go(start, end)]
    assert left[len(left) // 2] < 0.9 * whole
    measured = arm.rest(arm.rig.settle, end)
    assert arm.distance(measured, end) < arm.rig.tolerance < whole / 2
    assert np.abs(measured.dq).max() < AT_REST


def test_it_takes_a_setpoint_one_tick_away(arm: Motion) -> None:
    start = arm.here(arm.rest(0.1))
    near = arm.one_tick_away(start)
    arm.driver.enable()
    arm.rest(0.1, start)
    assert arm.distance(arm.rest(arm.rig.settle, near), near) < arm.rig.tolerance


def _under_way(arm: Motion) -> tuple[Measurement, Array | Pose]:
    """The arm in the middle of a motion, and its end."""
    start = arm.here(arm.rest(0.1))
    end = arm.shifted(start)
    arm.driver.enable()
    way = arm.go(start, end)
    measured = next(itertools.islice(way, round(arm.driver.spec.rate / 2), None))
    assert np.abs(measured.dq).max() > AT_REST
    return measured, end


def _assert_takes_no_setpoints(arm: Motion) -> None:
    rest = arm.here(arm.rest(0.02))
    for measured in arm.ticks(0.5, arm.shifted(rest)):
        assert arm.distance(measured, rest) < arm.rig.tolerance


def _assert_goes_where_it_is_told(arm: Motion) -> None:
    rest = arm.here(arm.rest(0.02))
    end = arm.shifted(rest, 0.5)
    arm.driver.enable()
    for _ in arm.go(rest, end):
        pass
    assert arm.distance(arm.rest(arm.rig.settle, end), end) < arm.rig.tolerance


def test_a_stop_comes_to_rest_and_setpoints_are_ignored_until_enabled(arm: Motion) -> None:
    moving, end = _under_way(arm)
    arm.driver.stop()
    stopped = arm.rest(arm.rig.settle, end)
    assert np.abs(stopped.dq).max() < AT_REST
    assert arm.distance(stopped, arm.here(moving)) < arm.distance(stopped, end)
    _assert_takes_no_setpoints(arm)
    arm.driver.stop()  # a second one is as good as one
    _assert_takes_no_setpoints(arm)
    _assert_goes_where_it_is_told(arm)


def test_a_stop_from_another_thread_is_one(arm: Motion) -> None:
    _, end = _under_way(arm)
    thread = threading.Thread(target=arm.driver.stop)
    thread.start()
    thread.join(LONGEST_CALL)
    assert not thread.is_alive()
    assert np.abs(arm.rest(arm.rig.settle, end).dq).max() < AT_REST
    _assert_takes_no_setpoints(arm)


def test_recovering_without_an_error_changes_nothing(arm: Motion) -> None:
    _under_way(arm)
    arm.driver.stop()
    arm.rest(arm.rig.settle)
    arm.driver.recover()
    _assert_takes_no_setpoints(arm)
    _assert_goes_where_it_is_told(arm)


def test_an_error_is_reported_until_recovery_and_no_motion_follows(arm: Motion) -> None:
    if arm.rig.break_it is None:
        pytest.skip("this arm cannot be broken on purpose")
    _under_way(arm)
    words = arm.rig.break_it()
    for _ in range(3):
        with pytest.raises(DriverError, match=words):
            arm.rest(0.05)
    with pytest.raises(DriverError):
        arm.driver.enable()
    arm.driver.stop()
    arm.driver.recover()
    assert np.abs(arm.rest(arm.rig.settle).dq).max() < AT_REST
    _assert_takes_no_setpoints(arm)
    _assert_goes_where_it_is_told(arm)


def test_what_is_no_setpoint_is_refused_and_moves_nothing(arm: Motion) -> None:
    start = arm.here(arm.rest(0.1))
    arm.driver.enable()
    arm.rest(0.1, start)
    no_pose = Pose(np.full(3, np.nan), np.array([0, 0, 0, 1.0]))
    with pytest.raises(DriverError):
        arm.driver.write(no_pose if isinstance(start, Pose) else start * np.nan)
    for measured in arm.ticks(0.3, start):
        assert arm.distance(measured, start) < arm.rig.tolerance


def test_a_gripper_opens_and_closes(arm: Motion) -> None:
    gripper = arm.driver.gripper
    assert (gripper is None) == (arm.driver.spec.gripper is None)
    if gripper is None:
        pytest.skip("this arm has no gripper")
    for goal in (0.0, 1.0, 0.5):
        gripper.move(goal)
        arm.rest(3.0)
        assert abs(gripper.read() - goal) < 0.1
    gripper.stop()
    arm.rest(0.5)
    assert abs(gripper.read() - 0.5) < 0.1


def test_closing_twice_is_as_good_as_once(arm: Motion) -> None:
    arm.rest(0.1)
    arm.driver.close()
    with pytest.raises(DriverError):
        arm.driver.read()
    arm.driver.close()


def test_what_was_never_opened_says_so_and_closes(rig: Rig) -> None:
    for call in (rig.driver.read, rig.driver.enable):
        with pytest.raises(DriverError):
            call()
    rig.driver.stop()
    rig.driver.close()
