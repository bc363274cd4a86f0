"""How soon success comes with a good model, and what a bad one costs: whole runs with five seeds."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TypeVar

import numpy as np
import pytest
import torch
from torch import Tensor

from robot_rl.imagination.config import StateModelConfig
from robot_rl.imagination.episodes import Episode
from robot_rl.imagination.state_model import Shape, StateModel
from robot_rl.imagination.world_model import ChunkStart, Prediction, WorldModel
from tests.robot_rl.imagination.point_task import CHUNK, Oracle, PointRun
from tests.robot_rl.imagination.test_imagination import SMALL, Broken, break_at_share

pytestmark = pytest.mark.full
ModelT = TypeVar("ModelT", bound=StateModel)
SEEDS = range(5)
LONGER = 8000
"""Environment steps after which a run without a model succeeds nearly always, whatever its seed."""


class Early(StateModel):
    """Learns from the first episodes alone."""

    def fit(self, episodes: Sequence[Episode], newest: int, updates: int) -> dict[str, float]:
        return {} if self.fitted else super().fit(episodes, newest, updates)


class RandomWeights(StateModel):
    """Learns, until it is told to break: its weights are random from then on."""

    how = ""
    broken = False

    @torch.no_grad()
    def step(
        self, start: ChunkStart, chunk: Tensor, member: Tensor, length: Tensor | None = None
    ) -> Prediction:
        if self.how and not self.broken:
            self.broken = True
            fresh = StateModel(self.config, self.shape, seed=99)
            for weights, drawn in zip(self.parameters(), fresh.parameters(), strict=True):
                weights.copy_(drawn)
        return super().step(start, chunk, member, length)

    def fit(self, episodes: Sequence[Episode], newest: int, updates: int) -> dict[str, float]:
        return {} if self.how else super().fit(episodes, newest, updates)


def learned(kind: type[ModelT]) -> ModelT:
    return kind(SMALL, Shape(2, 2, CHUNK), 0)


def make_run(
    directory: Path,
    seed: int,
    imagination: StateModelConfig | None = None,
    model: Callable[[], WorldModel] = Oracle,
    steps: int = 4000,
) -> PointRun:
    run = directory / str(seed)
    return PointRun(run, seed=seed, imagination=imagination, model=lambda _: model(), steps=steps)


@pytest.fixture(scope="module")
def model_free(tmp_path_factory: pytest.TempPathFactory) -> list[PointRun]:
    """A run without a model for each seed."""
    directory = tmp_path_factory.mktemp("free")
    return [make_run(directory, seed).train() for seed in SEEDS]


@pytest.fixture(scope="module")
def at_least(tmp_path_factory: pytest.TempPathFactory) -> list[float]:
    """Five points less than the success of a longer run without a model, for each seed."""
    directory = tmp_path_factory.mktemp("longer")
    return [make_run(directory, seed, steps=LONGER).train().evaluate() - 0.05 for seed in SEEDS]


def test_with_exact_dynamics_success_comes_with_a_third_fewer_steps(
    tmp_path: Path, model_free: list[PointRun]
) -> None:
    # The whole run has about 100 episodes, and the largest share takes ten refits.
    often = replace(SMALL, refit_every=2, pool=6, chunks=3)
    oracle = [make_run(tmp_path, seed, often).train() for seed in SEEDS]
    steps = [[run.steps_to(0.8) for run in runs] for runs in (model_free, oracle)]
    assert np.mean(steps[1]) <= 2 / 3 * np.mean(steps[0]), steps


def test_planning_with_exact_dynamics_halves_the_steps(tmp_path: Path, model_free: list[PointRun]) -> None:
    planning = replace(SMALL, refit_every=2, pool=6, chunks=3, planning=True, share=0.0)
    oracle = [make_run(tmp_path, seed, planning).train() for seed in SEEDS]
    steps = [[run.steps_to(0.8) for run in runs] for runs in (model_free, oracle)]
    assert np.mean(steps[1]) <= 1 / 2 * np.mean(steps[0]), steps


@pytest.mark.parametrize("how", ["random weights", "noise", "shuffled actions", "always success"])
def test_a_model_that_breaks_costs_at_most_five_points_of_success(
    how: str, tmp_path: Path, at_least: list[float]
) -> None:
    success = []
    for seed in SEEDS:
        model = learned(RandomWeights) if how == "random weights" else Broken()
        run = make_run(tmp_path, seed, SMALL, lambda model=model: model, LONGER)  # type: ignore[misc]
        broken_at = break_at_share(run, model, how, 0.3)
        success.append(run.train().evaluate())
        assert run.imagination
        assert run.imagination.history[broken_at[0] + 1]["share"] == 0
    assert np.all(np.greater_equal(success, at_least)), (success, at_least)


def test_an_early_model_that_is_never_fitted_again_costs_at_most_five_points_of_success(
    tmp_path: Path, at_least: list[float]
) -> None:
    early = partial(learned, Early)
    success = [make_run(tmp_path, seed, SMALL, early, LONGER).train().evaluate() for seed in SEEDS]
    assert np.all(np.greater_equal(success, at_least)), (success, at_least)
