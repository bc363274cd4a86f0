"""The stepping loop: what it yields, when it ends, and actions that are chosen before their step."""

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from robot_rl.envs.observation import Observation
from robot_rl.rollout import Rollout

Array = NDArray[Any]


class Counters:
    """Counters to which actions are added; an episode is terminated at 3, and truncated after 4 steps."""

    def __init__(self, num_envs: int) -> None:
        self.count, self.steps = np.zeros(num_envs), np.zeros(num_envs, int)

    def reset(self, mask: np.ndarray) -> Observation:
        self.count[mask] = self.steps[mask] = 0
        return {"state": self.count.copy()}

    def step(self, action: np.ndarray, /) -> tuple[Observation, Array, Array, Array, dict[str, Any]]:
        self.count += action
        self.steps += 1
        terminated = self.count >= 3
        obs = {"state": self.count.copy()}
        return obs, terminated.astype(np.float32), terminated, self.steps >= 4, {"success": terminated}


class OneCounter:
    """A single counter, with scalars instead of arrays."""

    def __init__(self) -> None:
        self.counters = Counters(1)

    def step(self, action: np.ndarray, /) -> tuple[Observation, float, bool, bool, dict[str, Any]]:
        obs, reward, terminated, truncated, info = self.counters.step(action)
        return obs, float(reward[0]), bool(terminated[0]), bool(truncated[0]), info


@pytest.mark.parametrize(("action", "length", "reward"), [(1.0, 3, 1.0), (0.5, 4, 0.0)])
def test_rollout_of_one_environment_ends_with_its_episode(action: float, length: int, reward: float) -> None:
    env = OneCounter()
    obs = env.counters.reset(np.array([True]))
    steps = list(Rollout(env, lambda _: np.full(1, action, np.float32), obs))
    assert [step.done for step in steps] == [False] * (length - 1) + [True]
    assert (steps[-1].reward, steps[-1].truncated) == (reward, reward == 0)
    counts = action * np.arange(length + 1)
    np.testing.assert_array_equal([step.obs["state"][0] for step in steps], counts[:-1])
    np.testing.assert_array_equal([step.next_obs["state"][0] for step in steps], counts[1:])


def test_rollout_of_several_environments_continues_until_all_ended_and_none_was_reset() -> None:
    envs = Counters(2)
    rollout = Rollout(envs, lambda obs: np.array([1, 0.25], np.float32), envs.reset(np.ones(2, bool)))
    seen = []
    for step in rollout:
        seen.append(step.done.tolist())
        if len(seen) < 7 and step.done.any():
            # The transition has the last observation of an episode, not the first of the next one.
            assert (step.next_obs["state"][step.done] > 0).all()
            rollout.begin(envs.reset(step.done))
        assert len(seen) < 20
    assert [one for one, _ in seen[:6]] == [False, False, True] * 2
    assert [other for _, other in seen[:4]] == [False, False, False, True]
    assert seen[-1] == [True, True]


def test_action_chosen_before_its_step_is_the_one_that_is_executed() -> None:
    env, chosen = OneCounter(), []

    def act(obs: Observation) -> np.ndarray:
        chosen.append(float(obs["state"][0]))
        return np.ones(1, np.float32)

    rollout = Rollout(env, act, env.counters.reset(np.array([True])))
    assert rollout.decide() is rollout.decide()
    assert rollout.step().action == 1
    rollout.step()
    assert chosen == [0, 1]
    # As after loading a checkpoint.
    rollout.action = np.full(1, 5, np.float32)
    assert rollout.step().next_obs["state"] == 7
    assert chosen == [0, 1]
