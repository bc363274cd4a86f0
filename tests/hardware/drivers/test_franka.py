"""The driver of Franka arms, against franky-sim in its own process. Times are the arm's own."""

import os
import signal
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from robot_rl.hardware.clock import MonotonicClock
from robot_rl.hardware.drivers import make_driver
from robot_rl.hardware.drivers.driver import Array, DriverError, Pose
from robot_rl.hardware.drivers.franka import FrankaDriver, make
from robot_rl.hardware.drivers.franka_gripper import FrankaGripper
from robot_rl.hardware.drivers.franka_link import FrankaLink, FrankaOptions
from robot_rl.hardware.realtime import ARM, missing_rights
from robot_rl.hardware.robot_file import checked_struct, load_robot
from tests.hardware.drivers.cases import CONFIGS
from tests.hardware.drivers.conftest import MOVING
from tests.hardware.drivers.motion import Motion
from tests.hardware.fakes.arm_process import PATIENCE, PATIENT_WATCHDOG, ArmClock, SimulatedArm, until
from tests.hardware.fakes.franka import ROBOT, config

pytest.importorskip("franky", reason="franky-control is not installed")
pytest.importorskip("franky_sim", reason="franky-sim is not installed")

KIND = "franka"
"""Of the simulated arm, for the fixtures."""
RESTING = 0.01
"""rad/s"""
WATCHDOG = 1.0
"""s of the arm's time, which goes on while this process waits for the processor."""


@pytest.fixture
def driver(arm: SimulatedArm) -> Iterator[FrankaDriver]:
    driver = make(config(arm.host, watchdog=WATCHDOG), ArmClock(arm))
    driver.open()
    yield driver
    driver.close()


def at_rest(arm: SimulatedArm) -> bool:
    return not arm.state()["moving"] and arm.speed < RESTING


def under_way(arm: SimulatedArm, motion: Motion) -> Array:
    """Enable the arm and bring it into motion. Returns where it is going."""
    start = arm.q
    end = start + np.array([0.2, 0, 0, 0, 0, 0, 0])
    motion.driver.enable()
    for _ in motion.go(start, end, 0.6):
        if arm.q[0] > start[0] + 0.05:
            break
    assert arm.speed > MOVING
    return end


def test_the_kinematics_put_the_tool_point_where_the_arm_puts_it(
    arm: SimulatedArm, driver: FrankaDriver
) -> None:
    measured = driver.read()
    ours = driver.kinematics.forward(measured.q)
    assert measured.q == pytest.approx(arm.q, abs=1e-4)
    assert ours.position == pytest.approx(measured.pose.position, abs=1e-4)
    assert abs(ours.quaternion @ measured.pose.quaternion) == pytest.approx(1, abs=1e-6)


def test_its_tool_point_is_that_of_the_simulated_panda() -> None:
    ours, simulated = (
        make_or_sim.kinematics
        for make_or_sim in (
            make(load_robot(ROBOT), MonotonicClock()),
            make_driver(load_robot(CONFIGS / "sim_panda.yaml"), MonotonicClock()),
        )
    )
    for q in ([0.1, -0.5, 0.2, -2.0, 0.3, 1.7, 0.5], [-0.4, 0.3, 0.1, -1.5, -0.6, 2.2, -1.0]):
        a, b = ours.forward(np.array(q)), simulated.forward(np.array(q))
        assert a.position == pytest.approx(b.position, abs=0.001)
        assert abs(a.quaternion @ b.quaternion) == pytest.approx(1, abs=1e-6)


def test_an_arm_that_does_not_take_the_tool_is_refused(
    arm: SimulatedArm, monkeypatch: pytest.MonkeyPatch
) -> None:
    driver = make(config(arm.host), ArmClock(arm))
    shifted = make(config(arm.host, tool=[0, 0, 0.12, 0, 0, 0, 1]), ArmClock(arm))
    monkeypatch.setattr(driver, "_kinematics", shifted.kinematics)
    with pytest.raises(DriverError, match=r"tool point at .* away: correct options\.tool"):
        driver.open()
    with pytest.raises(DriverError, match="not open"):
        driver.read()


def test_it_holds_still_when_it_is_enabled(arm: SimulatedArm, motion: Motion) -> None:
    before = arm.q
    motion.driver.enable()
    assert arm.state()["moving"], "it is not under torque control"
    measured = motion.rest(0.15, before)
    assert measured.q == pytest.approx(before, abs=0.005)
    assert arm.speed < RESTING


def test_it_follows_a_stream_of_setpoints(arm: SimulatedArm, motion: Motion) -> None:
    start = arm.q
    end = start + 0.1
    motion.driver.enable()
    behind = 0.0
    for number, _ in enumerate(motion.go(start, end, 0.6), 1):
        part = number / 120
        setpoint = motion.between(start, end, part**3 * (10 - 15 * part + 6 * part**2))
        behind = max(behind, float(np.abs(arm.q - setpoint).max()))
    assert behind < 0.05
    measured = motion.rest(0.2, end)
    assert measured.q == pytest.approx(end, abs=0.01)
    assert measured.q == pytest.approx(arm.q, abs=0.005)
    assert measured.sensors["robot_mode"] == pytest.approx([2])
    assert measured.sensors["control_command_success_rate"] == pytest.approx([1])
    assert measured.tau.shape == (7,)
    assert measured.wrench.shape == (6,)


def test_a_measurement_that_does_not_come_grows_old_and_is_a_fault_in_the_end(
    arm: SimulatedArm, motion: Motion
) -> None:
    before = arm.q
    motion.driver.enable()
    motion.rest(0.05, before)
    arm.tell("silent on")
    times: list[int] = []
    with pytest.raises(DriverError, match=r"Timeout|communication_constraints|Net Exception"):
        until(lambda: times.append(motion.driver.read().t))  # type: ignore[func-returns-value]
    # One state may have been on its way.
    assert len(set(times)) <= 2
    with pytest.raises(DriverError):
        motion.driver.read()


def test_a_stop_in_motion_ends_in_rest_and_setpoints_are_ignored(arm: SimulatedArm, motion: Motion) -> None:
    end = under_way(arm, motion)
    began = motion.clock.now()
    motion.driver.stop()
    until(lambda: at_rest(arm))
    assert motion.clock.now() - began < 1.0e9
    rested = arm.q
    assert rested[0] < end[0] - 0.03
    motion.rest(0.1, end)
    assert arm.q == pytest.approx(rested, abs=0.005)
    motion.driver.enable()
    assert motion.rest(0.1, rested).q == pytest.approx(rested, abs=0.01)


class SoonLost(FrankaDriver):
    """Its control thread loses the connection as soon as `stop` has looked whether there is one."""

    soon_lost = False
    _kept: FrankaLink | None = None

    @property
    def _link(self) -> FrankaLink | None:
        link = self._kept
        if self.soon_lost:
            self._kept = None
        return link

    @_link.setter
    def _link(self, link: FrankaLink | None) -> None:
        self._kept = link


def test_a_stop_while_the_control_thread_loses_the_connection_is_sent(arm: SimulatedArm) -> None:
    own = config(arm.host, watchdog=PATIENT_WATCHDOG)
    driver = SoonLost(own.spec, checked_struct(own.options, FrankaOptions, "options"), ArmClock(arm))
    driver.open()
    link = driver._link
    driver.enable()
    driver.soon_lost = True
    driver.stop()
    until(lambda: at_rest(arm))
    driver.soon_lost, driver._link = False, link
    driver.close()


def test_a_hand_whose_connection_the_control_thread_loses_is_a_fault_of_the_hand() -> None:
    class SoonLost(FrankaGripper):
        """Loses its connection as soon as somebody has looked whether there is one."""

        _kept: object = "a hand"

        @property
        def _connection(self) -> object:
            kept, self._kept = self._kept, None
            return kept

        @_connection.setter
        def _connection(self, connection: object) -> None: ...

    spec = load_robot(ROBOT).spec.gripper
    assert spec is not None
    hand = SoonLost(None, "nowhere", spec)
    assert hand._hand() == "a hand"
    with pytest.raises(DriverError, match="not connected"):
        hand._hand()


def test_a_stop_from_another_thread_holds_against_a_stream_that_goes_on(
    arm: SimulatedArm, motion: Motion
) -> None:
    end = under_way(arm, motion)
    caller = threading.Thread(target=motion.driver.stop)
    caller.start()
    while caller.is_alive():
        motion.driver.write(arm.q)
    for _ in motion.go(arm.q, end, 0.3):
        pass
    until(lambda: at_rest(arm))
    assert arm.q[0] < end[0] - 0.03


def test_without_setpoints_the_arms_own_loop_brings_it_to_rest(
    arm: SimulatedArm, driver: FrankaDriver, motion: Motion
) -> None:
    end = under_way(arm, motion)
    began = motion.clock.now()
    # Python does nothing for the arm from here on.
    until(lambda: at_rest(arm))
    assert motion.clock.now() - began < (WATCHDOG + 1.0) * 1e9
    rested = arm.q
    with pytest.raises(DriverError, match=r"stopped itself: no setpoint for 1\.0 s"):
        driver.read()
    with pytest.raises(DriverError, match="no setpoint"):
        driver.write(end)
    driver.recover()
    motion.rest(0.1, end)
    assert arm.q == pytest.approx(rested, abs=0.005)


def test_a_setpoint_that_comes_too_late_does_not_move_the_arm_again(
    arm: SimulatedArm, driver: FrankaDriver
) -> None:
    driver.enable()
    before = arm.q
    arm.wait(WATCHDOG + 0.02)
    with pytest.raises(DriverError, match=r"no setpoint for \d+\.\d+ s"):
        driver.write(before + 0.05)
    until(lambda: at_rest(arm))
    with pytest.raises(DriverError, match="no setpoint"):
        driver.write(before + 0.05)
    arm.wait(0.1)
    assert arm.q == pytest.approx(before, abs=0.01)


def test_a_killed_server_leaves_the_arm_at_rest(arm: SimulatedArm, streamer: subprocess.Popen[str]) -> None:
    streamer.kill()
    assert streamer.wait(PATIENCE) == -signal.SIGKILL
    began, moved = ArmClock(arm).now(), arm.q
    until(lambda: at_rest(arm))
    assert ArmClock(arm).now() - began < 1.0e9
    assert arm.q == pytest.approx(moved, abs=0.1)


def test_a_frozen_server_is_stopped_by_the_arm_and_does_not_go_on_when_it_thaws(
    arm: SimulatedArm, streamer: subprocess.Popen[str]
) -> None:
    streamer.send_signal(signal.SIGSTOP)
    until(lambda: at_rest(arm))
    assert arm.state()["error"] == "communication_constraints_violation"
    rested = arm.q
    streamer.send_signal(signal.SIGCONT)
    assert streamer.wait(PATIENCE) == 1
    assert arm.q == pytest.approx(rested, abs=0.005)


def test_a_reflex_is_named_and_stays_until_it_is_recovered(
    arm: SimulatedArm, driver: FrankaDriver, motion: Motion
) -> None:
    end = under_way(arm, motion)
    arm.tell("reflex cartesian_reflex")
    with pytest.raises(DriverError, match="cartesian_reflex"):
        motion.rest(0.3, end)
    for refused in (driver.read, driver.enable, lambda: driver.write(end)):
        with pytest.raises(DriverError, match="cartesian_reflex"):
            refused()
    driver.stop()
    assert arm.state()["error"] == "cartesian_reflex"
    until(lambda: at_rest(arm))
    rested = arm.q
    driver.recover()
    assert arm.state()["error"] is None
    motion.rest(0.05, end)
    assert arm.q == pytest.approx(rested, abs=0.005)
    driver.enable()
    assert motion.rest(0.1, rested).q == pytest.approx(rested, abs=0.01)


def test_a_pressed_stop_button_must_be_released_first(arm: SimulatedArm, driver: FrankaDriver) -> None:
    arm.tell("user_stop on")
    with pytest.raises(DriverError, match="user stop is pressed"):
        driver.enable()
    with pytest.raises(DriverError, match="user stop is pressed"):
        driver.recover()
    arm.tell("user_stop off")
    with pytest.raises(DriverError, match="user stop is pressed"):
        driver.read()
    driver.recover()
    assert driver.read().q == pytest.approx(arm.q, abs=1e-4)


def test_a_lost_connection_is_a_fault_and_recovery_connects_anew(
    arm: SimulatedArm, driver: FrankaDriver, motion: Motion
) -> None:
    def read_all() -> None:
        # States that were sent before may still wait to be read.
        for _ in range(1000):
            driver.read()

    arm.tell("silent on")
    with pytest.raises(DriverError, match="no state from the arm"):
        read_all()
    with pytest.raises(DriverError, match="cannot connect"):
        driver.recover()
    arm.tell("silent off")
    with pytest.raises(DriverError, match="no state from the arm"):
        driver.read()
    driver.recover()
    assert driver.read().q == pytest.approx(arm.q, abs=1e-4)
    driver.enable()
    assert motion.rest(0.05, arm.q).q == pytest.approx(arm.q, abs=0.005)
    assert driver.gripper is not None
    assert driver.gripper.read() == pytest.approx(arm.state()["width"] / 0.08, abs=0.01)


def test_recover_without_a_fault_changes_nothing(arm: SimulatedArm, motion: Motion) -> None:
    before = arm.q
    motion.driver.enable()
    motion.driver.recover()
    assert arm.state()["moving"]
    assert motion.rest(0.05, before).q == pytest.approx(before, abs=0.005)


@pytest.mark.parametrize(
    "setpoint", [np.zeros(6), np.full(7, np.nan), Pose(np.zeros(3), np.array([0, 0, 0, 1.0]))]
)
def test_what_is_no_setpoint_is_refused(driver: FrankaDriver, setpoint: Array | Pose) -> None:
    driver.enable()
    with pytest.raises(DriverError, match=r"takes 7 finite joints|takes joints"):
        driver.write(setpoint)


def test_it_can_be_closed_twice_and_opened_again(arm: SimulatedArm, driver: FrankaDriver) -> None:
    driver.enable()
    driver.close()
    driver.close()
    until(lambda: at_rest(arm))
    for refused in (driver.read, driver.enable, driver.recover):
        with pytest.raises(DriverError, match="not open"):
            refused()
    driver.open()
    assert driver.read().q == pytest.approx(arm.q, abs=1e-4)


def test_an_arm_that_is_not_there_is_named(arm: SimulatedArm) -> None:
    driver = make(config("127.255.255.254"), ArmClock(arm))
    with pytest.raises(DriverError, match=r"cannot connect to the arm at 127\.255\.255\.254"):
        driver.open()


def test_the_hand_goes_to_an_opening_and_says_where_it_is(arm: SimulatedArm, driver: FrankaDriver) -> None:
    assert driver.gripper is not None
    driver.gripper.move(0.6)
    assert driver.gripper.read() == pytest.approx(0.6, abs=0.02)
    assert arm.state()["width"] == pytest.approx(0.048, abs=0.002)


def test_the_hand_holds_what_is_in_its_way(arm: SimulatedArm, driver: FrankaDriver) -> None:
    assert driver.gripper is not None
    arm.tell("block 0.03")
    driver.gripper.move(0.2)
    assert driver.gripper.read() == pytest.approx(0.03 / 0.08, abs=0.03)
    assert arm.state()["grasped"]


def test_a_hand_that_is_stopped_while_it_moves_ends_its_move_without_an_error(
    arm: SimulatedArm, driver: FrankaDriver
) -> None:
    gripper = driver.gripper
    assert gripper is not None
    raised: list[Exception] = []

    def move() -> None:
        try:
            gripper.move(0.9)
        except DriverError as error:
            raised.append(error)

    mover = threading.Thread(target=move)
    mover.start()
    until(lambda: arm.state()["hand_busy"])
    gripper.stop()
    mover.join(PATIENCE)
    assert not mover.is_alive()
    assert not raised
    assert not arm.state()["hand_busy"]


@pytest.mark.skipif(bool(missing_rights()), reason="no right to real-time priority here")
def test_the_arms_own_loop_runs_first_and_the_thread_that_connected_as_before(
    arm: SimulatedArm, motion: Motion
) -> None:
    assert os.sched_getscheduler(0) == os.SCHED_OTHER
    before = arm.q
    motion.driver.enable()
    motion.rest(0.1, before)
    threads = [int(thread.name) for thread in Path("/proc/self/task").iterdir()]
    assert ARM in {os.sched_getparam(thread).sched_priority for thread in threads}
    assert os.sched_getscheduler(0) == os.SCHED_OTHER
