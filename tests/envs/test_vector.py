"""Environments that are stepped together behave as each does alone."""

from collections.abc import Iterator
from functools import partial

import numpy as np
import pytest
from gymnasium.vector import AutoresetMode

from robot_rl.cli.compose import load_group
from robot_rl.envs.compiled import worker_pool
from robot_rl.envs.task import TaskConfig
from robot_rl.envs.vector import ThreadVectorEnv
from robot_rl.factory import make_robosuite_env

HORIZON = 6
NUM_ENVS = 3


@pytest.fixture(scope="module")
def vector() -> Iterator[ThreadVectorEnv]:
    task = load_group("task", "lift", TaskConfig)
    task.horizon = HORIZON
    vector = ThreadVectorEnv([partial(make_robosuite_env, task)] * NUM_ENVS)
    yield vector
    vector.close()


def actions(count: int) -> np.ndarray:
    return np.random.default_rng(0).uniform(-1, 1, (count, NUM_ENVS, 7)).astype(np.float32)


def mask(*indices: int) -> np.ndarray:
    return np.isin(np.arange(NUM_ENVS), indices)


def test_threads_give_the_same_as_one_after_the_other(vector: ThreadVectorEnv) -> None:
    obs, _ = vector.reset(seed=[4, 5, 6])
    threaded = [obs["state"], *(vector.step(action)[0]["state"] for action in actions(HORIZON - 1))]
    for index, env in enumerate(vector.envs):
        alone, _ = env.reset(seed=4 + index)
        np.testing.assert_array_equal(alone["state"], threaded[0][index])
        for t, action in enumerate(actions(HORIZON - 1)[:, index]):
            np.testing.assert_array_equal(env.step(action)[0]["state"], threaded[t + 1][index])


def test_shapes_and_types_are_those_of_the_spaces(vector: ThreadVectorEnv) -> None:
    obs, _ = vector.reset(seed=0)
    assert vector.observation_space.contains(obs)
    obs, reward, terminated, truncated, info = vector.step(2 * actions(1)[0])
    assert vector.observation_space.contains(obs)
    assert (reward.shape, terminated.dtype, truncated.dtype) == ((NUM_ENVS,), bool, bool)
    np.testing.assert_array_equal(info["applied_action"], np.clip(2 * actions(1)[0], -1, 1))


def test_int_seed_gives_each_environment_its_own(vector: ThreadVectorEnv) -> None:
    one = vector.reset(seed=np.int64(4))[0]["state"]
    two = vector.reset(seed=[4, 5, 6])[0]["state"]
    np.testing.assert_array_equal(one, two)
    assert len(np.unique(one, axis=0)) == NUM_ENVS


def test_done_environment_is_not_stepped_until_it_is_reset(vector: ThreadVectorEnv) -> None:
    assert vector.metadata["autoreset_mode"] == AutoresetMode.DISABLED
    vector.reset(seed=0)
    for t in range(HORIZON):
        obs, _, terminated, truncated, _ = vector.step(actions(HORIZON)[t])
        assert truncated.all() == (t == HORIZON - 1)
    assert not terminated.any()
    # The observation is the episode's last, not the next one's first.
    last = np.stack([env.raw["cube_pos"] for env in vector.envs])
    np.testing.assert_allclose(obs["state"][:, 9:12], last, rtol=1e-6)
    vector.reset(seed=[7, 7, 7], options={"reset_mask": mask(0, 2)})
    before = [env.get_state() for env in vector.envs]
    with pytest.raises(ValueError, match=r"environments \[1\] are done"):
        vector.step(actions(1)[0])
    for env, state in zip(vector.envs, before, strict=True):
        np.testing.assert_array_equal(env.get_state(), state)


def test_reset_mask_leaves_the_others_alone(vector: ThreadVectorEnv) -> None:
    vector.reset(seed=0)
    before, *_ = vector.step(actions(1)[0])
    states = vector.get_states()
    obs, _ = vector.reset(seed=[50, 51, 52], options={"reset_mask": mask(1)})
    for index in (0, 2):
        np.testing.assert_array_equal(obs["state"][index], before["state"][index])
        np.testing.assert_array_equal(vector.envs[index].get_state(), states[index])
    np.testing.assert_array_equal(obs["state"][1], vector.envs[0].reset(seed=51)[0]["state"])


def test_states_option_starts_each_environment_from_its_own(vector: ThreadVectorEnv) -> None:
    made = vector.reset(seed=[10, 11, 12])[0]["state"]
    states = vector.get_states()
    again = vector.reset(seed=0, options={"states": states[::-1]})[0]["state"]
    np.testing.assert_array_equal(again, made[::-1])
    # An array of states serves too, and None means a new episode.
    again = vector.reset(seed=0, options={"states": np.stack(states)})[0]["state"]
    np.testing.assert_array_equal(again, made)
    fresh = vector.reset(seed=[10, 20, 12], options={"states": [states[2], None, states[0]]})[0]["state"]
    np.testing.assert_array_equal(fresh[[0, 2]], made[[2, 0]])
    assert not np.array_equal(fresh[1], made[1])


def test_states_continue_to_the_bit(vector: ThreadVectorEnv) -> None:
    vector.reset(seed=0)
    obs, *_ = vector.step(actions(2)[0])
    states = vector.get_states()
    ahead, *_ = vector.step(actions(2)[1])
    vector.reset(seed=30)
    np.testing.assert_array_equal(vector.set_states(states)["state"], obs["state"])
    np.testing.assert_array_equal(vector.step(actions(2)[1])[0]["state"], ahead["state"])


def test_action_that_one_environment_rejects_moves_none(vector: ThreadVectorEnv) -> None:
    vector.reset(seed=0)
    before = vector.get_states()
    bad = actions(1)[0]
    bad[2, 3] = np.nan
    for action, message in (
        (bad, "not finite"),
        (bad[:2], "2 actions for 3 environments"),
        (bad[:, :6], "shape"),
    ):
        with pytest.raises(ValueError, match=message):
            vector.step(action)
        for env, state in zip(vector.envs, before, strict=True):
            np.testing.assert_array_equal(env.get_state(), state)


@pytest.mark.parametrize(
    "arguments", [{"seed": [1, 2]}, {"options": {"states": [None]}}, {"options": {"reset_mask": [True]}}]
)
def test_wrong_number_of_environments_is_an_error(vector: ThreadVectorEnv, arguments: dict) -> None:
    with pytest.raises(ValueError, match="entries for 3 environments"):
        vector.reset(**arguments)


def test_without_semaphores_one_thread_steps_all(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(worker_pool, "_init_semaphores", lambda queue, jobs: False)
    with pytest.warns(UserWarning, match="in one thread: this system has no unnamed semaphores"):
        vector = ThreadVectorEnv([partial(make_robosuite_env, "lift")] * 2, threads=2)
    vector.reset(seed=0)
    vector.step(np.zeros((2, 7), np.float32))
    vector.close()
