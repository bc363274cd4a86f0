"""Residual PPO (ResiP): advantages, reward normalisation, PPO update, rollouts, exact resumption."""

import copy
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from robot_rl.methods.residual_ppo import ResidualPPOConfig, ResidualPPOLearner, RewardNormalizer, gae
from robot_rl.policies.bases.diffusion import DiffusionConfig, DiffusionPolicy
from robot_rl.policies.finetuned.residual import Residual, ResidualSpec
from robot_rl.policies.finetuned.residual_ppo import GaussianResidual
from robot_rl.policies.nets.encoder import EncoderSpec
from robot_rl.saved_policies.loading import load_networks
from robot_rl.training.rollout_buffer import RolloutBuffer
from tests.conftest import RunCommand
from tests.robot_rl.training.test_training import assert_same, final_state, metrics

STATE, ACTION = 3, 2


def by_hand(
    reward: np.ndarray,
    value: np.ndarray,
    after: np.ndarray,
    terminal: np.ndarray,
    done: np.ndarray,
    gamma: float,
    gae_lambda: float,
) -> np.ndarray:
    """sum_l (gamma lambda)^l delta_{t+l}, up to the end of the episode (arXiv 1506.02438, eq. 16)."""
    steps, num_envs = reward.shape
    out = np.zeros((steps, num_envs))
    for b in range(num_envs):
        for t in range(steps):
            for k in range(t, steps):
                following = 0.0 if terminal[k, b] else after[k, b]
                delta = reward[k, b] + gamma * following - value[k, b]
                out[t, b] += (gamma * gae_lambda) ** (k - t) * delta
                if done[k, b]:
                    break
    return out


def test_gae_equals_the_sum_over_td_errors() -> None:
    rng = np.random.default_rng(0)
    reward, value, after = (rng.normal(size=(12, 3)) for _ in range(3))
    done = rng.random((12, 3)) < 0.25
    terminated = done & (rng.random((12, 3)) < 0.5)
    assert (done & ~terminated).any()
    assert terminated.any()
    for terminal in (terminated, done):
        arguments = (reward, value, after, terminal, done)
        found = gae(*(torch.from_numpy(a) for a in arguments), 0.9, 0.8)
        np.testing.assert_allclose(found, by_hand(*arguments, 0.9, 0.8))


def test_truncated_episode_is_bootstrapped_from_its_last_observation() -> None:
    """Never from the first observation of the next episode; with lambda = 1 as a sum of rewards."""
    reward = torch.tensor([[1.0], [2.0], [4.0]])
    value = torch.tensor([[0.3], [0.2], [0.1]])
    after = torch.tensor([[0.2], [10.0], [5.0]])  # 10 is the last observation's
    done = torch.tensor([[False], [True], [False]])
    never = torch.zeros_like(done)
    found = gae(reward, value, after, never, done, 0.5, 1.0) + value
    np.testing.assert_allclose(found[:, 0], [1 + 1 + 2.5, 2 + 5, 4 + 2.5], rtol=1e-6)
    found = gae(reward, value, after, done, done, 0.5, 1.0) + value
    np.testing.assert_allclose(found[:, 0], [1 + 1, 2, 4 + 2.5], rtol=1e-6)


def test_reward_is_divided_by_the_std_of_discounted_returns() -> None:
    rng = np.random.default_rng(0)
    reward = rng.normal(size=(30, 4)).astype(np.float32) * 0.5
    done = rng.random((30, 4)) < 0.2
    scale = RewardNormalizer(4, 0.9)
    for part in (slice(0, 7), slice(7, 30)):
        found = scale(torch.from_numpy(reward[part]), torch.from_numpy(done[part]))
    returns, all_returns = np.zeros(4), []
    for r, d in zip(reward.astype(float), done, strict=True):
        returns = 0.9 * returns + r
        all_returns.append(returns)
        returns = np.where(d, 0, returns)
    assert scale.std == pytest.approx(np.std(all_returns), rel=1e-6)
    np.testing.assert_allclose(found, np.clip(reward[7:] / scale.std, -5, 5), rtol=1e-5)


def test_zero_rewards_are_not_scaled() -> None:
    found = RewardNormalizer(2, 0.9)(torch.zeros(5, 2), torch.zeros(5, 2, dtype=torch.bool))
    assert torch.equal(found, torch.zeros(5, 2))


def learner(**options: Any) -> ResidualPPOLearner:
    torch.manual_seed(0)
    config = ResidualPPOConfig(**{"num_envs": 4, "rollout_steps": 8, "hidden": [16], **options})
    small = DiffusionConfig(horizon=2, execute=2, width=8, depth=1, train_steps=4, inference_steps=2)
    spec = ResidualSpec(EncoderSpec(STATE), ACTION, (16,), (0.5,) * ACTION)
    networks = Residual(DiffusionPolicy(small, STATE, ACTION), spec)
    gaussian = GaussianResidual(networks, config.std, learn_std=config.learn_std)
    return ResidualPPOLearner(config, networks, gaussian, torch.device("cpu"), seed=0)


def rollout(of: ResidualPPOLearner, seed: int = 0) -> dict[str, torch.Tensor]:
    """Rollout of the learner's policy; the reward is the sum of the sampled residual."""
    generator = torch.Generator().manual_seed(seed)
    state = torch.randn(9, 4, STATE, generator=generator)
    base = torch.rand(9, 4, ACTION, generator=generator)
    with torch.no_grad():
        mean = of.gaussian(of.encoder({"state": state}), base)
        sample = mean + of.gaussian.log_std.exp() * torch.randn(mean.shape, generator=generator)
        log_prob = of.gaussian.log_prob(mean, sample)
    never = torch.zeros(8, 4, dtype=torch.bool)
    data = {"state": state, "base": base, "sample": sample, "log_prob": log_prob}
    return {**data, "reward": sample[:-1].sum(-1), "terminated": never, "done": never}


def test_mean_moves_towards_rewarded_actions() -> None:
    one = learner(gamma=0.0, normalize_reward=False, target_kl=0.0, actor_lr=1e-3)
    means = []
    for seed in range(30):
        data = rollout(one, seed)
        metrics = one.update(data)
        with torch.no_grad():
            means.append(float(one.gaussian(one.encoder({"state": data["state"]}), data["base"]).mean()))
    assert means[-1] > 0.1 > means[0]
    assert all(value.isfinite() for value in metrics.values())


def test_passes_end_early_above_target_kl() -> None:
    far, near = learner(actor_lr=0.02, target_kl=0.0), learner(actor_lr=0.02, target_kl=0.01)
    assert far.update(rollout(far))["passes"] == 10
    assert near.update(rollout(near))["passes"] < 5


def test_clipped_ratio_has_no_gradient() -> None:
    """If the ratio is outside the clipping range in the direction of the advantage."""
    one = learner()
    flat, _ = one._flatten(rollout(one))
    batch = {**flat, "log_prob": flat["log_prob"] - 1.0, "advantage": torch.ones_like(flat["advantage"])}
    assert float(one._minibatch_step(batch)["actor_grad"]) == 0
    assert float(one._minibatch_step({**batch, "advantage": -batch["advantage"]})["actor_grad"]) > 0


@pytest.mark.parametrize("learn_std", [False, True])
def test_std_is_learned_only_with_learn_std(learn_std: bool) -> None:
    one = learner(learn_std=learn_std, entropy=0.01)
    before = one.gaussian.log_std.clone()
    one.update(rollout(one))
    assert torch.equal(before, one.gaussian.log_std) != learn_std


def test_resumed_learner_continues_exactly() -> None:
    one, other = learner(learn_std=True), learner(learn_std=True)
    one.update(rollout(one))
    other.load_state_dict(copy.deepcopy(one.state_dict()))
    data = rollout(one, seed=1)
    assert_same(one.update(data), other.update(data))
    assert_same(one.state_dict(), other.state_dict())


def test_consecutive_rollouts_share_a_row_and_store_final_observations() -> None:
    buffer = RolloutBuffer(2, 2, ("state", "base"))

    def at(t: int) -> dict[str, np.ndarray]:
        return {"state": np.array([[t], [-t]], np.float32), "base": np.array([[t], [t]], np.float32)}

    none, reward = np.zeros(2, bool), np.zeros(2, np.float32)
    buffer.add_decision({**at(0), "unknown": np.zeros(2)})
    buffer.add_outcome(reward + 1, none, none, {})
    buffer.add_decision(at(1))
    ended = np.array([False, True])
    buffer.add_outcome(
        reward + 2, none, ended, {"state": np.array([[99]], np.float32), "base": reward[:1, None]}
    )
    buffer.add_decision(at(2))
    assert buffer.full
    data = buffer.tensors(torch.device("cpu"))
    assert data.keys() == {"state", "base", "reward", "terminated", "done", "final.state", "final.base"}
    assert data["state"][:, 1, 0].tolist() == [0, -1, -2]
    assert data["reward"].tolist() == [[1, 1], [2, 2]]
    assert data["done"].tolist() == [[False, False], [False, True]]
    assert data["final.state"][1, 1] == 99
    buffer.restart()
    other = RolloutBuffer(2, 2, ("state", "base"))
    other.load_state_dict(buffer.state_dict())
    for one in (buffer, other):
        one.add_outcome(reward, none, none, {})
        one.add_decision(at(3))
        one.add_outcome(reward, none, none, {})
        one.add_decision(at(4))
        assert one.full
        assert one.tensors(torch.device("cpu"))["state"][:, 0, 0].tolist() == [2, 3, 4]
    # Tensors that were returned do not change.
    assert data["state"][:, 0, 0].tolist() == [0, 1, 2]


def test_invalid_options_are_refused() -> None:
    with pytest.raises(ValueError, match=r"method\.residual_scale=0"):
        ResidualPPOConfig(residual_scale=0)
    with pytest.raises(ValueError, match=r"method\.std=0"):
        ResidualPPOConfig(std=0)
    with pytest.raises(ValueError, match="has 8 steps; choose"):
        ResidualPPOConfig(num_envs=2, rollout_steps=4, minibatches=9)
    with pytest.raises(ValueError, match="before the first rollout of 2048 steps"):
        ResidualPPOConfig(steps=2000)


def command(base: Path, runs: Path, name: str, steps: int, *more: str) -> list[str]:
    return [
        "method=residual_ppo",
        f"base={base}",
        f"runs_dir={runs}",
        f"name={name}",
        f"method.steps={steps}",
        "method.num_envs=2",
        "method.rollout_steps=16",
        "method.hidden=[16,16]",
        "log_every=20",
        "task.horizon=30",
        "threads=1",
        *more,
    ]


def test_resumed_run_equals_an_uninterrupted_one(
    tmp_path: Path, robot_rl: RunCommand, base_run: Path
) -> None:
    """Also if it stops within a rollout, an episode and a chunk."""
    robot_rl("train", *command(base_run, tmp_path, "straight", 150))
    robot_rl("train", *command(base_run, tmp_path, "resumed", 90))
    robot_rl("train", *command(base_run, tmp_path, "resumed", 150))
    straight = final_state(tmp_path / "straight")
    assert straight["episodes"]["begun"] > 4
    assert_same(straight, final_state(tmp_path / "resumed"))
    assert metrics(tmp_path / "straight") == metrics(tmp_path / "resumed")
    assert len(metrics(tmp_path / "straight")["learn/passes"]) == 4
    robot_rl("train", *command(base_run, tmp_path, "other", 150), "seed=1")
    other = final_state(tmp_path / "other")
    states = [state["rollout"]["data"]["state"] for state in (straight, other)]
    assert not np.array_equal(*states)
    networks, _ = load_networks(tmp_path / "straight")
    assert isinstance(networks, Residual)


@pytest.mark.parametrize(
    "options", [{"hidden": []}, {"epochs": 0}, {"gamma": 1.5}, {"gae_lambda": 2}, {"clip": 0}]
)
def test_options_that_cannot_be_are_refused(options: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=f"method.{next(iter(options))}"):
        ResidualPPOConfig(**options)
