"""A task that is served as a real robot, and the room around it."""

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from robot_rl.cli.compose import load_group
from robot_rl.envs.robot_state import SUCCESS, TIME_LEFT
from robot_rl.envs.scene_state import SCENE
from robot_rl.envs.surroundings import TRUTH, Surroundings, Visitor, read_truth
from robot_rl.envs.task import TaskConfig
from robot_rl.envs.task_driver import TaskDriver
from robot_rl.hardware.clock import SteppedClock
from robot_rl.hardware.protocol.messages import Mode, State
from tests.hardware.processes import eventually

CUBE = "cube_joint0"


@pytest.fixture(scope="module")
def driver() -> Iterator[TaskDriver]:
    driver = TaskDriver(load_group("task", "lift_image", TaskConfig), SteppedClock(), privileged=False)
    driver.open()
    yield driver
    driver.env.close()


def state_at(t: int) -> State:
    return State(
        src="session", seq=1, tm=t, t_sample=t, q=(), dq=(), position=(), quaternion=(), mode=Mode.IDLE
    )


def cube(driver: TaskDriver) -> np.ndarray:
    return np.array(driver.env.sim.sim.data.get_joint_qpos(CUBE))


def lift(driver: TaskDriver, height: float) -> None:
    pose = cube(driver)
    pose[2] += height
    driver.env.sim.sim.data.set_joint_qpos(CUBE, pose)
    driver.env.sim.sim.forward()


def test_a_task_without_privileges_measures_and_resets_what_a_real_robot_does(driver: TaskDriver) -> None:
    assert not {SUCCESS, TIME_LEFT, SCENE} & set(driver.spec.sensors)
    assert set(driver.read().sensors) == set(driver.spec.sensors)
    with pytest.raises(ValueError, match="prepare it by hand"):
        driver.reset(0)


def test_a_hand_moves_the_objects_and_not_the_arm(driver: TaskDriver) -> None:
    arm, places = driver.read().q.copy(), []
    for seed in (1, 2, 1):
        driver.place_objects(seed)
        places.append(cube(driver))
    assert (driver.read().q == arm).all()
    assert (places[0] == places[2]).all()
    assert np.linalg.norm(places[0][:2] - places[1][:2]) > 1e-3


def test_a_hand_moves_only_what_is_free() -> None:
    """PickPlace also places markers of its bins, and Door a hinge."""
    can = TaskDriver(load_group("task", "can", TaskConfig), SteppedClock())
    before = can.env.get_state()
    can.place_objects(1)
    assert not np.array_equal(can.env.get_state(), before)
    can.env.close()
    door = TaskDriver(TaskConfig(env="Door", state_keys=["robot0_joint_pos"]), SteppedClock())
    with pytest.raises(ValueError, match="no objects that a hand could place"):
        door.place_objects(1)
    door.env.close()


def test_hands_guide_the_arm_home_only_while_it_is_disarmed(driver: TaskDriver) -> None:
    driver.enable()
    with pytest.raises(ValueError, match="while it is disarmed"):
        driver.guide_home()
    driver.stop()
    joints = driver.env.control.arms[0].controller.qpos_index
    driver.env.sim.sim.data.qpos[joints] += 0.3
    before = cube(driver)
    driver.guide_home()
    np.testing.assert_allclose(driver.read().q, driver.spec.home, atol=1e-6)
    assert (cube(driver) == before).all()


def test_a_visitor_sees_the_room_and_reaches_into_it_also_after_a_restart(
    driver: TaskDriver, tmp_path: Path
) -> None:
    visitor = Visitor(tmp_path)
    assert visitor.look() is None
    for _ in range(2):
        room = Surroundings(driver, tmp_path)

        def sees(room: Surroundings = room) -> bool:
            room.update(state_at(1))
            seen = visitor.look()
            return seen is not None and bool((seen == driver.look()).all())

        eventually(sees, "the scene")
        room.close()
    for reach in (lambda: visitor.place(3, timeout=0.1), lambda: visitor.guide_home(timeout=0.1)):
        assert "does not answer" in reach()
    visitor.close()


def test_the_truth_is_written_at_each_change_and_outlives_the_server(
    driver: TaskDriver, tmp_path: Path
) -> None:
    driver.place_objects(1)
    for start, height in ((0, 0.2), (10, 0.0)):
        room = Surroundings(driver, tmp_path)
        room.update(state_at(start + 1))
        lift(driver, height)
        room.update(state_at(start + 2))
        room.update(state_at(start + 3))
        room.close()
    with (tmp_path / TRUTH).open("a") as cut:
        cut.write('{"session": "s')
    known = [(change.session, change.t, change.success) for change in read_truth(tmp_path)]
    assert known == [("session", 1, False), ("session", 2, True), ("session", 11, True)]
