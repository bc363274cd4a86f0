"""Whole expert episodes are bit-identical in our environment and robosuite's.

Random actions rarely touch anything. An expert's do: it grasps, carries, inserts and lets go, and
meshes in contact turn one wrong bit into a visible difference within a few steps.
"""

from dataclasses import replace

import numpy as np
import pytest
import robosuite

from robot_rl.cli.compose import load_group
from robot_rl.envs import simstate
from robot_rl.envs.experts import make_expert
from robot_rl.envs.robosuite_env import RobosuiteEnv
from robot_rl.envs.task import TaskConfig
from robot_rl.factory import make_robosuite_env

OBJECTS = {"lift": "cube", "can": "Can", "square": "SquareNut", "stack": "cubeA", "door": "Door"}
"""What each task's fingers must hold: the beginning of its geoms' names."""

NEVER_READ = {"robot0_right_gripper.joint_pos", "robot0_right_gripper.joint_vel"}
"""Values that robosuite's gripper controller records in each substep and nothing uses."""


CORRECTED = "_to_robot0_eef_"
"""In the names of the observations that are not robosuite's on purpose (`robot_rl.envs.current_sensors`)."""


def stock_env(task: TaskConfig, *, hard_reset: bool = False) -> robosuite.environments.base.MujocoEnv:
    """robosuite's own environment, created without any of our code."""
    return robosuite.make(
        task.env,
        robots=task.robots or "Panda",
        control_freq=task.control_freq,
        has_renderer=False,
        has_offscreen_renderer=False,
        use_camera_obs=False,
        ignore_done=True,
        hard_reset=hard_reset,
        seed=task.model_seed,
        **task.env_args,
    )


def pads_touch(sim: robosuite.environments.base.MujocoEnv, prefix: str) -> bool:
    """Whether a finger pad is in contact with the object now."""
    gripper = sim.robots[0].gripper["right"].important_geoms
    pads = {*gripper["left_fingerpad"], *gripper["right_fingerpad"]}
    for contact in sim.sim.data.contact[: sim.sim.data.ncon]:
        names = [sim.sim.model.geom_id2name(geom) or "" for geom in (contact.geom1, contact.geom2)]
        if pads & set(names) and any(name.startswith(f"{prefix}_") for name in names):
            return True
    return False


def everything(sim: robosuite.environments.base.MujocoEnv) -> dict[str, np.ndarray]:
    """What physics, robosuite's controllers and its sensors hold, by name."""
    state = simstate.capture(sim)
    sizes = simstate.layout(sim)
    starts = np.cumsum([size for _, size in sizes])[:-1]
    pieces = {name: piece for (name, _), piece in zip(sizes, np.split(state, starts), strict=True)}
    return {
        "qpos": sim.sim.data.qpos,
        "qvel": sim.sim.data.qvel,
        **{name: piece for name, piece in pieces.items() if name not in NEVER_READ},
    }


def assert_same(stock: dict[str, np.ndarray], ours: dict[str, np.ndarray], where: str) -> None:
    assert stock.keys() == ours.keys(), where
    compared = [name for name in stock if CORRECTED not in name]
    different = [name for name in compared if not np.array_equal(stock[name], ours[name])]
    assert not different, f"{where}: {', '.join(different)}"


def observed(raw: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """All observations but the concatenations of them."""
    return {name: value for name, value in raw.items() if not name.endswith("-state")}


@pytest.mark.parametrize(
    "name", ["lift", *(pytest.param(name, marks=pytest.mark.full) for name in OBJECTS if name != "lift")]
)
def test_expert_episode_is_robosuites_to_the_bit(name: str) -> None:
    task = replace(load_group("task", name, TaskConfig), env_args={"reward_shaping": True})
    ours: RobosuiteEnv = make_robosuite_env(task, observe_all=True)
    assert ours.control
    stock = stock_env(task)
    assert type(stock).step is stock.step.__func__ is robosuite.environments.base.MujocoEnv.step
    ours.reset(seed=0)
    stock.reset()
    simstate.restore(stock, ours.get_state())
    assert_same(everything(stock), everything(ours.sim), "after the reset")

    expert = make_expert(task.env, noise=0.05, skill=1.0, rng=np.random.default_rng(0))
    expert.reset(ours.sim)
    held, solved = 0, False
    for step in range(task.horizon):
        action = expert.act(ours.sim)
        _, reward, solved, _, info = ours.step(action)
        raw, shaped, _, _ = stock.step(info["applied_action"])
        assert_same(observed(raw), dict(ours.raw), f"step {step}, observations")
        assert_same(everything(stock), everything(ours.sim), f"step {step}, state")
        assert shaped == type(ours.sim).reward(ours.sim, action), f"step {step}, reward"
        assert stock._check_success() == solved == bool(reward), f"step {step}, success"
        held += pads_touch(ours.sim, OBJECTS[name])
        if solved:
            break
    assert solved
    assert held > 5
    ours.close()
    stock.close()
