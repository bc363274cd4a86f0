"""Any robosuite environment, with any arm and gripper, is built by its name and has exact state."""

from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import pytest
from robosuite.environments.base import REGISTERED_ENVS
from robosuite.models.grippers import GRIPPER_MAPPING

from robot_rl.envs.robosuite_env import RobosuiteEnv
from robot_rl.envs.task import TaskConfig
from robot_rl.factory import task_of

ARMS = ("Baxter", "IIWA", "Jaco", "Kinova3", "Panda", "PandaDexLH", "PandaDexRH", "Sawyer", "UR5e", "XArm7")
OF_ONE_OBJECT = sorted(
    name
    for name, kind in REGISTERED_ENVS.items()
    if name not in ("PickPlaceSingle", "NutAssemblySingle") and kind.__module__.startswith("robosuite.")
)


@contextmanager
def made(env: str, **options: object) -> Iterator[RobosuiteEnv]:
    built = RobosuiteEnv(TaskConfig(env=env, **options))  # type: ignore[arg-type]
    try:
        yield built
    finally:
        built.close()


def goes_on_to_the_bit(env: RobosuiteEnv, steps: int = 6) -> None:
    """An episode that is continued from its state is the same; the description rebuilds the task."""
    assert task_of(env.describe()) == env.task
    rng = np.random.default_rng(0)
    actions = rng.uniform(-1, 1, (2 * steps, len(env.action_spec))).astype(np.float32)
    first, _ = env.reset(seed=3)
    assert env.observation_space.contains(first)
    for action in actions[:steps]:
        env.step(action)
    state = env.get_state()
    seen = [env.step(action)[0]["state"] for action in actions[steps:]]
    after = env.get_state()
    env.reset(seed=4)
    env.set_state(state)
    again = [env.step(action)[0]["state"] for action in actions[steps:]]
    np.testing.assert_array_equal(seen, again)
    np.testing.assert_array_equal(after, env.get_state())


CHEAP = ("Wipe", "TwoArmLift")


@pytest.mark.parametrize(
    "name", [*CHEAP, *(pytest.param(n, marks=pytest.mark.full) for n in OF_ONE_OBJECT if n not in CHEAP)]
)
def test_an_environment_is_a_task_by_its_name_alone(name: str) -> None:
    with made(name) as env:
        assert env.control, "its control loop is compiled"
        assert (env.task.name, env.task.horizon) == (name, 1000)
        assert env.task.robots == ["Panda"] * (2 if name.startswith("TwoArm") else 1)
        assert {"robot0_eef_pos", "robot0_eef_quat"} <= set(env.task.state_keys)
        objects = [
            one for one in env.sim._observables.values() if one.modality == "object" and one.is_active()
        ]
        assert {one.name for one in objects} <= set(env.task.state_keys)
        goes_on_to_the_bit(env)


CHEAP_ARMS = ("UR5e",)


@pytest.mark.parametrize(
    "robot", [*CHEAP_ARMS, *(pytest.param(r, marks=pytest.mark.full) for r in ARMS if r not in CHEAP_ARMS)]
)
def test_every_arm(robot: str) -> None:
    with made("Lift", robots=[robot]) as env:
        assert env.control
        goes_on_to_the_bit(env)


CHEAP_GRIPPERS = ("Robotiq85Gripper", "InspireLeftHand", None)


@pytest.mark.parametrize(
    "gripper",
    [
        *CHEAP_GRIPPERS,
        *(pytest.param(g, marks=pytest.mark.full) for g in GRIPPER_MAPPING if g not in CHEAP_GRIPPERS),
    ],
)
def test_every_gripper(gripper: str | None) -> None:
    with made("Lift", env_args={"gripper_types": gripper}) as env:
        assert env.control
        closing = [dim for dim in env.action_spec if dim.kind == "gripper"]
        assert len(closing) == env.sim.robots[0].gripper["right"].dof
        goes_on_to_the_bit(env)


def test_dirt_that_was_wiped_is_part_of_the_state_and_ends_the_episode() -> None:
    with made("Wipe") as env:
        env.reset(seed=0)
        clean = env.get_state()
        markers = env.sim.model.mujoco_arena.markers
        env.sim.wiped_markers = list(markers[1:])
        one_left = env.get_state()
        env.set_state(clean)
        assert env.sim.wiped_markers == []
        env.set_state(one_left)
        assert env.sim.wiped_markers == markers[1:]
        env.sim.wiped_markers = list(markers)
        *_, terminated, _, info = env.step(np.zeros(6))
        assert terminated
        assert info["success"]


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"env": "PickPlaceSingle"}, "draws another object in each episode"),
        ({"env": "Lift", "robots": ["Panda", "Panda"]}, "Lift is for one robot"),
        ({"env": "TwoArmLift", "robots": ["Panda"]}, "must be bimanual"),
        ({"env": "Lift", "robots": ["Pandda"]}, "no robot 'Pandda'"),
    ],
)
def test_what_does_not_go_together_is_refused(options: dict, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        RobosuiteEnv(TaskConfig(**options))
