"""Candidates ranked by a predicted chunk and the value of where it ends."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from robot_rl.imagination.branches import Limits
from robot_rl.imagination.episodes import Steps
from robot_rl.imagination.planning import Planner
from robot_rl.imagination.world_model import Prediction, WorldModelLost, chunk_start
from tests.robot_rl.imagination.point_task import CHUNK, STEP, Oracle, PointRun, small_method
from tests.robot_rl.imagination.test_imagination import SMALL, same, weights

PLANNING = replace(SMALL, planning=True, share=0.0)


class Doubtful(Oracle):
    """Exact, and uncertain of chunks that move along the second axis."""

    def step(self, start, chunk, member, length=None) -> Prediction:  # type: ignore[no-untyped-def]
        made = super().step(start, chunk, member, length)
        aside = chunk[..., 1].abs().amax(1) > 0
        return replace(made, disagreement=made.disagreement + aside[:, None])


@pytest.fixture
def planner(tmp_path: Path) -> Planner:
    """In one environment, at the first step of an episode, with values of states that are their distance."""
    run = PointRun(tmp_path, imagination=PLANNING, model=lambda _: Doubtful(), num_envs=1)
    imagination, runner = run.imagination, run.agent.policy.runner
    assert imagination
    imagination.values = lambda frames, generator: -frames[:, -1].norm(dim=-1)
    imagination.limits = Limits(torch.ones(2), (0.5,), 0.5)
    imagination.gate.passes = 1
    run.learner.updates = run.method.config.critic_warmup + 1
    runner.starting = np.array([0])
    return Planner(imagination, run.replay, runner)


def chunks_along(*axes: tuple[float, float]) -> torch.Tensor:
    """Chunks [1, M, h, 2] of constant actions."""
    return torch.tensor(axes)[None, :, None].expand(1, -1, CHUNK, -1)


def test_scores_are_the_predicted_reward_and_the_value_of_where_the_chunk_ends(planner: Planner) -> None:
    obs = {"state": torch.tensor([[[0.12, 0.0]]])}
    chunks = chunks_along((-1, 0), (1, 0), (-0.25, 0), (0, 0.1))
    values = torch.tensor([[5.0, 6.0, 7.0, 8.0]])
    gamma = planner.imagination.task_reward.gamma
    # The point is inside the radius of 0.04 after two steps of 0.05.
    succeeds = gamma
    away = -(gamma**CHUNK) * (0.12 + CHUNK * STEP)
    nearer = -(gamma**CHUNK) * (0.12 - CHUNK * STEP / 4)
    # The model is uncertain of the last one. The scores of the others have the mean of their values.
    offset = (5.0 + 6.0 + 7.0 - succeeds - away - nearer) / 3
    expected = [succeeds + offset, away + offset, nearer + offset, 8.0]
    assert planner(obs, chunks, values).tolist()[0] == pytest.approx(expected)


def test_before_the_gate_passes_candidates_keep_their_values(planner: Planner) -> None:
    obs, values = {"state": torch.tensor([[[0.12, 0.0]]])}, torch.tensor([[5.0, 6.0]])
    chunks = chunks_along((-1, 0), (1, 0))
    planner.imagination.gate.passes = 0
    assert torch.equal(planner(obs, chunks, values), values)
    planner.imagination.gate.passes, limits, planner.imagination.limits = 1, planner.imagination.limits, None
    assert torch.equal(planner(obs, chunks, values), values)
    planner.imagination.limits = limits
    assert not torch.equal(planner(obs, chunks, values), values)
    planner.imagination.learner.updates = 0  # type: ignore[attr-defined]
    assert torch.equal(planner(obs, chunks, values), values)


@pytest.mark.parametrize("history", [pytest.param(0, marks=pytest.mark.full), 2])
def test_predictions_begin_with_what_the_open_episode_holds(tmp_path: Path, history: int) -> None:
    run = PointRun(tmp_path, imagination=PLANNING, steps=500)
    assert run.imagination
    run.train()
    config = type("WithHistory", (), {"context_chunks": history})()
    run.imagination.config = config  # type: ignore[assignment]
    # A finished episode is seen again, as if it were open up to its step 6.
    made = 6
    episode = run.imagination.episodes[0]
    assert len(episode) > made
    rows = {"state": episode.states[:made], "action": episode.actions[:made]}
    run.replay.episode_rows = lambda stream, fields: rows  # type: ignore[method-assign,assignment]
    runner = run.agent.policy.runner
    runner.starting = np.array([0])
    found = Planner(run.imagination, run.replay, runner)._chunk_start(
        {"state": episode.states[None, made : made + 1]}, CHUNK
    )
    expected = chunk_start(Steps([episode], history).windows(torch.tensor([made]), CHUNK))
    assert same(vars(found) | {"context": None}, vars(expected) | {"context": None})
    assert (found.context is None) == (history == 0)
    if found.context and expected.context:
        assert same(vars(found.context), vars(expected.context))


@pytest.mark.parametrize("name", ["residual_chunk", pytest.param("expo", marks=pytest.mark.full)])
def test_a_planning_run_that_was_stopped_goes_on_exactly(name: str, tmp_path: Path) -> None:
    def make(directory: str) -> PointRun:
        method = small_method(name, steps=800)
        return PointRun(tmp_path / directory, imagination=PLANNING, model=lambda _: Oracle(), method=method)

    straight = make("straight").train()
    stopped = make("stopped").train(steps=600)
    assert stopped.imagination
    assert stopped.imagination.gate.passes > 0
    resumed = make("stopped").train()
    assert same(weights(straight), weights(resumed))
    without = PointRun(
        tmp_path / "without", imagination=replace(PLANNING, planning=False), model=lambda _: Oracle(),
        method=small_method(name, steps=800),
    )  # fmt: skip
    assert not same(weights(straight), weights(without.train()))


def test_a_run_that_loses_its_model_while_it_plans_is_saved_and_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def run() -> PointRun:
        return PointRun(tmp_path, steps=900, imagination=PLANNING, model=lambda _: Oracle())

    calls = 0
    score = Planner.__call__

    def lost(self: Planner, *args: torch.Tensor) -> torch.Tensor:
        nonlocal calls
        calls += 1
        if calls == 60:
            raise WorldModelLost("there is no server")
        return score(self, *args)

    monkeypatch.setattr(Planner, "__call__", lost)
    first = run()
    with pytest.raises(WorldModelLost, match="there is no server; the run is saved up to here"):
        first.train()
    assert calls == 60
    again = run().train()
    assert calls > 60
    ended = [line for line in again.logger.path.read_text().splitlines() if "train/success" in line]
    assert again.imagination
    assert len(again.imagination.episodes) == len(ended) == len(again.outcomes)
