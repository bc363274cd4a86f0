"""The driver of Universal Robots arms: the real ur_rtde against a small controller in its own process.

What that controller is and is not stands in tests/hardware/fakes/ur_controller.py. Times are the arm's own.
"""

import errno
import os
import signal
import subprocess
from collections.abc import Iterator
from math import cos, sin
from pathlib import Path

import numpy as np
import pytest

from robot_rl.hardware.drivers import ur_client
from robot_rl.hardware.drivers.driver import Array, DriverError, Pose
from robot_rl.hardware.drivers.ur import UrDriver, make
from robot_rl.hardware.drivers.ur_client import UrClient
from robot_rl.hardware.drivers.ur_messages import UrOptions
from robot_rl.hardware.realtime import missing_rights
from robot_rl.hardware.robot_file import checked_struct
from tests.hardware.drivers.conftest import MOVING
from tests.hardware.drivers.motion import Motion
from tests.hardware.fakes.arm_process import PATIENCE, PATIENT_WATCHDOG, ArmClock, SimulatedArm, until
from tests.hardware.fakes.ur import config

# They take minutes and a controller that is never starved.
pytestmark = pytest.mark.full

pytest.importorskip("rtde_control", reason="ur_rtde is not installed")

KIND = "ur"
"""Of the simulated arm, for the fixtures."""
RESTING = 0.005
"""rad/s"""
WATCHDOG = 0.3
"""s"""


@pytest.fixture
def driver(arm: SimulatedArm) -> Iterator[UrDriver]:
    driver = make(config(arm.host, watchdog=WATCHDOG), ArmClock(arm))
    driver.open()
    yield driver
    driver.close()


def at_rest(arm: SimulatedArm) -> bool:
    return arm.speed < RESTING


def process_of(driver: UrDriver) -> int:
    """Of the process that holds the connection."""
    assert driver._client is not None
    return driver._client._process.pid


def under_way(arm: SimulatedArm, motion: Motion) -> Array:
    """Enable the arm and bring it into motion. Returns where it is going."""
    start = arm.q
    end = start + np.array([0.3, 0, 0, 0, 0, 0])
    motion.driver.enable()
    for _ in motion.go(start, end, 0.8):
        if arm.q[0] > start[0] + 0.05:
            break
    assert arm.speed > MOVING
    return end


def test_the_kinematics_put_the_tool_point_where_the_controller_puts_it(arm: SimulatedArm) -> None:
    tool = [0.01, -0.02, 0.15, 0.0, 0.0, sin(0.3), cos(0.3)]
    driver = make(config(arm.host, tool=tool), ArmClock(arm))
    driver.open()
    measured = driver.read()
    ours = driver.kinematics.forward(measured.q)
    assert measured.q == pytest.approx(arm.q, abs=1e-6)
    assert arm.state()["tcp"] == pytest.approx([0.01, -0.02, 0.15, 0, 0, 0.6], abs=1e-6)
    assert ours.position == pytest.approx(measured.pose.position, abs=1e-5)
    assert abs(ours.quaternion @ measured.pose.quaternion) == pytest.approx(1, abs=1e-8)
    # The controller's 1 2 3 N and 0.1 0.2 0.3 Nm, with its base frame turned half way round.
    assert measured.wrench == pytest.approx([-1, -2, 3, -0.1, -0.2, 0.3])
    driver.close()


def test_an_arm_whose_tool_is_elsewhere_is_refused(
    arm: SimulatedArm, monkeypatch: pytest.MonkeyPatch
) -> None:
    driver = make(config(arm.host), ArmClock(arm))
    shifted = make(config(arm.host, tool=[0, 0, 0.12, 0, 0, 0, 1]), ArmClock(arm))
    monkeypatch.setattr(driver, "_kinematics", shifted.kinematics)
    with pytest.raises(DriverError, match=r"tool point at .* away: correct options\.tool"):
        driver.open()
    with pytest.raises(DriverError, match="not open"):
        driver.read()
    until(lambda: arm.state()["clients"] == 0)


def test_it_follows_a_stream_of_setpoints(arm: SimulatedArm, motion: Motion) -> None:
    start = arm.q
    end = start + 0.1
    motion.driver.enable()
    for _ in motion.go(start, end, 0.5):
        pass
    assert motion.rest(0.8, end).q == pytest.approx(end, abs=0.002)
    assert arm.q == pytest.approx(end, abs=0.002)


def test_a_stop_in_motion_ends_in_rest_and_setpoints_are_ignored(arm: SimulatedArm, motion: Motion) -> None:
    end = under_way(arm, motion)
    motion.driver.stop()
    until(lambda: at_rest(arm))
    rested = arm.q
    assert rested[0] < end[0] - 0.05
    motion.rest(0.2, end)
    assert arm.q == pytest.approx(rested, abs=1e-4)
    motion.driver.enable()
    assert motion.rest(0.1, rested).q == pytest.approx(rested, abs=0.002)


class SoonLost(UrDriver):
    """Its control thread loses the process as soon as `stop` has looked whether there is one."""

    soon_lost = False
    _kept: UrClient | None = None

    @property
    def _client(self) -> UrClient | None:
        client = self._kept
        if self.soon_lost:
            self._kept = None
        return client

    @_client.setter
    def _client(self, client: UrClient | None) -> None:
        self._kept = client


def test_a_stop_while_the_control_thread_loses_the_process_is_sent(arm: SimulatedArm) -> None:
    own = config(arm.host, watchdog=PATIENT_WATCHDOG)
    driver = SoonLost(own.spec, checked_struct(own.options, UrOptions, "options"), ArmClock(arm))
    driver.open()
    client = driver._client
    assert client is not None
    driver.enable()
    driver.write(arm.q + 1.0)
    until(lambda: arm.speed > MOVING)
    driver.soon_lost = True
    driver.stop()
    until(lambda: at_rest(arm))
    assert arm.state()["playing"]
    client.kill()


def test_without_setpoints_the_controller_ends_the_program_and_the_arm_stops(
    arm: SimulatedArm, driver: UrDriver, motion: Motion
) -> None:
    end = under_way(arm, motion)
    began = motion.clock.now()
    until(lambda: not arm.state()["playing"])
    assert motion.clock.now() - began < (WATCHDOG + 0.2) * 1e9
    until(lambda: at_rest(arm))
    rested = arm.q
    with pytest.raises(DriverError, match=r"program ended: no setpoint reached it for 0\.3 s"):
        driver.read()
    with pytest.raises(DriverError, match="program ended"):
        driver.write(end)
    driver.recover()
    motion.rest(0.1, end)
    assert arm.q == pytest.approx(rested, abs=1e-4)
    driver.enable()
    assert arm.state()["watched"]
    assert motion.rest(0.1, rested).q == pytest.approx(rested, abs=0.002)


def test_a_setpoint_that_comes_too_late_does_not_move_the_arm_again(
    arm: SimulatedArm, driver: UrDriver
) -> None:
    driver.enable()
    before = arm.q
    arm.wait(WATCHDOG + 0.02)
    with pytest.raises(DriverError, match=r"no setpoint for \d+\.\d+ s"):
        driver.write(before + 0.05)
    arm.wait(0.2)
    assert arm.q == pytest.approx(before, abs=1e-3)


def test_an_arm_that_rests_keeps_its_program_while_it_is_read(arm: SimulatedArm, motion: Motion) -> None:
    motion.driver.enable()
    motion.rest(0.05, arm.q)
    motion.driver.stop()
    programs = arm.state()["programs"]
    motion.rest(2 * WATCHDOG)
    assert arm.state()["playing"]
    assert arm.state()["watched"]
    motion.driver.enable()
    assert arm.state()["programs"] == programs


def test_a_killed_server_leaves_the_arm_at_rest(arm: SimulatedArm, streamer: subprocess.Popen[str]) -> None:
    streamer.kill()
    assert streamer.wait(PATIENCE) == -signal.SIGKILL
    moved = arm.q
    until(lambda: at_rest(arm) and arm.state()["clients"] == 0)
    assert arm.q == pytest.approx(moved, abs=0.3)
    until(lambda: not arm.state()["playing"])


def test_a_frozen_server_is_stopped_by_the_controller_and_does_not_go_on_when_it_thaws(
    arm: SimulatedArm, streamer: subprocess.Popen[str]
) -> None:
    streamer.send_signal(signal.SIGSTOP)
    until(lambda: not arm.state()["playing"] and at_rest(arm))
    rested = arm.q
    streamer.send_signal(signal.SIGCONT)
    assert streamer.wait(PATIENCE) == 1
    assert arm.q == pytest.approx(rested, abs=1e-4)


def test_a_killed_connection_process_is_a_fault_and_the_controller_stops_the_arm(
    arm: SimulatedArm, driver: UrDriver, motion: Motion
) -> None:
    end = under_way(arm, motion)
    os.kill(process_of(driver), signal.SIGKILL)
    with pytest.raises(DriverError, match="process"):
        motion.rest(0.2, end)
    until(lambda: not arm.state()["playing"] and at_rest(arm))
    rested = arm.q
    driver.recover()
    motion.rest(0.1, end)
    assert arm.q == pytest.approx(rested, abs=1e-4)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_that_also_reaches_the_server_leaves_the_braking_to_it(
    arm: SimulatedArm, driver: UrDriver, motion: Motion, number: int
) -> None:
    end = under_way(arm, motion)
    os.kill(process_of(driver), number)
    motion.rest(0.5, end)
    assert arm.q == pytest.approx(end, abs=0.002)


@pytest.mark.skipif(bool(missing_rights()), reason="no right to real-time priority here")
def test_what_the_server_waits_for_runs_first_as_the_server_does(driver: UrDriver) -> None:
    tasks = [int(path.name) for path in Path(f"/proc/{process_of(driver)}/task").iterdir()]
    first = [task for task in tasks if os.sched_getscheduler(task) == os.SCHED_FIFO]
    # The two that answer the server, and the library's two that hear the arm.
    assert len(first) >= 4
    assert process_of(driver) in first


def test_a_lost_connection_is_a_fault_and_nothing_connects_anew_but_recovery(
    arm: SimulatedArm, driver: UrDriver, motion: Motion
) -> None:
    end = under_way(arm, motion)
    arm.tell("drop")
    with pytest.raises(DriverError, match=r"connection to the arm is lost|program ended|no setpoint"):
        motion.rest(1.0, end)
    until(lambda: not arm.state()["playing"] and at_rest(arm))
    rested = arm.q
    # What ur_rtde did by itself before its process was ended has no effect on the arm.
    until(lambda: arm.state()["clients"] == 0)
    arm.wait(0.3)
    assert arm.state()["clients"] == 0
    driver.recover()
    assert arm.q == pytest.approx(rested, abs=1e-4)
    driver.enable()
    assert arm.state()["watched"]
    assert motion.rest(0.1, rested).q == pytest.approx(rested, abs=0.002)


def test_a_measurement_that_does_not_come_grows_old(arm: SimulatedArm, motion: Motion) -> None:
    motion.rest(0.05)
    arm.tell("silent on")
    old = motion.rest(0.03)
    later = motion.rest(0.1)
    assert later.t == old.t
    assert motion.clock.now() - later.t > 0.1e9


def test_a_protective_stop_is_named_and_stays_until_it_is_recovered(
    arm: SimulatedArm, driver: UrDriver, motion: Motion
) -> None:
    end = under_way(arm, motion)
    arm.tell("protective_stop 0.5")
    with pytest.raises(DriverError, match="protective stop"):
        motion.rest(0.3, end)
    for refused in (driver.read, driver.enable, lambda: driver.write(end)):
        with pytest.raises(DriverError, match="protective stop"):
            refused()
    driver.stop()
    assert arm.state()["protective"]
    with pytest.raises(DriverError, match="Cannot unlock protective stop"):
        driver.recover()
    assert arm.state()["protective"]
    arm.wait(0.5)
    driver.recover()
    assert not arm.state()["protective"]
    rested = arm.q
    motion.rest(0.1, end)
    assert arm.q == pytest.approx(rested, abs=1e-4)
    driver.enable()
    assert motion.rest(0.1, rested).q == pytest.approx(rested, abs=0.002)


def test_an_emergency_stop_must_be_released_first(arm: SimulatedArm, driver: UrDriver) -> None:
    driver.enable()
    arm.tell("emergency_stop on")
    with pytest.raises(DriverError, match="emergency stop: release it"):
        until(lambda: not driver.read())
    with pytest.raises(DriverError, match="emergency stop: release it"):
        driver.recover()
    arm.tell("emergency_stop off")
    with pytest.raises(DriverError, match="emergency stop"):
        driver.read()
    arm.wait(0.05)
    driver.recover()
    assert driver.read().q == pytest.approx(arm.q, abs=1e-6)


def test_an_arm_that_is_guided_while_its_program_is_loaded_again_is_held_where_it_is_let_go(
    arm: SimulatedArm, driver: UrDriver, monkeypatch: pytest.MonkeyPatch
) -> None:
    before, client = arm.q, driver._client
    assert client is not None
    start = client.start

    def start_slowly() -> None:
        start()
        arm.tell("guide 0.1")
        until(lambda: client.state().q == pytest.approx(before + 0.1, abs=1e-6))

    monkeypatch.setattr(client, "start", start_slowly)
    arm.tell("stop_program")
    until(lambda: not client.state().playing)
    driver.enable()
    # It would have moved back before the watchdog stops it.
    until(lambda: not arm.state()["playing"] and at_rest(arm))
    assert arm.q == pytest.approx(before + 0.1, abs=1e-3)


def test_a_program_that_is_stopped_by_hand_is_a_fault_only_under_way(
    arm: SimulatedArm, driver: UrDriver, motion: Motion
) -> None:
    arm.tell("stop_program")
    motion.rest(0.05)
    end = under_way(arm, motion)
    assert arm.state()["watched"]
    arm.tell("stop_program")
    with pytest.raises(DriverError, match=r"program ended|took no setpoint"):
        motion.rest(0.3, end)


@pytest.mark.parametrize(
    "setpoint", [np.zeros(5), np.full(6, np.inf), Pose(np.zeros(3), np.array([0, 0, 0, 1.0]))]
)
def test_what_is_no_setpoint_is_refused(driver: UrDriver, setpoint: Array | Pose) -> None:
    driver.enable()
    with pytest.raises(DriverError, match=r"takes 6 finite joints|takes joints"):
        driver.write(setpoint)


def test_it_can_be_closed_twice_and_opened_again(arm: SimulatedArm, driver: UrDriver) -> None:
    driver.enable()
    driver.close()
    driver.close()
    assert not arm.state()["playing"]
    until(lambda: arm.state()["clients"] == 0)
    for refused in (driver.read, driver.enable, driver.recover):
        with pytest.raises(DriverError, match="not open"):
            refused()
    driver.open()
    assert driver.read().q == pytest.approx(arm.q, abs=1e-6)


def test_an_arm_that_is_not_there_is_named(arm: SimulatedArm) -> None:
    driver = make(config("127.255.255.254"), ArmClock(arm))
    with pytest.raises(DriverError, match=r"cannot connect to the arm at 127\.255\.255\.254"):
        driver.open()


def test_a_process_that_the_machine_does_not_start_is_a_fault_of_the_arm(
    arm: SimulatedArm, driver: UrDriver, monkeypatch: pytest.MonkeyPatch
) -> None:
    os.kill(process_of(driver), signal.SIGKILL)
    with pytest.raises(DriverError, match="process"):
        until(lambda: not driver.read())

    def refused(*_: object, **__: object) -> None:
        raise OSError(errno.EAGAIN, os.strerror(errno.EAGAIN))

    with monkeypatch.context() as busy:
        busy.setattr(ur_client.subprocess, "Popen", refused)
        with pytest.raises(DriverError, match=r"did not start: .*Resource temporarily unavailable"):
            driver.recover()
    driver.recover()
    assert driver.read().q == pytest.approx(arm.q, abs=1e-6)


def test_a_process_that_answers_too_late_is_replaced(arm: SimulatedArm, driver: UrDriver) -> None:
    """Its answer would be taken for that to the next command."""
    client = driver._client
    assert client is not None
    client._commands.settimeout(0.05)
    os.kill(process_of(driver), signal.SIGSTOP)
    with pytest.raises(DriverError, match="the arm takes no setpoints: timed out"):
        client.start()
    assert client._process.poll() is not None
    driver.recover()
    assert driver._client is not client
    assert driver.read().q == pytest.approx(arm.q, abs=1e-6)


def test_an_arm_that_is_stopped_is_not_opened(arm: SimulatedArm) -> None:
    programs = arm.tell("emergency_stop on")["programs"]
    driver = make(config(arm.host), ArmClock(arm))
    with pytest.raises(DriverError, match="emergency stop: release it"):
        driver.open()
    assert arm.state()["programs"] == programs
