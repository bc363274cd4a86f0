"""A base that predicts exactly what will happen acts with any delay as without one."""

import copy

import numpy as np
import pytest
import torch
from torch import Tensor

from robot_rl.cli.compose import load_group
from robot_rl.data.expert_episodes import expert_action
from robot_rl.envs.experts import make_expert
from robot_rl.envs.experts.expert import Expert
from robot_rl.envs.robosuite_env import RobosuiteEnv
from robot_rl.envs.task import TaskConfig
from robot_rl.factory import make_robosuite_env
from robot_rl.policies.acting import ActingPolicy
from robot_rl.policies.async_runner import execute_asynchronously
from robot_rl.policies.asynchronous import AsyncOptions
from robot_rl.policies.bases.base_policy import BasePolicy, BaseSpec, Chunk, ObservationHistory

STEPS, HORIZON, EXECUTE = 22, 12, 4


class Foresight(BasePolicy):
    """Predicts what the expert of Lift does from now on, by simulating it."""

    def __init__(self, env: RobosuiteEnv, expert: Expert) -> None:
        """Create the base; `expert` must not have acted at the current step yet."""
        super().__init__()
        self.env, self.expert = env, expert
        sizes = env.observation_spec.state_size, len(env.action_spec)
        self.spec = BaseSpec(*sizes, HORIZON, EXECUTE, 1, None, deterministic=True)

    @property
    def device(self) -> torch.device:
        return torch.device("cpu")

    def sample(
        self,
        obs: ObservationHistory,
        *,
        noise: Tensor | None = None,
        num_samples: int = 1,
        generator: torch.Generator | None = None,
    ) -> Chunk:
        state, expert, actions = self.env.get_state(), copy.deepcopy(self.expert), []
        for _ in range(HORIZON):
            actions.append(expert_action(self.env, expert))
            self.env.step(actions[-1])
        self.env.set_state(state)
        return Chunk(torch.from_numpy(np.stack(actions))[None, None], None)


@pytest.mark.parametrize("mode", ["naive", "blend"])
def test_with_the_exact_future_a_delay_changes_nothing(mode: str) -> None:
    env = make_robosuite_env(load_group("task", "lift", TaskConfig), observe_all=True)
    obs, _ = env.reset(seed=0)
    expert = make_expert(env.task.env, noise=0.0, skill=1.0, rng=np.random.default_rng(0))
    expert.reset(env.sim)
    base = Foresight(env, expert)
    policy = ActingPolicy(base, 1)
    execute_asynchronously(policy, AsyncOptions(mode, 4), (False,) * 6 + (True,))
    policy.reset([0], [0])
    for _ in range(STEPS):
        base.expert = copy.deepcopy(expert)
        # First, since the restored state of a prediction has newer poses than the state after a step.
        expected = expert_action(env, expert)
        action = policy.act_single(obs)
        # To the bit; a mean of two equal actions may be rounded.
        np.testing.assert_allclose(action, expected, rtol=1e-6 if mode == "blend" else 0)
        obs, *_ = env.step(action)
    env.close()
