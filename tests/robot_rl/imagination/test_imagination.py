"""Imagination in whole training runs on the point task."""

import copy
import multiprocessing
import os
import signal
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import pytest
import torch

from robot_rl.imagination.config import StateModelConfig
from robot_rl.imagination.episodes import Episode
from robot_rl.imagination.gate import EpisodeTest, replay_in_model
from robot_rl.imagination.imagination import Imagination
from robot_rl.imagination.state_model import Shape, StateModel
from robot_rl.imagination.world_model import ChunkStart, Prediction
from robot_rl.training.updater import sample_batch
from tests.robot_rl.imagination.point_task import CHUNK, Oracle, PointRun, small_method

SMALL = StateModelConfig(
    refit_every=5,
    pool=10,
    branches=128,
    first_updates=300,
    fit_updates=40,
    hidden=[64, 64],
    batch_size=64,
)


def weights(run: PointRun) -> Mapping[str, Any]:
    return run.learner.state_dict()


def same(a: Any, b: Any) -> bool:
    """Whether two trees of values are equal, to the bit."""
    if isinstance(a, Mapping):
        return a.keys() == b.keys() and all(same(a[key], b[key]) for key in a)
    if isinstance(a, list | tuple):
        return len(a) == len(b) and all(same(x, y) for x, y in zip(a, b, strict=True))
    if isinstance(a, torch.Tensor):
        return torch.equal(a, b)
    if isinstance(a, np.ndarray):
        return np.array_equal(a, b)
    return bool(a == b)


@pytest.mark.full
def test_an_imagined_share_of_0_gives_the_same_run_as_no_imagination(tmp_path: Path) -> None:
    without = PointRun(tmp_path / "without", steps=900).train()
    unused = PointRun(tmp_path / "unused", steps=900, imagination=replace(SMALL, share=0.0)).train()
    assert unused.imagination
    assert len(unused.imagination.history) > 1
    assert same(weights(without), weights(unused))
    assert without.outcomes == unused.outcomes


def test_a_good_model_is_used_and_its_numbers_are_logged(tmp_path: Path) -> None:
    run = PointRun(tmp_path, steps=1200, imagination=SMALL, model=lambda _: Oracle())
    assert run.imagination
    copies, state_dict = [], run.imagination.state_dict
    run.imagination.state_dict = lambda: copies.append(1) or state_dict()  # type: ignore
    run.train()
    assert len(copies) == 1, "only the checkpoint needs a copy, since a model in this process is never lost"
    assert run.imagination.gate.share > 0
    lines = (tmp_path / "imagination.jsonl").read_text().splitlines()
    assert len(lines) == len(run.imagination.history)
    part = run.imagination.sample(32)
    assert part is not None
    assert len(part.rows["reward"]) == 32
    assert part.for_actor == run.imagination.gate.for_actor
    figures = run.imagination.figures
    assert 0 < figures["imagined_chunks"] <= SMALL.chunks
    assert 0 < figures["imagined_success"] < 1
    assert figures["imagined_weight"] == pytest.approx(0.5), "disagreement is as large as the error"


@pytest.mark.full
def test_the_last_rows_of_a_batch_are_imagined(tmp_path: Path) -> None:
    run = PointRun(tmp_path, steps=1200, imagination=SMALL, model=lambda _: Oracle()).train()
    assert run.imagination
    run.imagination.gate.share = 0.25
    before = copy.deepcopy(run.sampler.state_dict())
    batch, actor_rows = sample_batch(run.sampler, run.imagination, 1200)
    run.sampler.load_state_dict(before)
    size = run.method.config.batch_size
    count = 3 * size // 4
    real = run.sampler.sample(1200, count)
    assert len(batch["reward"]) == size
    assert torch.equal(batch["reward"][:count], real["reward"])
    assert (batch["weight"][:count] == 1).all()
    assert actor_rows is None
    run.imagination.gate.passes = 1
    assert sample_batch(run.sampler, run.imagination, 1200)[1] == count


class Learned(Oracle):
    """Remembers what it has learned from."""

    def __init__(self) -> None:
        self.episodes: list[int] = []

    def fit(self, episodes: Sequence[Episode], newest: int, updates: int) -> dict[str, float]:
        self.episodes += map(id, episodes)
        return {}

    def checkpoint(self) -> dict[str, Any]:
        return {"episodes": self.episodes}

    def restore(self, state: Mapping[str, Any]) -> None:
        self.episodes = list(state["episodes"])


def test_every_episode_is_tested_by_a_model_that_has_not_learned_from_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tested: list[int] = []

    def watched(episodes: Sequence[Episode], model: Learned, *more: Any) -> list[EpisodeTest]:
        assert not set(map(id, episodes)) & set(model.episodes)
        tested.extend(map(id, episodes))
        return replay_in_model(episodes, model, *more)

    monkeypatch.setattr("robot_rl.imagination.imagination.replay_in_model", watched)
    run = PointRun(tmp_path, steps=900, imagination=SMALL, model=lambda _: Learned()).train()
    assert run.imagination
    learned = run.imagination.episodes[: run.imagination.learned]
    assert len(learned) > SMALL.pool
    assert sorted(tested) == sorted(map(id, learned))
    model = run.imagination.model
    assert isinstance(model, Learned)
    # A refit gets all episodes, and so does the first one, which begins again after it tested both halves.
    refits = [record["episodes"] for record in run.imagination.history]
    assert len(model.episodes) == sum(refits)
    assert "passed" in run.imagination.history[0], "the first fit already has a pool that is full"


@pytest.mark.parametrize(
    "name", ["expo", *(pytest.param(name, marks=pytest.mark.full) for name in ("dsrl_na", "residual"))]
)
def test_other_methods_learn_from_imagined_transitions(name: str, tmp_path: Path) -> None:
    run = PointRun(tmp_path, imagination=SMALL, model=lambda _: Oracle(), method=small_method(name)).train()
    assert run.imagination
    assert run.imagination.gate.share > 0
    assert run.imagination.sample(8) is not None


def _run_until_killed(directory: Path) -> None:
    PointRun(directory, steps=1400, imagination=SMALL, model=lambda _: Killed(directory)).train(
        checkpoint_every=400
    )


class Killed(StateModel):
    """Dies in its third fit, between two gradient steps."""

    def __init__(self, directory: Path) -> None:
        super().__init__(SMALL, Shape(2, 2, CHUNK), 0)
        self.fits = 0

    def fit(self, episodes, newest, updates):  # type: ignore[no-untyped-def]
        self.fits += 1
        if self.fits == 6:
            super().fit(episodes, newest, updates // 2)
            os.kill(os.getpid(), signal.SIGKILL)
        return super().fit(episodes, newest, updates)


@pytest.mark.full
def test_a_run_that_was_killed_in_a_refit_goes_on_exactly(tmp_path: Path) -> None:
    straight = PointRun(tmp_path / "straight", steps=1400, imagination=SMALL).train(checkpoint_every=400)
    child = multiprocessing.get_context("spawn").Process(
        target=_run_until_killed, args=(tmp_path / "killed",)
    )
    child.start()
    child.join(300)
    assert child.exitcode == -signal.SIGKILL
    assert list((tmp_path / "killed" / "checkpoints").glob("0*"))
    resumed = PointRun(tmp_path / "killed", steps=1400, imagination=SMALL).train(checkpoint_every=400)
    assert same(weights(straight), weights(resumed))
    assert straight.imagination
    assert resumed.imagination
    assert same(straight.imagination.state_dict(), resumed.imagination.state_dict())


@pytest.mark.full
def test_a_model_whose_weights_are_no_numbers_begins_again_at_the_next_refit(tmp_path: Path) -> None:
    options = replace(SMALL, refit_every=3, pool=6, first_updates=100, hidden=[32])
    run = PointRun(tmp_path, steps=640, imagination=options)
    imagination = run.imagination
    assert imagination
    refit = imagination.refit

    def lose_weights_in_the_third(step: int) -> None:
        refit(step)
        if len(imagination.history) == 3:
            assert isinstance(imagination.model, StateModel)
            for parameter in imagination.model.parameters():
                parameter.data.fill_(torch.nan)

    imagination.refit = lose_weights_in_the_third  # type: ignore[method-assign]
    run.train()
    assert [record["rebuilt"] for record in imagination.history[:5]] == [False, False, False, True, False]
    assert all(test.is_finite for test in imagination.pool)
    assert imagination.history[3]["error"] < 1
    assert imagination.branches.model is imagination.model
    assert imagination.imagine() > 0


def with_first_tests(folder: Path, changed: Callable[[list[EpisodeTest]], list[EpisodeTest]]) -> Imagination:
    """The imagination of a run with an exact model, the tests of whose first fit were changed."""
    run = PointRun(folder, steps=500, imagination=SMALL, model=lambda _: Oracle())
    assert run.imagination
    cross_test = run.imagination._cross_test
    run.imagination._cross_test = lambda: changed(cross_test())  # type: ignore[method-assign]
    run.train()
    assert run.imagination.history
    return run.imagination


def test_tests_of_a_model_that_is_not_used_do_not_count(tmp_path: Path) -> None:
    """A half of the episodes of the first fit whose model has no numbers."""

    def with_half_lost(made: list[EpisodeTest]) -> list[EpisodeTest]:
        return [replace(test, error=test.error * (torch.nan if i % 2 else 1)) for i, test in enumerate(made)]

    imagination = with_first_tests(tmp_path, with_half_lost)
    assert imagination.pool
    assert all(test.is_finite for test in imagination.pool)


def test_a_model_without_a_finite_prediction_fails(tmp_path: Path) -> None:
    def without_numbers(made: list[EpisodeTest]) -> list[EpisodeTest]:
        return [replace(test, error=test.error * torch.nan, gap=test.gap * torch.nan) for test in made]

    imagination = with_first_tests(tmp_path, without_numbers)
    first = imagination.history[0]
    assert not first["passed"]
    assert first["share"] == 0
    assert all(test.is_finite for test in imagination.pool)


def test_the_gate_does_not_decide_on_demonstrations_alone(tmp_path: Path) -> None:
    imagination = with_first_tests(tmp_path, lambda made: [replace(test, demo=True) for test in made])
    assert "passed" not in imagination.history[0]
    assert imagination.history[0]["share"] == 0


def test_a_model_that_is_good_on_demonstrations_alone_does_not_pass(tmp_path: Path) -> None:
    def with_bad_ones(made: list[EpisodeTest]) -> list[EpisodeTest]:
        demonstrations = [replace(test, demo=True) for test in made]
        wrong = [replace(test, error=1.2 * test.persistence, demo=False) for test in demonstrations[::4]]
        return [*demonstrations[1::4], *demonstrations[2::4], *demonstrations[3::4], *wrong]

    first = with_first_tests(tmp_path, with_bad_ones).history[0]
    assert first["error"] < 0.7 < first["newest_error"]
    assert not first["passed"]


def test_branches_begin_at_key_moments(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    imagination = PointRun(tmp_path, imagination=SMALL, model=lambda _: Oracle()).imagination
    assert imagination
    imagination.values = lambda frames, generator: (frames[:, -1, 0] > 0.5).float()
    moved = torch.arange(81)[:, None].expand(-1, 2) / 80
    episode = Episode(moved, torch.zeros(80, 2), success=True)
    # Values mean nothing before the critics' warm-up is over.
    assert 40 not in imagination._key_moments(episode)
    monkeypatch.setattr(type(imagination.learner), "warmed_up", True)
    key = imagination._key_moments(episode)
    # The last two chunks, and before the jump of the value between steps 40 and 44.
    assert set(range(80 - 2 * CHUNK, 80)) <= set(key)
    assert 40 in key


def test_shares_of_starts_may_add_up_to_1(tmp_path: Path) -> None:
    # 1 - 0.5 - 0.4 - 0.1 is below 0 in floating point.
    options = replace(SMALL, recent=0.5, key_moments=0.4, demonstrations=0.1)
    imagination = PointRun(tmp_path, imagination=options, model=lambda _: Oracle()).imagination
    assert imagination
    for number in range(12):
        moved = torch.rand(21, 2, generator=torch.Generator().manual_seed(number))
        imagination.episodes.append(Episode(moved, torch.zeros(20, 2), success=True, demo=number < 2))
    imagination._key_rows = [[18, 19] for _ in imagination.episodes]
    imagination._prepare_starts(newest=2)
    assert imagination._starts.min() == 0
    assert imagination._starts.sum() == pytest.approx(1)


def test_a_model_of_another_version_is_refused() -> None:
    model = StateModel(StateModelConfig(hidden=[8]), Shape(2, 2, CHUNK), 0)
    other = StateModel(StateModelConfig(hidden=[9]), Shape(2, 2, CHUNK), 0)
    with pytest.raises(ValueError, match="begin a new run"):
        model.restore(other.checkpoint())


class Breaking(Protocol):
    """A world model that breaks when it is told how."""

    how: str


class Broken(Oracle):
    """Exact until it is told to break."""

    how = ""

    def step(
        self,
        start: ChunkStart,
        chunk: torch.Tensor,
        member: torch.Tensor,
        length: torch.Tensor | None = None,
    ) -> Prediction:
        if self.how == "shuffled actions":
            chunk = chunk[torch.randperm(len(chunk), generator=torch.Generator().manual_seed(0))]
        made = super().step(start, chunk, member, length)
        if self.how == "noise":
            noise = torch.randn(made.states.shape, generator=torch.Generator().manual_seed(0))
            made = replace(made, states=made.states + 0.1 * noise)
        if self.how == "always success":
            made = replace(made, success_low=torch.ones_like(made.success_low))
        return made


def break_at_share(run: PointRun, model: Breaking, how: str, share: float) -> list[int]:
    """Break the model at the refit after this share; returns a list that will hold the refit's number."""
    imagination, broken_at = run.imagination, []
    assert imagination
    refit = imagination.refit

    def watched(step: int) -> None:
        if imagination.gate.share >= share and not model.how:
            model.how = how
            broken_at.append(len(imagination.history))
        refit(step)

    imagination.refit = watched  # type: ignore[method-assign]
    return broken_at


@pytest.mark.parametrize(
    "how",
    [
        pytest.param("noise", marks=pytest.mark.full),
        "shuffled actions",
        pytest.param("always success", marks=pytest.mark.full),
    ],
)
def test_a_model_that_breaks_is_turned_off_within_two_refits(how: str, tmp_path: Path) -> None:
    model = Broken()
    run = PointRun(tmp_path, steps=2000, imagination=SMALL, model=lambda _: model)
    broken_at = break_at_share(run, model, how, 0.1)
    imagination = run.train().imagination
    assert imagination
    assert broken_at, [record["share"] for record in imagination.history]
    after = [record["share"] for record in imagination.history[broken_at[0] :]]
    assert len(after) >= 2
    assert after[1] == 0
    assert max(after[1:]) == 0
