"""A robosuite task as a Gymnasium environment with exact state."""

import json
from collections.abc import Iterator

import numpy as np
import pytest

from robot_rl.cli.compose import load_group
from robot_rl.data.compatibility import check_same_environment
from robot_rl.envs.action import spec_from_list
from robot_rl.envs.experts import make_expert
from robot_rl.envs.robosuite_env import RobosuiteEnv
from robot_rl.envs.task import TaskConfig
from robot_rl.factory import make_robosuite_env, task_of

TASKS = ["lift", "square", "door", *(pytest.param(name, marks=pytest.mark.full) for name in ("can", "stack"))]


def same(one: dict[str, np.ndarray], two: dict[str, np.ndarray]) -> bool:
    return one.keys() == two.keys() and all(np.array_equal(one[key], two[key]) for key in one)


def actions(count: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).uniform(-1, 1, (count, 7)).astype(np.float32)


@pytest.fixture(scope="module", params=TASKS)
def pair(request: pytest.FixtureRequest) -> Iterator[tuple[RobosuiteEnv, RobosuiteEnv]]:
    """Two environments of a task; the second is rebuilt from the description of the first."""
    first = make_robosuite_env(request.param)
    second = make_robosuite_env(task_of(json.loads(json.dumps(first.describe()))))
    yield first, second
    first.close()
    second.close()


@pytest.fixture
def env(pair: tuple[RobosuiteEnv, RobosuiteEnv]) -> RobosuiteEnv:
    return pair[0]


@pytest.fixture(scope="module")
def lift() -> Iterator[RobosuiteEnv]:
    env = make_robosuite_env("lift")
    yield env
    env.close()


def test_seed_fixes_the_whole_initial_state(pair: tuple[RobosuiteEnv, RobosuiteEnv]) -> None:
    first, second = pair
    obs, _ = first.reset(seed=3)
    state = first.get_state()
    for action in actions(10):
        first.step(action)
    other, _ = second.reset(seed=4)
    assert not np.array_equal(second.get_state(), state)
    assert not same(other, obs)
    for env in pair:  # one in the middle of an episode, one fresh
        again, info = env.reset(seed=3)
        assert same(again, obs)
        np.testing.assert_array_equal(env.get_state(), state)
        assert not info["success"]


def test_saved_state_continues_to_the_bit_elsewhere(pair: tuple[RobosuiteEnv, RobosuiteEnv]) -> None:
    first, second = pair
    first.reset(seed=5)
    for action in actions(12):
        obs, *_ = first.step(action)
    state = first.get_state()
    second.reset(seed=99)
    for action in actions(3, seed=9):
        second.step(action)
    assert same(second.set_state(state), obs)
    np.testing.assert_array_equal(second.get_state(), state)
    for action in actions(15, seed=1):
        one, two = first.step(action), second.step(action)
        assert same(one[0], two[0])
        assert one[1:4] == two[1:4]
        np.testing.assert_array_equal(first.get_state(), second.get_state())


def test_reset_starts_from_a_saved_state(pair: tuple[RobosuiteEnv, RobosuiteEnv]) -> None:
    first, second = pair
    obs, _ = first.reset(seed=6)
    again, _ = second.reset(seed=1, options={"state": first.get_state()})
    assert same(again, obs)
    np.testing.assert_array_equal(second.get_state(), first.get_state())


def test_description_is_json_and_rebuilds_an_equal_environment(
    pair: tuple[RobosuiteEnv, RobosuiteEnv],
) -> None:
    first, second = pair
    recorded = json.loads(json.dumps(first.describe()))
    assert recorded == first.describe()  # nothing changes on the way through JSON
    assert second.describe() == recorded
    check_same_environment(recorded, second.describe(), "a dataset")
    assert first.task == second.task
    assert spec_from_list(recorded["action_spec"]) == second.action_spec


def test_observation_and_action_are_those_of_the_spaces(env: RobosuiteEnv) -> None:
    obs, _ = env.reset(seed=0)
    assert env.observation_space.contains(obs)
    assert [dim.kind for dim in env.action_spec] == ["delta"] * 6 + ["gripper"]
    assert env.action_space.shape == (7,)
    obs, reward, *_ = env.step(actions(1)[0])
    assert env.observation_space.contains(obs)
    assert reward == 0.0


def test_action_out_of_range_is_clipped_and_reported(pair: tuple[RobosuiteEnv, RobosuiteEnv]) -> None:
    wild = np.array([3, -2, 0.5, 0, 1.5, -9, 2])
    clipped = np.array([1, -1, 0.5, 0, 1, -1, 1], np.float32)
    results = []
    for env, action in zip(pair, (wild, clipped), strict=True):
        env.reset(seed=2)
        obs, *_, info = env.step(action)
        np.testing.assert_array_equal(info["applied_action"], clipped)
        assert info["applied_action"].dtype == np.float32
        results.append(obs)
    assert same(*results)


@pytest.mark.parametrize(
    ("action", "message"),
    [
        (np.zeros(6), r"shape \(6,\), the task needs \(7,\)"),
        (np.zeros((1, 7)), "shape"),
        (np.array([0, 0, np.nan, 0, 0, 0, 0]), "not finite"),
        (np.array([0, 0, np.inf, 0, 0, 0, 0]), "not finite"),
    ],
)
def test_refused_action_moves_nothing(lift: RobosuiteEnv, action: np.ndarray, message: str) -> None:
    lift.reset(seed=2)
    before = lift.get_state()
    with pytest.raises(ValueError, match=message):
        lift.step(action)
    np.testing.assert_array_equal(lift.get_state(), before)


def test_success_ends_the_episode_with_the_only_reward(lift: RobosuiteEnv) -> None:
    lift.reset(seed=0)
    expert = make_expert("Lift", noise=0.0, skill=1.0, rng=np.random.default_rng(0))
    expert.reset(lift.sim)
    rewards = []
    terminated = truncated = False
    while not (terminated or truncated):
        _, reward, terminated, truncated, info = lift.step(expert.act(lift.sim))
        rewards.append(reward)
        assert info["success"] == terminated
    assert terminated
    assert not truncated
    assert rewards == [0.0] * (len(rewards) - 1) + [1.0]


def test_episode_is_truncated_at_the_horizon_and_not_before() -> None:
    task = load_group("task", "lift", TaskConfig)
    task.horizon = 4
    env = make_robosuite_env(task)
    for _ in range(2):  # the count begins again
        env.reset(seed=0)
        ends = [env.step(np.zeros(7))[2:4] for _ in range(4)]
        assert ends == [(False, False)] * 3 + [(False, True)]
    env.close()


def test_state_of_another_task_is_refused_and_nothing_changes(lift: RobosuiteEnv) -> None:
    lift.reset(seed=0)
    before = lift.get_state()
    stack = make_robosuite_env("stack")
    stack.reset(seed=0)
    with pytest.raises(ValueError, match="another task, robot, controller or version"):
        lift.set_state(stack.get_state())
    stack.close()
    broken = before.copy()
    broken[5] = np.nan
    with pytest.raises(ValueError, match="not finite"):
        lift.set_state(broken)
    np.testing.assert_array_equal(lift.get_state(), before)


def test_difference_in_the_controller_is_seen(lift: RobosuiteEnv) -> None:
    task = load_group("task", "lift", TaskConfig)
    task.controller = "OSC_POSITION"
    other = make_robosuite_env(task)
    assert len(other.action_spec) == 4
    with pytest.raises(
        ValueError, match=r"action_spec was .*controller was OSC_POSE, here it is OSC_POSITION"
    ):
        check_same_environment(lift.describe(), other.describe(), "it")
    other.close()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"env": "Lft"}, "no environment 'Lft'"),
        ({"state_keys": ["cube_pos", "cub"]}, "does not observe cub;"),
        (
            {"control_freq": 30},
            r"control_freq=30: .* no whole number of the 500 .*; choose one of .* 20, 25, 50,",
        ),
        ({"control_freq": 1000}, r"control_freq=1000: .* 250, 500"),
        ({"control_freq": 0}, r"task\.control_freq=0: give control steps per second"),
        ({"horizon": -1}, r"task\.horizon=-1: it must not be negative"),
        ({"model_seed": -1}, r"task\.model_seed=-1: it must not be negative"),
    ],
)
def test_task_that_robosuite_does_not_have_is_refused(change: dict, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make_robosuite_env(TaskConfig(**{**vars(load_group("task", "lift", TaskConfig)), **change}))
