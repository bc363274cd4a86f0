"""Resets that keep the model place objects as robosuite's own, which rebuild it, and they are repeatable.

What is drawn, and when, with the five tasks and the Panda:

- At every reset, with or without a new model: the arm's joint positions (normal noise of 0.02 rad round
  robosuite's initial ones); the pose of each of the task's objects, x, y and yaw, by the task's placement
  sampler; for Door this is the pose of the whole door, written into the model (`body_pos`, `body_quat`).
- When the model is built, and only in Lift: the cube's three half sizes, uniform in 20 to 22 mm, hence its
  mass, its inertia and the height at which it is put down. robosuite draws them at every hard reset. Here
  `model_seed` fixes them once and no reset draws them again: to train on several sizes, build
  environments with several `model_seed`s.
- Never: everything else. Stack's cubes, the can, the nut, the door's friction and damping, the table,
  gains, colours and light are the same in every model of a task.

All draws come from one generator in one order, so with the generator in the same state both kinds of
reset end in the same state to the bit; Lift's has then three numbers fewer to draw.
"""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from scipy.spatial.transform import Rotation
from scipy.stats import ks_2samp

from robot_rl.cli.compose import load_group
from robot_rl.envs import simstate
from robot_rl.envs.experts import make_expert
from robot_rl.envs.robosuite_env import RobosuiteEnv
from robot_rl.envs.task import TaskConfig
from robot_rl.evaluation.initial_states import load_states
from robot_rl.factory import make_robosuite_env
from tests.envs.test_parity_experts import CORRECTED, OBJECTS, pads_touch, stock_env

TASKS = ["lift", *(pytest.param(name, marks=pytest.mark.full) for name in ("can", "square", "stack", "door"))]
PLACED = {
    "can": ["Can"],
    "door": ["Door"],
    "lift": ["cube"],
    "square": ["SquareNut"],
    "stack": ["cubeA", "cubeB"],
}
DRAWN_WITH_THE_MODEL = {"lift": 3}
"""How many numbers robosuite draws when it builds the model."""
MADE_OF_SIZES = {
    *("body_inertia", "body_invweight0", "body_mass", "body_subtreemass", "bvh_aabb", "cam_poscom0"),
    *("dof_M0", "dof_invweight0", "dof_length", "geom_aabb", "geom_rbound", "geom_size", "light_poscom0"),
}
PLACE = {"body_pos", "body_quat"}
"""Where a reset writes Door's placement."""


@pytest.fixture(scope="module")
def ours(request: pytest.FixtureRequest) -> Iterator[RobosuiteEnv]:
    env = make_robosuite_env(request.param, observe_all=True)
    yield env
    env.close()


@pytest.fixture(scope="module")
def stock(ours: RobosuiteEnv) -> Iterator[Any]:
    """robosuite's own environment, which rebuilds its model at each reset."""
    sim = stock_env(ours.task, hard_reset=True)
    sim.reset()
    yield sim
    sim.close()


def seeded(sim: Any, seed: int, skip: int = 0) -> None:
    """Put robosuite's generator where a fresh one is after `skip` numbers."""
    rng = np.random.default_rng(seed)
    rng.uniform(size=skip)
    sim.rng.bit_generator.state = rng.bit_generator.state


def cube_size(sim: Any) -> np.ndarray:
    return sim.sim.model.geom_size[sim.sim.model.geom_name2id("cube_g0")]


def model_arrays(sim: Any) -> dict[str, np.ndarray]:
    model = sim.sim.model._model
    values = {name: getattr(model, name) for name in dir(model) if not name.startswith("_")}
    return {name: value.copy() for name, value in values.items() if isinstance(value, np.ndarray)}


def everything(sim: Any) -> dict[str, np.ndarray]:
    """The pieces of the full state, and positions."""
    starts = np.cumsum([size for _, size in simstate.layout(sim)])[:-1]
    pieces = np.split(simstate.capture(sim), starts)
    named = {name: piece for (name, _), piece in zip(simstate.layout(sim), pieces, strict=True)}
    return {"qpos": sim.sim.data.qpos.copy(), **named}


def placement(sim: Any, task: str) -> np.ndarray:
    """The arm's joints, and each object's x, y, underside and turn from its pose in the model."""
    values = [sim.sim.data.qpos[sim.robots[0]._ref_joint_pos_indexes]]
    for name in PLACED[task]:
        body = sim.sim.model.body_name2id(f"{name}_main")
        pos, (w, *xyz) = sim.sim.data.body_xpos[body].copy(), sim.sim.data.body_xquat[body]
        if name == "cube":
            pos[2] -= cube_size(sim)[2]
        values += [pos, Rotation.from_quat([*xyz, w]).as_euler("xyz")]
    return np.concatenate(values).round(9)


@pytest.mark.parametrize("ours", TASKS, indirect=True)
def test_only_lifts_cube_is_drawn_when_the_model_is_built(ours: RobosuiteEnv, stock: Any) -> None:
    seeded(stock, 1)
    stock.reset()
    before = model_arrays(stock)
    stock.reset()
    after = model_arrays(stock)
    changed = {name for name in before if not np.array_equal(before[name], after[name])} - PLACE
    assert changed == (MADE_OF_SIZES if ours.task.name == "lift" else set())
    # Ours keeps its model whatever is drawn.
    ours.reset(seed=1)
    before = model_arrays(ours.sim)
    ours.reset(seed=2)
    after = model_arrays(ours.sim)
    assert {name for name in before if not np.array_equal(before[name], after[name])} <= PLACE


@pytest.mark.parametrize("ours", TASKS, indirect=True)
def test_same_draws_place_the_same_to_the_bit(ours: RobosuiteEnv, stock: Any) -> None:
    skip = DRAWN_WITH_THE_MODEL.get(ours.task.name, 0)
    for seed in range(3):
        seeded(stock, seed)
        stock.reset()
        seeded(ours.sim, seed, skip)
        ours.reset()
        assert stock.rng.bit_generator.state == ours.sim.rng.bit_generator.state
        np.testing.assert_array_equal(placement(stock, ours.task.name), placement(ours.sim, ours.task.name))
        if skip == 0:
            theirs, mine = everything(stock), everything(ours.sim)
            different = [name for name in theirs if not np.array_equal(theirs[name], mine[name])]
            assert [name for name in different if CORRECTED not in name] == []


def test_model_seed_fixes_the_size_of_lifts_cube() -> None:
    sizes = []
    for model_seed in (0, 0, 1):
        env = make_robosuite_env(replace(load_group("task", "lift", TaskConfig), model_seed=model_seed))
        sizes.append(cube_size(env.sim).copy())
        env.reset(seed=7)
        np.testing.assert_array_equal(cube_size(env.sim), sizes[-1])
        env.close()
    np.testing.assert_array_equal(sizes[0], sizes[1])
    assert (sizes[0] != sizes[2]).all()
    assert ((np.array(sizes) >= 0.020) & (np.array(sizes) <= 0.022)).all()


def different(one: np.ndarray, two: np.ndarray) -> list[int]:
    """Columns in which two samples [N, D] and [M, D] differ, at 1 % for all columns together."""
    p = np.array([ks_2samp(a, b).pvalue for a, b in zip(one.T, two.T, strict=True)])
    return np.flatnonzero(p < 0.01 / len(p)).tolist()


@pytest.mark.full
@pytest.mark.parametrize("ours", PLACED, indirect=True)
def test_placements_have_robosuites_distribution(ours: RobosuiteEnv, stock: Any) -> None:
    """Episodes seeded one by one, as training and evaluation seed them, against robosuite's one stream."""
    seeded(stock, 0)
    theirs = []
    for _ in range(250):
        stock.reset()
        theirs.append(placement(stock, ours.task.name))
    mine = []
    for seed in range(2000):
        ours.reset(seed=seed)
        mine.append(placement(ours.sim, ours.task.name))
    one, two = np.array(theirs), np.array(mine)
    assert different(one, two) == []
    # The comparison is not blind: it sees each of the drawn coordinates being half as wide.
    drawn = np.flatnonzero(two.std(0) > 0)
    assert len(drawn) >= 7 + 2
    assert different(one, two.mean(0) + (two - two.mean(0)) / 2) == drawn.tolist()


def act(env: RobosuiteEnv, seed: int, steps: int = 20) -> list[np.ndarray]:
    """What `steps` random actions lead to: observations, reward, and the full state."""
    seen = []
    for action in np.random.default_rng(seed).uniform(-1, 1, (steps, 7)):
        obs, reward, *_ = env.step(action)
        seen += [obs["state"], np.array(reward), env.get_state()]
    return seen


def expert_episode(env: RobosuiteEnv, steps: int) -> None:
    expert = make_expert(env.task.env, noise=0.0, skill=1.0, rng=np.random.default_rng(0))
    expert.reset(env.sim)
    for _ in range(steps):
        env.step(expert.act(env.sim))


@pytest.mark.parametrize("ours", TASKS, indirect=True)
def test_saved_initial_state_repeats_after_other_episodes(ours: RobosuiteEnv) -> None:
    states = load_states(ours).states
    for index in (0, 57):
        first, _ = ours.reset(options={"state": states[index]})
        expected = [first["state"], *act(ours, seed=index)]
        ours.reset(seed=8)
        expert_episode(ours, 60)
        again, _ = ours.reset(seed=9, options={"state": states[index]})
        assert all(map(np.array_equal, expected, [again["state"], *act(ours, seed=index)]))
        # Without a reset too, from the middle of an episode.
        act(ours, seed=3, steps=7)
        again = ours.set_state(states[index])
        assert all(map(np.array_equal, expected, [again["state"], *act(ours, seed=index)]))


@pytest.mark.parametrize("ours", TASKS, indirect=True)
def test_state_with_something_in_the_hand_continues_to_the_bit(ours: RobosuiteEnv) -> None:
    """In contact the solver starts from its last solution, the warm start, which must come back too."""
    ours.reset(seed=4)
    expert = make_expert(ours.task.env, noise=0.0, skill=1.0, rng=np.random.default_rng(0))
    expert.reset(ours.sim)
    held = 0
    while held < 5:
        ours.step(expert.act(ours.sim))
        held += pads_touch(ours.sim, OBJECTS[ours.task.name])
    state = ours.get_state()
    expected = act(ours, seed=1)
    ours.reset(seed=5)
    expert_episode(ours, 10)
    ours.set_state(state)
    assert all(map(np.array_equal, expected, act(ours, seed=1)))
