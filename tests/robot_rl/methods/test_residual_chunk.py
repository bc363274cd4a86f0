"""Chunk residual (DICE-RL): critic target, imitation, critic warm-up, exact resumption, refused options."""

import copy
import re
from collections.abc import Iterator
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from robot_rl.learning.off_policy import stored_base_samples
from robot_rl.methods.residual_chunk import ResidualChunkConfig, ResidualChunkLearner
from robot_rl.policies.bases.diffusion import DiffusionConfig, DiffusionPolicy
from robot_rl.policies.finetuned.candidates import CandidatesSpec
from robot_rl.policies.finetuned.residual_chunk import ResidualChunk
from robot_rl.policies.nets.critic import ValueSpec
from robot_rl.policies.nets.encoder import EncoderSpec
from tests.hardware.processes import ROOT

B, STATE, ACTION, EXECUTE, HORIZON, N = 6, 4, 3, 2, 4, 3
SMALL = ResidualChunkConfig(
    num_critics=4,
    hidden=[16],
    batch_size=B,
    candidates=N,
    target_candidates=2,
    critic_warmup=0,
    actor_every=1,
)


def build(config: ResidualChunkConfig = SMALL, *, trained: bool = True) -> ResidualChunkLearner:
    torch.manual_seed(0)
    small = DiffusionConfig(
        width=16, depth=1, train_steps=8, inference_steps=2, horizon=HORIZON, execute=EXECUTE
    )
    base = DiffusionPolicy(small, STATE, ACTION).eval()
    spec = CandidatesSpec(
        encoder=EncoderSpec(STATE),
        value=ValueSpec(config.critic_loss, *config.value_range),
        hidden=tuple(config.hidden),
        scale=(0.5,) * ACTION,
        num_critics=config.num_critics,
        layer_norm=True,
        candidates=N,
        uncertainty_penalty=0.5,
    )
    networks = ResidualChunk(base, spec)
    if trained:
        torch.nn.init.normal_(networks.actor.net.head.weight)
    return ResidualChunkLearner(config, networks, torch.device("cpu"), 0)


def batches() -> Iterator[dict[str, Tensor]]:
    generator = torch.Generator().manual_seed(0)

    def uniform(*shape: int) -> Tensor:
        return torch.rand(shape, generator=generator) * 2 - 1

    while True:
        yield {
            **{
                f"{prefix}{name}": uniform(B, N, steps, ACTION)
                for prefix in ("", "next.")
                for name, steps in (("base_samples", EXECUTE), ("base_sample_noise", HORIZON))
            },
            "state": uniform(B, STATE),
            "next.state": uniform(B, STATE),
            "chunk": uniform(B, EXECUTE, ACTION),
            "chunk_mask": torch.ones(B, EXECUTE),
            "reward": torch.tensor([0.0, 1, 0, 0, 0, 0]),
            "discount": torch.tensor([0.9, 0, 0.9, 0.9, 0.9, 0.9]),
            "success": torch.tensor([1.0, 1, 0, 0, 0, 1]),
        }


@pytest.mark.parametrize("backup", ["max", "mean"])
def test_critic_target_is_the_max_or_mean_value_of_the_next_candidates(backup: str) -> None:
    learner, batch = build(replace(SMALL, backup=backup)), next(batches())
    generator = torch.Generator()
    generator.set_state(learner.generator.get_state())
    with torch.no_grad():
        target = learner._td_target(batch)
        samples = stored_base_samples(batch, "next.", 2, generator)
        chosen = learner.critics.sample_subset(generator)
        columns = {"base": [], "corrected": []}
        for k in range(2):
            base = samples.actions[:, k]
            residual = learner.target_actor(batch["next.state"], samples.noise[:, k], base)
            for name, chunk in (("base", base), ("corrected", (base + residual).clamp(-1, 1))):
                values = learner.critics.target(batch["next.state"], chunk.flatten(1), chosen)
                columns[name].append(values[..., 0].amin(0))
    if backup == "max":
        value = torch.stack([*columns["base"], *columns["corrected"]]).amax(0)
    else:
        value = torch.stack(columns["corrected"]).mean(0)
    torch.testing.assert_close(target, (batch["reward"] + batch["discount"] * value).clamp(0, 1))


def test_failed_episodes_are_not_imitated() -> None:
    batch = next(batches())
    failed = {**batch, "success": torch.zeros(B)}
    weak, strong = build(replace(SMALL, bc_weight=0.0)), build(replace(SMALL, bc_weight=50.0))
    for learner in (weak, strong):
        metrics = learner.update(failed)
        assert metrics["imitation"] == 0
    for one, two in zip(weak.actor.parameters(), strong.actor.parameters(), strict=True):
        torch.testing.assert_close(one, two, rtol=0, atol=0)


def test_bc_weight_moves_chunks_towards_successful_ones() -> None:
    learner = build(replace(SMALL, bc_weight=1000.0, actor_lr=1e-2), trained=False)
    batch = {**next(batches()), "chunk": torch.full((B, EXECUTE, ACTION), 0.3)}
    batch["base_samples"] = torch.zeros_like(batch["base_samples"])
    before = learner.update(batch)["imitation"]
    for _ in range(60):
        after = learner.update(batch)["imitation"]
    assert after < 0.1 * before


def test_actor_is_not_trained_during_the_critics_warmup() -> None:
    learner, data = build(replace(SMALL, critic_warmup=2)), batches()
    before = copy.deepcopy(learner.actor.state_dict())
    for _ in range(2):
        learner.update(next(data))
    assert not learner.warmed_up
    assert all(torch.equal(before[name], value) for name, value in learner.actor.state_dict().items())
    learner.update(next(data))
    assert learner.warmed_up
    assert not all(torch.equal(before[name], value) for name, value in learner.actor.state_dict().items())


def test_critics_of_the_policy_are_those_that_are_trained() -> None:
    learner = build()
    before = learner.critics.online.head.weight.clone()
    learner.update(next(batches()))
    assert not torch.equal(before, learner.critics.online.head.weight)
    assert not any(p.requires_grad for p in learner.critics.target.parameters())


def test_resumed_learner_continues_exactly() -> None:
    whole, data = build(), batches()
    first = [next(data) for _ in range(8)]
    for batch in first[:4]:
        whole.update(batch)
    resumed = build(trained=False)
    resumed.load_state_dict(copy.deepcopy(whole.state_dict()))
    for batch in first[4:]:
        one, two = whole.update(batch), resumed.update(batch)
        assert {name: float(value) for name, value in one.items()} == {
            name: float(value) for name, value in two.items()
        }
    for name, value in whole.actor.state_dict().items():
        assert torch.equal(value, resumed.actor.state_dict()[name])


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"backup": "best"}, "max or mean"),
        ({"target_candidates": 9}, "choose 1 to 8"),
        ({"execute_fraction": 0.0}, "execute_fraction"),
        ({"warmup_steps": 0}, "warmup_steps=0: nothing is learned"),
        ({"critics_per_target": 11}, "critics_per_target"),
        ({"residual_scale": 0.0}, r"method\.residual_scale=0\.0: choose it in \(0, 2\]"),
        ({"utd": 0.0}, r"method\.utd=0\.0: updates per environment step must be more than 0"),
        ({"residual_scale": 2.5}, r"method\.residual_scale=2\.5: choose it in \(0, 2\]"),
        ({"gripper_scale": -1.0}, r"method\.gripper_scale=-1\.0: choose it in \(0, 2\]"),
    ],
)
def test_invalid_options_are_refused(options: dict, says: str) -> None:
    with pytest.raises(ValueError, match=says):
        ResidualChunkConfig(**options)


def test_the_docs_say_what_a_discount_per_chunk_is_per_step() -> None:
    """DICE-RL discounts a chunk of four steps by 0.99, this program each step by its gamma."""
    page = (ROOT / "docs" / "methods" / "residual_chunk.md").read_text(encoding="utf-8")
    told = re.search(
        r"([\d.]+) per chunk, that is ([\d.]+) per step of a chunk of 4 \| "
        r"([\d.]+) per step on Lift, that is ([\d.]+) per chunk",
        page,
    )
    assert told
    theirs, theirs_per_step, ours, ours_per_chunk = map(float, told.groups())
    assert theirs_per_step == pytest.approx(theirs**0.25, abs=5e-5)
    assert ours == ResidualChunkConfig().gamma
    assert ours_per_chunk == pytest.approx(ours**4, abs=5e-4)
