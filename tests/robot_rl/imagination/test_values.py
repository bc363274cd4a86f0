"""Imagination around a base that cannot be queried at predicted states: exact targets, and whole runs."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from robot_rl.imagination.layout import Layout
from robot_rl.imagination.values import LearnedValues
from robot_rl.learning.learner import CandidatesLearner
from robot_rl.methods.residual_chunk import ResidualChunkLearner
from robot_rl.policies.bases.base_policy import Chunk
from robot_rl.policies.finetuned.residual_chunk import corrected_chunks
from robot_rl.policies.nets.encoder import StateNorm
from tests.robot_rl.imagination.point_task import (
    RADIUS,
    STEP,
    Oracle,
    PointBase,
    PointRun,
    SeeingBase,
    small_method,
)
from tests.robot_rl.imagination.test_imagination import SMALL, same, weights


def real_batch(rows: int) -> dict[str, torch.Tensor]:
    """The next observations of a batch, with two samples of the base."""
    drawn = torch.Generator().manual_seed(0)
    noise = torch.randn(rows, 2, 4, 2, generator=drawn)
    return {
        "reward": torch.zeros(rows),
        "next.state": torch.randn(rows, 2, generator=drawn),
        "next.base_samples": noise.clamp(-1, 1),
        "next.base_sample_noise": noise,
    }


def test_values_learn_the_best_of_stored_and_corrected_samples(tmp_path: Path) -> None:
    run = PointRun(tmp_path, camera=True, num_critics=2, candidates=2)
    learner = run.learner
    assert isinstance(learner, ResidualChunkLearner)
    torch.nn.init.normal_(learner.target_actor.net.head.weight, std=0.5)
    batch = real_batch(8)
    state, samples = batch["next.state"], batch["next.base_samples"]
    corrected = corrected_chunks(learner.target_actor, state, Chunk(samples, batch["next.base_sample_noise"]))
    candidates = [chunk.flatten(1) for chunk in torch.cat([samples, corrected], 1).unbind(1)]
    # Both critics are in each target, so that nothing in it is random.
    best = torch.stack([learner.critics.target_value(state, chunk) for chunk in candidates]).amax(0)
    assert isinstance(learner, CandidatesLearner)
    values, generator = LearnedValues(learner, Layout(2), 2, 0), torch.Generator().manual_seed(0)
    torch.testing.assert_close(learner.bootstrap_value(batch, generator), best)
    for _ in range(150):
        values.update(batch, generator)
    learned = values(state[:, None].repeat(1, 2, 1), generator)
    assert (learned - best).abs().mean() < 0.2 * best.std()


def build(directory: Path, name: str = "residual_chunk", share: float | None = 0.5) -> PointRun:
    """A short run around a base with a camera; its model is the task's own dynamics, None for no model."""
    imagination = None if share is None else replace(SMALL, refit_every=2, pool=4, branches=32, share=share)
    method = small_method(name, 500)
    return PointRun(directory, imagination=imagination, model=lambda _: Oracle(), method=method, camera=True)


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> PointRun:
    return build(tmp_path_factory.mktemp("run")).train()


def test_branches_of_one_chunk_begin_with_samples_that_the_replay_has_for_their_states(
    trained: PointRun,
) -> None:
    imagination = trained.imagination
    assert imagination
    assert imagination.limits
    assert len(imagination.limits.uncertainty) == 1
    part = imagination.sample(100)
    assert part
    held, samples = (trained.replay.data[name] for name in ("state", "base_samples"))
    for state, chunks in zip(part.rows["state"], part.rows["base_samples"], strict=True):
        assert ((held == state).all(1) & (samples == chunks).all((1, 2, 3))).any()


def test_a_target_is_the_reward_of_one_chunk_and_the_value_of_its_last_state(trained: PointRun) -> None:
    imagination = trained.imagination
    assert imagination
    values = imagination.values
    assert isinstance(values, LearnedValues)
    # V(s) = 0.3 x + 0.1 y + 0.2
    linear = torch.nn.Linear(2, 1)
    linear.weight.data[:], linear.bias.data[:] = torch.tensor([[0.3, 0.1]]), 0.2
    values.net, values.norm = torch.nn.Sequential(linear), StateNorm(2)
    for _ in range(20):
        imagination.imagine()
    part = imagination.sample(400)
    assert part
    rows = part.rows
    path = rows["state"][:, None] + STEP * rows["chunk"].cumsum(1)
    near = (path.norm(dim=-1) < RADIUS).float()
    success = near.any(1)
    assert 0 < success.sum() < 400
    value = path[:, -1] @ torch.tensor([0.3, 0.1]) + 0.2
    gamma = trained.method.config.gamma
    target = torch.where(success, gamma ** near.argmax(1), gamma**4 * value)
    assert torch.allclose(rows["reward"], target, atol=1e-5)
    assert (rows["discount"] == 0).all()


def test_nothing_is_imagined_before_the_values_have_learned(trained: PointRun) -> None:
    imagination = trained.imagination
    assert imagination
    values = imagination.values
    assert isinstance(values, LearnedValues)
    imagination.gate.share, made = 0.3, values.updates
    assert 0 < made < 500, "a short run"
    assert imagination.share == 0
    values.updates = 500
    assert imagination.share == 0.3
    values.updates = made


def test_bases_with_a_camera_or_behind_a_server_are_not_queried_at_predicted_states() -> None:
    served = PointBase()
    served.is_remote = True
    assert [base.is_queryable for base in (PointBase(), SeeingBase(), served)] == [True, False, False]


def test_expo_learns_from_its_stored_samples_too(tmp_path: Path) -> None:
    run = build(tmp_path, "expo").train()
    assert run.imagination
    assert run.imagination.gate.share > 0
    part = run.imagination.sample(8)
    assert part
    assert (part.rows["discount"] == 0).all()


@pytest.mark.full
def test_a_resumed_run_around_a_base_with_a_camera_equals_an_uninterrupted_one(tmp_path: Path) -> None:
    straight = build(tmp_path / "straight").train()
    build(tmp_path / "resumed").train(steps=440)
    resumed = build(tmp_path / "resumed").train()
    assert straight.imagination
    assert resumed.imagination
    assert straight.imagination.gate.share > 0
    assert same(weights(straight), weights(resumed))
    assert same(straight.imagination.state_dict(), resumed.imagination.state_dict())


def test_a_share_of_0_gives_the_same_run_as_no_imagination_around_a_base_with_a_camera(
    tmp_path: Path,
) -> None:
    without = build(tmp_path / "without", share=None).train()
    unused = build(tmp_path / "unused", share=0.0).train()
    assert unused.imagination
    assert len(unused.imagination.history) > 1
    assert same(weights(without), weights(unused))
