"""Residual (ResFiT): critic target, actor update, exact resumption, refused options."""

import copy
from typing import Any

import pytest
import torch
from torch import Tensor

from robot_rl.methods.residual import ResidualConfig, ResidualLearner
from robot_rl.policies.bases.diffusion import DiffusionConfig, DiffusionPolicy
from robot_rl.policies.finetuned.residual import Residual, ResidualSpec
from robot_rl.policies.nets.encoder import EncoderSpec
from tests.robot_rl.training.test_training import assert_same

STATE, ACTION, B = 3, 2, 32
SCALE = (0.5, 0.25)


def learner(**options: Any) -> ResidualLearner:
    torch.manual_seed(0)
    defaults = {"hidden": [16], "num_critics": 3, "critic_warmup": 0, "actor_every": 1}
    config = ResidualConfig(**{**defaults, **options})
    small = DiffusionConfig(horizon=2, execute=2, width=8, depth=1, train_steps=4, inference_steps=2)
    spec = ResidualSpec(EncoderSpec(STATE), ACTION, (16,), SCALE)
    networks = Residual(DiffusionPolicy(small, STATE, ACTION), spec)
    torch.nn.init.normal_(networks.actor.net.head.weight, std=0.1)
    return ResidualLearner(config, networks, torch.device("cpu"), seed=0)


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


def drawn(one: ResidualLearner) -> tuple[Tensor, Tensor]:
    """The noise [B, A] and the two critics that the next target will sample."""
    state = one.generator.get_state()
    found = one.noise(B, ACTION), one.critics.sample_subset(one.generator)
    one.generator.set_state(state)
    assert len(found[1]) == 2
    return found


def test_critic_target_equals_td3_by_hand() -> None:
    one, data = learner(), batch()
    noise, chosen = drawn(one)
    scale, base = torch.tensor(SCALE), data["next.base"]
    smoothing = torch.maximum(torch.minimum(0.25 * noise * scale, scale / 2), -scale / 2)
    with torch.no_grad():
        residual = one.target_actor(data["next.state"], base) + smoothing
        action = (base + residual).clamp(-1, 1)
        q = one.critics.target(data["next.state"], action).squeeze(-1)[chosen]
        expected = (data["reward"] + data["discount"] * q.min(0).values).clamp(0, 1)
        torch.testing.assert_close(one._td_target(data), expected)


def test_actor_update_increases_the_value_of_the_executed_action(monkeypatch: pytest.MonkeyPatch) -> None:
    one = learner(actor_lr=1e-2, penalty=0.0)
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
    # The actor loss gives the critics no gradient.
    assert all(p.grad is None for p in one.critics.online.parameters())


def test_resumed_learner_continues_exactly() -> None:
    one, other = learner(), learner()
    for seed in range(3):
        one.update(batch(seed))
    other.load_state_dict(copy.deepcopy(one.state_dict()))
    for seed in range(3, 6):
        assert_same(one.update(batch(seed)), other.update(batch(seed)))
    assert_same(one.state_dict(), other.state_dict())


def test_ensemble_of_one_critic_works() -> None:
    metrics = learner(num_critics=1, critics_per_target=1).update(batch())
    assert all(value.isfinite() for value in metrics.values())
    assert metrics["q_spread"] == 0


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"progressive_steps": -1}, "method.progressive_steps=-1: choose 0 or more"),
        ({"residual_scale": 0.0}, r"method\.residual_scale=0\.0: choose it in \(0, 2\]"),
        ({"gripper_scale": 0.0}, r"method\.gripper_scale=0\.0: choose it in \(0, 2\]"),
    ],
)
def test_invalid_options_are_refused(options: dict[str, Any], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        ResidualConfig(**options)
