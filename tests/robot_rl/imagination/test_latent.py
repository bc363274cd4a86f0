"""Imagination of features: the base's action head is asked, and whole runs on the point task."""

from dataclasses import asdict, replace
from pathlib import Path

import pytest
import torch
from torch import Tensor

from robot_rl.imagination.config import LatentModelConfig
from robot_rl.imagination.latent_model import LatentModel, LatentShape
from robot_rl.imagination.layout import Layout
from robot_rl.imagination.values import BaseSampler
from robot_rl.imagination.world_model import ChunkStart, Prediction
from robot_rl.policies.bases.base_policy import random_observations
from robot_rl.policies.bases.diffusion import DiffusionConfig, DiffusionPolicy
from tests.robot_rl.imagination.point_task import (
    CHUNK,
    FEATURE_COPIES,
    FeatureBase,
    LatentOracle,
    PointRun,
    look,
    small_method,
)
from tests.robot_rl.imagination.test_imagination import SMALL as SMALL_STATE
from tests.robot_rl.imagination.test_imagination import break_at_share, same, weights

SMALL = LatentModelConfig(**{**asdict(SMALL_STATE), "name": "latent"}, latent=2, history=2)


@pytest.mark.parametrize("frames", [1, 2])
def test_an_exact_prediction_gives_the_base_the_features_of_its_observation(frames: int) -> None:
    config = DiffusionConfig(
        horizon=4, execute=2, width=16, depth=1, train_steps=4, inference_steps=2, obs_steps=frames
    )
    torch.manual_seed(0)
    base = DiffusionPolicy(config, 3, 2, ["above"], (32, 32))
    observed = random_observations(base, 5)
    base.fit_normalizers(torch.randn(50, 3), torch.rand(50, 2) * 2 - 1)
    features = base.features(observed)
    layout = Layout(3, frames, 4, base.features_of_state)
    # The rows of a replay, of which the first version is of the images as they are.
    versions = torch.stack([features, torch.zeros_like(features)], 1)
    newest = layout.vectors({"state": observed["state"][:, -1], "features": versions})
    size = base.feature_size // frames
    # Features that are the normalised state are computed from the state that is predicted.
    assert newest.shape == (5, size)
    before = torch.cat([observed["state"][:, 0], features[:, 3:size]], 1)
    sampler = BaseSampler(base, 3, config.execute, layout)
    drawn = sampler(torch.stack([before, newest], 1), torch.Generator().manual_seed(1))
    expected = base.sample(observed, noise=drawn.noise, num_samples=3).actions[:, :, :2]
    assert torch.equal(drawn.actions, expected)
    assert not base.is_queryable
    assert sampler.is_queryable


@pytest.mark.full
def test_the_base_is_asked_at_the_features_of_predicted_frames(tmp_path: Path) -> None:
    run = PointRun(tmp_path, steps=1200, imagination=SMALL, model=lambda _: LatentOracle(), features=True)
    imagination = run.train().imagination
    assert imagination
    assert imagination.gate.share > 0
    # The model begins with what the camera has really shown.
    vectors = torch.cat([episode.states for episode in imagination.episodes])
    assert (vectors[:, 2:] - look(vectors[:, :2])).abs().max() < 0.01
    part = imagination.sample(300)
    assert part
    rows = part.rows
    assert rows["next.features"].shape == (300, FEATURE_COPIES, 2)
    predicted = rows["next.features"][:, 0]
    assert torch.equal(predicted, look(rows["next.state"]))
    expected = FeatureBase().sample_from_features(predicted, noise=rows["next.base_sample_noise"])
    torch.testing.assert_close(rows["next.base_samples"], expected.actions)


@pytest.mark.full
def test_around_a_served_base_branches_have_one_chunk_of_its_stored_samples(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(FeatureBase, "is_remote", True)
    run = PointRun(tmp_path, steps=1200, imagination=SMALL, model=lambda _: LatentOracle(), features=True)
    imagination = run.train().imagination
    assert imagination
    assert imagination.gate.share > 0
    assert imagination.sample_base.queries == 0
    part = imagination.sample(300)
    assert part
    rows = part.rows
    # The targets are complete: V of what is predicted, state and features, stands for the next chunks.
    assert not rows["discount"].any()
    vectors = torch.cat([rows["next.state"], rows["next.features"][:, 0]], 1)
    values = imagination.values(vectors[:, None].repeat(1, 2, 1), imagination.generator)
    gamma, reward = imagination.task_reward.gamma, rows["reward"]
    succeeded = (reward[:, None] - gamma ** torch.arange(float(CHUNK))).abs().amin(1) < 1e-6
    assert not succeeded.all()
    torch.testing.assert_close(reward[~succeeded], gamma**CHUNK * values[~succeeded])
    episode = next(each for each in imagination.episodes if each.base_samples)
    assert episode.base_samples
    assert len(episode.base_samples.actions) == len(episode.states)


@pytest.mark.parametrize(
    "name",
    [
        "residual_chunk",
        *(pytest.param(name, marks=pytest.mark.full) for name in ("expo", "dsrl_na", "residual")),
    ],
)
def test_methods_learn_from_imagined_features(name: str, tmp_path: Path) -> None:
    method = small_method(name)
    run = PointRun(
        tmp_path, imagination=SMALL, model=lambda _: LatentOracle(), method=method, features=True
    ).train()
    assert run.imagination
    assert run.imagination.gate.share > 0
    part = run.imagination.sample(8)
    assert part
    assert part.rows["features"].shape == (8, FEATURE_COPIES, 2)


@pytest.mark.full
def test_a_share_of_0_gives_the_same_run_as_no_imagination_of_features(tmp_path: Path) -> None:
    without = PointRun(tmp_path / "without", steps=700, features=True).train()
    options = replace(SMALL, share=0.0, first_updates=20)
    unused = PointRun(tmp_path / "unused", steps=700, imagination=options, features=True).train()
    assert unused.imagination
    assert len(unused.imagination.history) > 1
    assert same(weights(without), weights(unused))
    assert without.outcomes == unused.outcomes


class Known(LatentModel):
    """Learns, and predicts by the task's own dynamics, so that the gate passes soon."""

    def __init__(self, config: LatentModelConfig) -> None:
        super().__init__(config, LatentShape(4, 2, CHUNK, (), 2, "the base"), 0)

    def step(
        self, start: ChunkStart, chunk: Tensor, member: Tensor, length: Tensor | None = None
    ) -> Prediction:
        assert start.context
        return LatentOracle().step(start, chunk, member, length)


@pytest.mark.full
def test_a_resumed_run_with_a_model_of_features_equals_an_uninterrupted_one(tmp_path: Path) -> None:
    options = replace(SMALL, refit_every=2, pool=4, first_updates=20, fit_updates=5)

    def build(name: str) -> PointRun:
        run = {"steps": 800, "model": lambda _: Known(options), "num_critics": 2, "batch_size": 32}
        return PointRun(tmp_path / name, imagination=options, features=True, **run)

    straight = build("straight").train()
    build("resumed").train(steps=720)
    resumed = build("resumed").train()
    assert straight.imagination
    assert resumed.imagination
    assert straight.imagination.gate.share > 0
    assert straight.imagination.sample(4) is not None
    assert resumed.imagination.sample(4) is not None
    assert same(weights(straight), weights(resumed))
    assert same(straight.imagination.state_dict(), resumed.imagination.state_dict())


class Broken(LatentOracle):
    """Exact until it is told to break; then its features are noise."""

    how = ""

    def step(
        self, start: ChunkStart, chunk: Tensor, member: Tensor, length: Tensor | None = None
    ) -> Prediction:
        made = super().step(start, chunk, member, length)
        if self.how:
            noise = 0.3 * torch.randn(made.states.shape, generator=torch.Generator().manual_seed(0))
            noise[..., :2] = 0
            made = replace(made, states=made.states + noise)
        return made


@pytest.mark.full
def test_a_model_whose_features_become_noise_is_turned_off_within_two_refits(tmp_path: Path) -> None:
    model = Broken()
    run = PointRun(tmp_path, steps=2000, imagination=SMALL, model=lambda _: model, features=True)
    broken_at = break_at_share(run, model, "features", 0.1)
    imagination = run.train().imagination
    assert imagination
    assert broken_at
    after = [record["share"] for record in imagination.history[broken_at[0] :]]
    assert len(after) >= 2
    assert max(after[1:]) == 0
