"""What a person in the room sees: whether the arm is at home, and whether the task is done."""

from pathlib import Path
from typing import Any

import mujoco
import numpy as np
import pytest

from robot_rl.envs.experts import make_expert
from robot_rl.envs.robosuite_env import RobosuiteEnv
from robot_rl.envs.task import TaskConfig
from robot_rl.rehearsal.scene import Done, Scene


def test_an_arm_whose_hand_is_at_home_in_another_posture_is_not_at_home(tmp_path: Path) -> None:
    scene = Scene(TaskConfig(env="Lift"), tmp_path)
    try:
        assert scene.at_home
        model, data = scene.sim.sim.model._model, scene.sim.sim.data._data
        last = scene.sim.robots[0]._ref_joint_pos_indexes[-1]
        data.qpos[last] += 0.5  # turns the hand about its own axis
        mujoco.mj_forward(model, data)
        assert not scene.outside
        assert not scene.at_home
    finally:
        scene.close()


@pytest.mark.parametrize(("height", "done"), [(0.0, False), (0.05, False), (0.08, True), (0.2, True)])
def test_a_cube_that_is_high_enough_is_lifted(height: float, done: bool) -> None:
    env = RobosuiteEnv(TaskConfig(env="Lift"))
    env.reset(seed=0)
    sim: Any = env.sim
    scene: Any = type("Scene", (), {"sim": sim})()
    judge = Done(scene)
    judge.begin(make_expert("Lift", noise=0.0, skill=1.0, rng=np.random.default_rng(0)))
    joint = sim.cube.joints[0]
    pose = sim.sim.data.get_joint_qpos(joint).copy()

    def put(z: float) -> None:
        sim.sim.data.set_joint_qpos(joint, [*pose[:2], sim.table_offset[2] + z, *pose[3:]])
        sim.sim.forward()

    put(height)
    judge.held_s()
    assert (judge.held_s() > 0) is done
    put(0.0)
    judge.held_s()
    assert judge.lost is done
    env.close()
