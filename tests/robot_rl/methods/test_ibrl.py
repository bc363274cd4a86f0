"""IBRL: critic target, actor update, dropout, exact resumption, refused options."""

import copy
from collections.abc import Iterator
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from robot_rl.methods.ibrl import IBRLConfig, IBRLLearner, bootstrap_value
from robot_rl.policies.bases.diffusion import DiffusionConfig, DiffusionPolicy
from robot_rl.policies.finetuned.ibrl import IBRL, IBRLSpec
from robot_rl.policies.nets.critic import ValueSpec
from robot_rl.policies.nets.encoder import EncoderSpec

B, STATE, ACTION = 6, 4, 3
SMALL = IBRLConfig(num_critics=4, hidden=[16, 16], batch_size=B, critic_warmup=0, actor_every=1)


def build(config: IBRLConfig = SMALL, seed: int = 0) -> IBRLLearner:
    torch.manual_seed(seed)
    base = DiffusionPolicy(
        DiffusionConfig(width=16, depth=1, train_steps=8, inference_steps=2), STATE, ACTION
    )
    spec = IBRLSpec(
        encoder=EncoderSpec(STATE),
        value=ValueSpec(config.critic_loss, *config.value_range),
        action_size=ACTION,
        hidden=tuple(config.hidden),
        num_critics=config.num_critics,
        layer_norm=True,
        temperature=config.temperature,
        uncertainty_penalty=0.5,
    )
    learner = IBRLLearner(config, IBRL(base.eval(), spec), torch.device("cpu"), seed)
    torch.nn.init.normal_(learner.actor.head.weight)
    torch.nn.init.normal_(learner.target_actor.head.weight)
    return learner


def batches() -> Iterator[dict[str, Tensor]]:
    generator = torch.Generator().manual_seed(0)
    while True:
        drawn = {
            name: torch.rand(B, size, generator=generator) * 2 - 1
            for name, size in (
                ("state", STATE),
                ("next.state", STATE),
                ("action", ACTION),
                ("base", ACTION),
                ("next.base", ACTION),
            )
        }
        ends = {
            "reward": torch.tensor([0.0, 1, 0, 0, 0, 0]),
            "discount": torch.tensor([0.9, 0, 0.9, 0.9, 0.9, 0.9]),
        }
        yield {**drawn, **ends}


@pytest.mark.parametrize("warm", [True, False])
@pytest.mark.parametrize("temperature", [0.0, 0.1])
def test_critic_target_is_the_value_of_the_choice_between_base_and_actor(
    temperature: float, warm: bool
) -> None:
    learner, batch = (
        build(replace(SMALL, temperature=temperature, critic_warmup=0 if warm else 5)),
        next(batches()),
    )
    learner.updates = 1
    generator = torch.Generator()
    generator.set_state(learner.generator.get_state())
    with torch.no_grad():
        target = learner._td_target(batch)
        noise = (0.1 * torch.randn(B, ACTION, generator=generator)).clamp(-0.3, 0.3)
        own = (learner.target_actor(batch["next.state"]) + noise).clamp(-1, 1)
        chosen = learner.critics.sample_subset(generator)
        base_q, own_q = (
            learner.critics.target(batch["next.state"], action, chosen)[..., 0].amin(0)
            for action in (batch["next.base"], own)
        )
    if not warm:
        value = base_q
    elif temperature:
        weight = torch.sigmoid((own_q - base_q) / temperature)
        value = weight * own_q + (1 - weight) * base_q
    else:
        value = torch.maximum(base_q, own_q)
    torch.testing.assert_close(target, (batch["reward"] + batch["discount"] * value).clamp(0, 1))


def test_soft_bootstrap_approaches_the_maximum_at_low_temperature() -> None:
    values = torch.tensor([[0.1, 0.9], [0.3, 0.2]])
    torch.testing.assert_close(bootstrap_value(values, 1e-3), bootstrap_value(values, 0.0))
    torch.testing.assert_close(bootstrap_value(values, 1e6), values.mean(0))


def test_actor_update_increases_the_value_and_does_not_change_the_critics() -> None:
    learner, batch = build(replace(SMALL, actor_lr=1e-2)), next(batches())

    def value() -> float:
        with torch.no_grad():
            return float(learner.critics.values(batch["state"], learner.actor(batch["state"])).mean())

    before, critics = value(), {k: v.clone() for k, v in learner.critics.state_dict().items()}
    for _ in range(40):
        learner._update_actor(batch, batch["state"])
    assert value() > before + 0.01
    for name, tensor in learner.critics.state_dict().items():
        torch.testing.assert_close(tensor, critics[name], rtol=0, atol=0)


def test_dropout_masks_have_the_right_rate_and_mean() -> None:
    masks = build(replace(SMALL, dropout=0.25))._dropout_masks(4000)
    assert masks is not None
    assert len(masks) == 2
    for layer in masks:
        assert layer.unique().tolist() == pytest.approx([0, 4 / 3])
        assert float(layer.mean()) == pytest.approx(1, abs=0.02)
    assert build(replace(SMALL, dropout=0.0))._dropout_masks(4) is None


def test_resumed_learner_continues_exactly() -> None:
    learner, source = build(), batches()
    for _ in range(3):
        learner.update(next(source))
    saved = copy.deepcopy(learner.state_dict())
    other = build(seed=1)
    other.load_state_dict(saved)
    for _ in range(3):
        batch = next(source)
        one, two = learner.update(batch), other.update(batch)
        for name in one:
            torch.testing.assert_close(one[name], two[name], rtol=0, atol=0)


@pytest.mark.parametrize(
    ("changes", "message"), [({"dropout": 1.0}, "dropout"), ({"temperature": -1.0}, "temp")]
)
def test_invalid_options_are_refused(changes: dict, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        replace(SMALL, **changes)
