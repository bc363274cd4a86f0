"""What the simulated arm promises beyond the conformance suite."""

import threading
from pathlib import Path

import mujoco
import numpy as np
import pytest

from robot_rl.hardware.clock import MS, MonotonicClock, SteppedClock
from robot_rl.hardware.drivers import make_driver
from robot_rl.hardware.drivers.driver import DriverError, Measurement, Pose
from robot_rl.hardware.drivers.models import CAMERAS, CUBE_START
from robot_rl.hardware.drivers.sim import CATCH_UP, SimDriver
from robot_rl.hardware.robot_file import load_robot
from tests.hardware.drivers.cases import CONFIGS, Rig
from tests.hardware.drivers.motion import Motion

ROBOTS = ("sim_panda", "sim_ur5e")


def _driver(name: str, clock: SteppedClock | MonotonicClock) -> SimDriver:
    driver = make_driver(load_robot(CONFIGS / f"{name}.yaml"), clock)
    assert isinstance(driver, SimDriver)
    return driver


def _enabled(name: str = "sim_panda") -> tuple[SimDriver, SteppedClock]:
    clock = SteppedClock()
    driver = _driver(name, clock)
    driver.open()
    driver.enable()
    return driver, clock


def _life(seed: int) -> bytes:
    """What is measured while an arm wanders and its gripper opens and closes, in uneven ticks."""
    driver, clock = _enabled()
    rng = np.random.default_rng(seed)
    q = driver.read().q
    seen = []
    for number in range(100):
        q = q + rng.uniform(-0.01, 0.01, 7)
        driver.write(q)
        if number % 30 == 0:
            driver.gripper.move(float(number % 60 == 0))
        if number == 70:
            driver.stop()
        clock.advance(int(rng.integers(1, 30)) * MS + int(rng.integers(MS)))
        measured = driver.read()
        seen += [[measured.t], measured.q, measured.dq, measured.tau, measured.sensors["cube"]]
    return np.concatenate(seen).tobytes()


def test_the_same_setpoints_at_the_same_times_give_the_same_bits() -> None:
    assert _life(0) == _life(0) != _life(1)


def test_no_time_passes_unless_the_clock_does() -> None:
    driver, clock = _enabled()
    driver.write(driver.read().q + 0.1)
    first = driver.read()
    for _ in range(10):
        again = driver.read()
        assert np.array_equal(again.q, first.q)
        assert again.t == first.t
    clock.advance(10 * MS)
    assert driver.read().t == first.t + 10 * MS
    assert not np.array_equal(driver.read().q, first.q)


def test_time_that_was_too_long_ago_is_left_out_and_counted() -> None:
    driver, clock = _enabled()
    clock.advance(CATCH_UP)
    assert driver.read().t == clock.now()
    assert driver.dropped_ns == 0
    driver.write(driver.read().q + 0.1)
    before = driver.render_state().qpos
    clock.advance(CATCH_UP + 1000 * MS)
    late = driver.read()
    assert late.t == clock.now()
    assert driver.dropped_ns == 1000 * MS
    # It has made the motion of the last 50 ms, not of a second.
    other, their_clock = _enabled()
    their_clock.advance(CATCH_UP)
    other.write(other.read().q + 0.1)
    their_clock.advance(CATCH_UP)
    assert np.array_equal(other.read().q, late.q)
    assert not np.array_equal(before, driver.render_state().qpos)


def test_it_keeps_up_with_the_real_clock() -> None:
    driver = _driver("sim_panda", MonotonicClock())
    driver.open()
    driver.enable()
    clock = MonotonicClock()
    begun = clock.now()
    for tick in range(1, 30):
        clock.sleep_until(begun + tick * 10 * MS)
        measured = driver.read()
        assert clock.now() - measured.t >= 0
    # However slow the machine is: what was not simulated was counted.
    assert measured.t >= begun + 280 * MS


def _grasp(name: str) -> tuple[Motion, Measurement]:
    """The arm over the cube's start, the cube in its fingers and 20 cm up."""
    driver, clock = _enabled(name)
    arm = Motion(Rig(driver, clock))
    start = arm.rest(0.1)
    q, pose = start.q, start.pose

    def to(position: tuple[float, float, float], seconds: float) -> None:
        nonlocal q, pose
        goal = Pose(np.array(position), pose.quaternion)
        for number in range(1, round(seconds * 100) + 1):
            part = number / (seconds * 100)
            between = arm.between(pose, goal, part**3 * (10 - 15 * part + 6 * part**2))
            assert isinstance(between, Pose)
            found = driver.kinematics.inverse(between, q)
            assert found is not None
            q = found
            arm.rest(0.01, q)
        pose = goal

    x, y, z = CUBE_START
    to((x, y, z + 0.1), 1.5)
    to((x, y, z), 1.0)
    driver.gripper.move(0)
    arm.rest(1.0, q)
    to((x - 0.05, y + 0.1, z + 0.2), 1.5)
    return arm, arm.rest(1.0, q)


@pytest.mark.parametrize("name", ROBOTS)
def test_the_cube_can_be_grasped_lifted_and_let_fall(name: str) -> None:
    arm, lifted = _grasp(name)
    driver = arm.driver
    assert isinstance(driver, SimDriver)
    assert np.linalg.norm(lifted.sensors["cube"][:3] - lifted.pose.position) < 0.005
    assert lifted.sensors["cube"][2] > 0.2
    assert 0.45 < driver.gripper.read() < 0.55  # the cube's 4 cm of 8
    # A stop of the gripper or of the arm drops nothing.
    driver.gripper.stop()
    driver.stop()
    held = arm.rest(2.0)
    assert np.linalg.norm(held.sensors["cube"][:3] - lifted.sensors["cube"][:3]) < 0.002
    driver.gripper.move(1)
    fallen = arm.rest(1.0)
    assert fallen.sensors["cube"][2] < 0.03
    assert driver.gripper.read() > 0.95


def test_the_gripper_has_the_speed_and_the_force_of_its_file() -> None:
    driver, clock = _enabled()
    gripper = driver.spec.gripper
    assert gripper is not None
    driver.gripper.move(0)
    arm = Motion(Rig(driver, clock))
    arm.rest(0.2)
    before = driver.gripper.read()
    arm.rest(0.2)
    speed = (before - driver.gripper.read()) * gripper.width / 0.2
    assert speed == pytest.approx(gripper.speed, rel=0.1)
    with pytest.raises(DriverError, match="0 … 1"):
        driver.gripper.move(1.5)


def test_a_stop_takes_a_tenth_of_a_second_and_does_not_swing_back() -> None:
    driver, clock = _enabled()
    q = driver.read().q
    speed = np.array([0.5, 0, 0, 0.5, 0, 0, 0.5])
    for _ in range(50):
        q = q + speed * 0.01
        driver.write(q)
        clock.advance(10 * MS)
        moving = driver.read()
    assert moving.dq[0] == pytest.approx(0.5, abs=0.02)
    driver.stop()
    speeds = []
    for _ in range(150):
        clock.advance(2 * MS)
        measured = driver.read()
        speeds.append(np.abs(measured.dq).max())
        # A joint alone would not turn back at all; the others' stops shake it.
        assert (measured.dq[speed > 0] > -0.05).all()
    assert speeds[50] < 0.05
    assert speeds[-1] < 0.005
    assert np.abs(measured.q - moving.q).max() < 0.02


def test_an_error_stops_the_motion_and_one_that_stays_is_not_recovered_from() -> None:
    driver, clock = _enabled()
    driver.write(driver.read().q + 0.1)
    clock.advance(20 * MS)
    driver.read()
    driver.inject(DriverError("the power is out"), recoverable=False)
    for call in (driver.read, driver.enable, driver.recover):
        with pytest.raises(DriverError, match="power"):
            call()
    with pytest.raises(DriverError, match="power"):
        driver.write(np.array(driver.spec.home))
    driver.close()
    driver.open()
    arm = Motion(Rig(driver, clock))
    rest = arm.rest(0.5)
    assert np.abs(arm.rest(0.5).q - rest.q).max() < 1e-3


def test_a_setpoint_that_the_arm_cannot_take_is_refused() -> None:
    driver, _ = _enabled()
    q = driver.read().q
    with pytest.raises(DriverError, match="7 finite joints"):
        driver.write(q[:6])
    with pytest.raises(DriverError, match="beyond its range"):
        driver.write(q + 3)
    with pytest.raises(DriverError, match="joints, not poses"):
        driver.write(driver.kinematics.forward(q))


def test_a_diverged_simulation_is_an_error_and_not_begun_anew() -> None:
    driver, clock = _enabled()
    driver._data.qvel[:] = 1e12
    clock.advance(10 * MS)
    for _ in range(2):
        with pytest.raises(DriverError, match="diverged"):
            driver.read()
    with pytest.raises(DriverError, match="diverged"):
        driver.recover()


def test_the_scene_can_be_drawn_elsewhere_from_the_state(tmp_path: Path) -> None:
    driver, clock = _enabled()
    driver.write(driver.read().q + 0.05)
    clock.advance(40 * MS)
    measured = driver.read()
    path = tmp_path / "scene.xml"
    path.write_text(driver.scene())
    model = mujoco.MjModel.from_xml_path(str(path))
    assert {model.camera(number).name for number in range(model.ncam)} >= set(CAMERAS)
    data = mujoco.MjData(model)
    state = driver.render_state()
    assert state.t == measured.t
    data.qpos[:], data.qvel[:] = state.qpos, state.qvel
    mujoco.mj_forward(model, data)
    assert np.allclose(data.body("cube").xpos, measured.sensors["cube"][:3], atol=1e-9)
    assert np.allclose(data.site("gripper_grip_site").xpos, measured.pose.position, atol=1e-9)
    # A copy: it does not go on with the world.
    kept = state.qpos.copy()
    clock.advance(40 * MS)
    driver.read()
    assert np.array_equal(state.qpos, kept)


def test_the_state_may_be_taken_while_another_thread_drives() -> None:
    driver, clock = _enabled()
    done = threading.Event()
    seen: list[int] = []

    def look() -> None:
        while not done.is_set():
            state = driver.render_state()
            assert np.isfinite(state.qpos).all()
            seen.append(state.t)
            driver.gripper.read()

    watcher = threading.Thread(target=look)
    watcher.start()
    q = driver.read().q
    ticks = 0
    while ticks < 200 or (len(seen) < 2 and watcher.is_alive()):
        driver.write(q)
        clock.advance(10 * MS)
        driver.read()
        ticks += 1
    done.set()
    watcher.join(10)
    assert not watcher.is_alive()
    assert seen == sorted(seen)
    assert seen
