"""Soft actor-critic: update against the equations, temperature, TD targets, exact resumption."""

import math
from typing import Any

import pytest
import torch
from torch import Tensor

from robot_rl.learning.critics import Critics
from robot_rl.learning.soft_actor import SACConfig, SACLearner
from robot_rl.policies.nets.actors import GaussianActor
from robot_rl.policies.nets.encoder import EncoderSpec, ObservationEncoder

STATE, ACTION = 4, 2


def make(device: str = "cpu", **options: Any) -> SACLearner:
    torch.manual_seed(0)
    defaults = {"hidden": [16, 16], "num_critics": 3, "critic_warmup": 2, "batch_size": 32}
    config = SACConfig(name="sac", **defaults | options)
    actor = GaussianActor(STATE, ACTION, config.hidden, layer_norm=config.layer_norm)
    encoder = ObservationEncoder(EncoderSpec(STATE))
    critics = Critics(config, encoder, ACTION)
    return SACLearner(config, critics, actor, ACTION, torch.device(device), seed=0)


def batch(seed: int, size: int = 32) -> dict[str, Tensor]:
    draw = torch.Generator().manual_seed(seed)
    return {
        "state": torch.randn(size, STATE, generator=draw),
        "next.state": torch.randn(size, STATE, generator=draw),
        "action": torch.rand(size, ACTION, generator=draw) * 2 - 1,
        "reward": (torch.rand(size, generator=draw) < 0.2).float(),
        "discount": 0.9 * (torch.rand(size, generator=draw) < 0.8).float(),
    }


def equal(a: Any, b: Any) -> bool:
    """Whether two trees of tensors are bit-identical."""
    if isinstance(a, dict):
        return a.keys() == b.keys() and all(equal(a[key], b[key]) for key in a)
    if isinstance(a, list | tuple):
        return len(a) == len(b) and all(equal(x, y) for x, y in zip(a, b, strict=True))
    return torch.equal(a, b) if isinstance(a, Tensor) else a == b


def test_log_density_is_that_of_the_squashed_gaussian() -> None:
    actor = make().soft.actor
    torch.nn.init.normal_(actor.head.weight, std=0.1)
    x = torch.randn(6, STATE)
    noise = torch.randn(6, ACTION)
    action, log_prob = actor.sample(x, noise)
    mean, log_std = actor(x)
    squashed = torch.distributions.TransformedDistribution(
        torch.distributions.Normal(mean, log_std.exp()), torch.distributions.TanhTransform(cache_size=1)
    )
    torch.testing.assert_close(action, torch.tanh(mean + log_std.exp() * noise))
    torch.testing.assert_close(log_prob, squashed.log_prob(action).sum(-1), atol=1e-3, rtol=1e-3)
    far, density = actor.sample(x, torch.full((6, ACTION), 50.0))
    assert far.isfinite().all()
    assert density.isfinite().all()


@pytest.mark.parametrize("layer_norm", [False, True])
@pytest.mark.parametrize("aggregation", ["mean", "min"])
def test_update_equals_the_sac_equations(aggregation: str, layer_norm: bool) -> None:
    """Compared with a plain autograd implementation."""
    options = {"backup_entropy": True, "actor_aggregation": aggregation, "layer_norm": layer_norm}
    ours, plain = (
        make(critics_per_target=3, critic_warmup=0, actor_every=1, max_grad_norm=math.inf, **options)
        for _ in range(2)
    )
    for seed in range(3):
        data = batch(seed)
        metrics = ours.update(data)
        critics, soft, tau = plain.critics, plain.soft, plain.config.tau
        alpha = soft.temperature.log.detach().exp()
        with torch.no_grad():
            action, log_prob = soft.actor.sample(data["next.state"], plain.noise(32, ACTION))
            value = by_hand(critics.target, data["next.state"], action).amin(0) - alpha * log_prob
            target = data["reward"] + data["discount"] * value
        q = by_hand(critics.online, data["state"], data["action"])
        loss = (q - target).square().mean(1).sum()
        plain.critic_optimizer.zero_grad()
        loss.backward()
        plain.critic_optimizer.step()
        torch.testing.assert_close(metrics["critic_loss"], loss.detach() / 3)
        action, log_prob = soft.actor.sample(data["state"], plain.noise(32, ACTION))
        q = by_hand(critics.online, data["state"], action)
        soft.optimizer.zero_grad()
        temperature = -soft.temperature.log * (log_prob.detach().mean() - ACTION / 2)
        (
            (alpha * log_prob - (q.mean(0) if aggregation == "mean" else q.amin(0))).mean() + temperature
        ).backward()
        soft.optimizer.step()
        with torch.no_grad():
            for slow, fast in zip(critics.target.parameters(), critics.online.parameters(), strict=True):
                slow.lerp_(fast, tau)
    for ours_module, plain_module in ((ours.critics, plain.critics), (ours.soft.actor, plain.soft.actor)):
        for found, expected in zip(ours_module.parameters(), plain_module.parameters(), strict=True):
            torch.testing.assert_close(found, expected, atol=1e-5, rtol=1e-4)
    torch.testing.assert_close(ours.soft.temperature.log, plain.soft.temperature.log)


def by_hand(critic: Any, features: Tensor, action: Tensor) -> Tensor:
    """Critic values [E, B] with plain torch layers."""
    x = torch.cat([features, action], -1)
    x = x.expand(critic.num_critics, *x.shape)
    for i, layer in enumerate(critic.layers):
        x = x @ layer.weight + layer.bias
        if len(critic.norms):
            x = (
                torch.nn.functional.layer_norm(x, x.shape[-1:]) * critic.norms[i].weight
                + critic.norms[i].bias
            )
        x = x.relu()
    return (x @ critic.head.weight + critic.head.bias).squeeze(-1)


def test_temperature_update_tracks_the_target_entropy() -> None:
    learner = make(critic_warmup=0, actor_every=1, actor_lr=1e-2, init_alpha=0.5)
    for _ in range(400):
        metrics = learner.update(batch(0))
    assert float(metrics["alpha"]) < 0.5
    assert float(metrics["entropy"]) == pytest.approx(-ACTION / 2, abs=0.5)


def test_actor_is_not_trained_during_the_critics_warmup() -> None:
    learner = make(critic_warmup=3, actor_every=2)
    updated = ["actor_q" in learner.update(batch(i)) for i in range(8)]
    assert updated == [False, False, False, True, False, True, False, True]
    assert learner.updates == 8


def test_td_targets_are_clamped_to_possible_returns_unless_they_include_entropy() -> None:
    for backup_entropy, bounded in ((False, True), (True, False)):
        learner = make(backup_entropy=backup_entropy, init_alpha=100.0)
        target = learner._td_target(batch(0))
        assert bool((target.abs() <= 1).all()) is bounded


def test_resumed_learner_continues_exactly() -> None:
    straight, first = make(), make()
    for i in range(4):
        straight.update(batch(i))
        first.update(batch(i))
    second = make()
    second.load_state_dict(first.state_dict())
    for i in range(4, 8):
        straight.update(batch(i))
        second.update(batch(i))
    assert equal(second.state_dict(), straight.state_dict())


@pytest.mark.parametrize(
    ("options", "answer"),
    [
        ({"init_alpha": 0.0}, "init_alpha=0.0: it must be more than 0"),
        ({"actor_aggregation": "max"}, "actor_aggregation=max: choose one of"),
        ({"backup_entropy": True, "critic_loss": "hl_gauss"}, "use mse or huber"),
    ],
)
def test_invalid_options_are_refused(options: dict[str, Any], answer: str) -> None:
    with pytest.raises(ValueError, match=answer):
        SACConfig(name="sac", **options)
