"""The learners of a residual: targets as by hand, actors that climb, exact resumption, refusals."""

import copy
from typing import Any

import pytest
import torch
from torch import Tensor

from policies.diffusion import DiffusionConfig, DiffusionPolicy
from policies.encoder import EncoderSpec
from policies.residual import Residual, ResidualSpec
from robot_rl.methods.residual import ResidualConfig, ResidualLearner, SoftResidualLearner
from tests.robot_rl.test_training import assert_same

STATE, ACTION, B = 3, 2, 32
SCALE = (0.5, 0.25)
LEARNERS = {"td3": ResidualLearner, "sac": SoftResidualLearner}


def learner(actor: str, **options: Any) -> ResidualLearner | SoftResidualLearner:
    torch.manual_seed(0)
    defaults = {"hidden": [16], "members": 3, "critic_warmup": 0, "actor_every": 1}
    config = ResidualConfig(**{**defaults, "actor": actor, **options})
    small = DiffusionConfig(horizon=2, execute=2, width=8, depth=1, train_steps=4, inference_steps=2)
    spec = ResidualSpec(EncoderSpec(STATE), ACTION, (16,), SCALE, actor)
    networks = Residual(DiffusionPolicy(small, STATE, ACTION), spec)
    torch.nn.init.normal_(networks.actor.net.head.weight, std=0.1)
    return LEARNERS[actor](config, networks, torch.device("cpu"), seed=0)


def batch(seed: int = 0) -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(seed)

    def uniform(*shape: int) -> Tensor:
        return torch.rand(shape, generator=generator) * 2 - 1

    return {
        "state": uniform(B, STATE),
        "next.state": uniform(B, STATE),
        "base": uniform(B, ACTION),
        "next.base": uniform(B, ACTION),
        "action": uniform(B, ACTION),
        "reward": (uniform(B) > 0.5).float(),
        "discount": (uniform(B) > -0.5) * 0.9,
    }


def drawn(one: ResidualLearner | SoftResidualLearner) -> tuple[Tensor, Tensor]:
    """The noise [B, A] and the two critics that the next target will draw."""
    state = one.generator.get_state()
    found = one.noise(B, ACTION), one.critics.choose(one.generator)
    one.generator.set_state(state)
    assert len(found[1]) == 2
    return found


def test_td3_target_is_that_by_hand() -> None:
    one, data = learner("td3"), batch()
    noise, chosen = drawn(one)
    scale, base = torch.tensor(SCALE), data["next.base"]
    smoothing = torch.maximum(torch.minimum(0.25 * noise * scale, scale / 2), -scale / 2)
    with torch.no_grad():
        residual = one.target_actor(data["next.state"], base) + smoothing
        action = (base + residual).clamp(-1, 1)
        q = one.critics.target(data["next.state"], action).squeeze(-1)[chosen]
        expected = (data["reward"] + data["discount"] * q.min(0).values).clamp(0, 1)
        torch.testing.assert_close(one._target(data), expected)


@pytest.mark.parametrize("backup_entropy", [False, True])
def test_sac_target_is_that_by_hand(backup_entropy: bool) -> None:
    one, data = learner("sac", backup_entropy=backup_entropy), batch()
    noise, chosen = drawn(one)
    base = data["next.base"]
    with torch.no_grad():
        mean, log_std = one.actor.net(torch.cat([data["next.state"], base], -1))
        u = mean + log_std.exp() * noise
        action = (base + torch.tensor(SCALE) * torch.tanh(u)).clamp(-1, 1)
        q = one.critics.target(data["next.state"], action).squeeze(-1)[chosen]
        value = q.min(0).values
        density = torch.distributions.Normal(mean, log_std.exp()).log_prob(u) - torch.log1p(-(u.tanh() ** 2))
        if backup_entropy:
            expected = data["reward"] + data["discount"] * (value - 0.1 * density.sum(-1))
        else:
            expected = (data["reward"] + data["discount"] * value).clamp(0, 1)
        torch.testing.assert_close(one._target(data), expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("actor", ["td3", "sac"])
def test_the_actor_climbs_the_value_of_the_executed_action(
    actor: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = learner(actor, actor_lr=1e-2, penalty=0.0, init_alpha=1e-3)
    # The best executed action is 0.2, wherever the base is.
    monkeypatch.setattr(
        one.critics, "values", lambda _, action: -(action - 0.2).square().sum(-1).expand(3, -1)
    )
    data = {**batch(), "base": torch.zeros(B, ACTION)}
    for _ in range(150):
        metrics = one._update_actor(data, data["state"])
    with torch.no_grad():
        deployed = one.actor(data["state"], data["base"])
    torch.testing.assert_close(deployed, torch.full_like(deployed, 0.2), atol=0.06, rtol=0)
    assert 0 < metrics["residual_abs"] < 1
    # Critics learn from their own loss alone.
    assert all(p.grad is None for p in one.critics.online.parameters())


@pytest.mark.parametrize("actor", ["td3", "sac"])
def test_a_restored_learner_goes_on_the_same(actor: str) -> None:
    one, other = learner(actor), learner(actor)
    for seed in range(3):
        one.update(batch(seed))
    other.load_state_dict(copy.deepcopy(one.state_dict()))
    for seed in range(3, 6):
        assert_same(one.update(batch(seed)), other.update(batch(seed)))
    assert_same(one.state_dict(), other.state_dict())


def test_a_single_critic_learns() -> None:
    metrics = learner("td3", members=1, subset=1).update(batch())
    assert all(value.isfinite() for value in metrics.values())
    assert metrics["q_spread"] == 0


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"actor": "ppo"}, "method.actor=ppo: choose td3 or sac"),
        ({"progressive_steps": -1}, "method.progressive_steps=-1: choose 0 or more"),
        ({"scale": 0.0}, r"method\.scale=0\.0: choose it in \(0, 2\]"),
    ],
)
def test_mistakes_are_refused_with_what_to_change(options: dict[str, Any], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        ResidualConfig(**options)
