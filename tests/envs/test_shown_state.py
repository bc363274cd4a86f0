"""A scene drawn from an observed state."""

from collections.abc import Iterator

import numpy as np
import pytest

from robot_rl.cli.compose import load_group
from robot_rl.envs.robosuite_env import RobosuiteEnv
from robot_rl.envs.shown_state import ShownState
from robot_rl.envs.task import TaskConfig
from robot_rl.factory import make_robosuite_env


@pytest.fixture
def env(request: pytest.FixtureRequest) -> Iterator[RobosuiteEnv]:
    made = make_robosuite_env(load_group("task", request.param, TaskConfig))
    made.reset(seed=0)
    yield made
    made.close()


@pytest.mark.parametrize("env", ["lift", "can", "square"], indirect=True)
def test_a_scene_that_is_set_to_a_state_has_the_hand_and_the_object_there(env: RobosuiteEnv) -> None:
    rng = np.random.default_rng(0)
    for _ in range(6):
        observed, *_ = env.step(rng.uniform(-1, 1, len(env.action_spec)))
    scene = env.sim.sim.data._data
    before = scene.xpos.copy(), scene.xquat.copy()
    env.reset(seed=1)
    assert ShownState(env).show(observed["state"])
    model = env.sim.sim.model._model
    robot = env.sim.robots[0]
    found = [name for name in (model.body(i).name for i in range(model.nbody)) if name.endswith("_main")]
    objects = [
        name for name in found if f"{name.removesuffix('_main')}_pos" in env.observation_spec.state_keys
    ]
    assert len(objects) == 1
    for name in (robot.robot_model.eef_name[robot.arms[0]], *objects):
        index = model.body(name).id
        # The simulator's state is half a substep newer than the observation.
        assert np.allclose(scene.xpos[index], before[0][index], atol=3e-3), name
        assert abs(scene.xquat[index] @ before[1][index]) > 0.999, name


@pytest.mark.parametrize("env", ["door"], indirect=True)
def test_a_task_whose_objects_have_no_observed_poses_is_refused(env: RobosuiteEnv) -> None:
    with pytest.raises(ValueError, match="from the pose of an object, and none is observed"):
        ShownState(env)
