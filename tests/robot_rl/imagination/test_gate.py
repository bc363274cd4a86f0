"""The gate: good models are let through, broken ones are found and turned off."""

import pytest
import torch

from robot_rl.imagination.branches import TaskReward
from robot_rl.imagination.episodes import Episode
from robot_rl.imagination.gate import EpisodeTest, Gate, Verdict, calibrate, judge_model, replay_in_model
from robot_rl.imagination.world_model import Prediction
from tests.robot_rl.imagination.point_task import CHUNK, STEP, Oracle

GOOD = Verdict(error=0.4, rank=0.5, false_success=0.0, missed=0.0, sure=0.9, gap=0.01, gap_interval=0.02)


def test_passes_raise_the_share_a_failure_halves_it_and_two_in_a_row_end_it() -> None:
    gate = Gate(0.12)
    shares = []
    actor = []
    for passed in (True, True, True, False, True, False, False, False, True):
        gate.decide(passed=passed)
        shares.append(gate.share)
        actor.append(gate.for_actor)
    assert shares == pytest.approx([0.05, 0.1, 0.12, 0.06, 0.11, 0.055, 0.0, 0.0, 0.05])
    assert actor == [False, True, True, False, False, False, False, False, False]


def test_passes_before_the_critics_have_learned_do_not_count_for_actors() -> None:
    gate = Gate(0.5)
    for learned in (False, False, True):
        gate.decide(passed=True, learned=learned)
        assert not gate.for_actor
    assert gate.share == pytest.approx(0.15)
    gate.decide(passed=True)
    assert gate.for_actor


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("error", 0.71),
        ("rank", 0.29),
        ("false_success", 0.15),
        ("missed", 0.8),
        ("rank", float("nan")),
        ("gap", -0.09),
        ("gap", 0.09),
    ],
)
def test_every_measure_can_fail_a_model(name: str, value: float) -> None:
    assert GOOD.passed
    assert not Verdict(**{**vars(GOOD), name: value}).passed


def test_a_model_that_makes_no_errors_needs_not_rank_them() -> None:
    assert Verdict(**{**vars(GOOD), "error": 0.01, "rank": 0.0}).passed


def episode(failed: bool, success: float, seed: int = 0, *, false_success: bool = False) -> EpisodeTest:
    """20 chunks whose errors grow with the disagreement; the last one succeeds unless the episode failed."""
    size = torch.rand(20, 1, generator=torch.Generator().manual_seed(seed))
    return EpisodeTest(
        failed,
        depth=torch.arange(20) % 2,
        error=size.repeat(1, 3),
        persistence=torch.full((20, 3), 2.0),
        seen=torch.ones(20, dtype=torch.bool),
        disagreement=0.5 * size.repeat(1, 3),
        success=torch.full((20,), success),
        possible=torch.full((20,), success),
        succeeded=(torch.arange(20) == 19) & (not failed),
        false_success=false_success,
        gap=torch.zeros(10),
    )


def test_thresholds_let_through_most_of_the_pool_and_two_percent_of_its_failures() -> None:
    pool = [episode(failed=i % 2 == 0, success=0.6 + 0.003 * i, seed=i) for i in range(100)]
    limits = calibrate(pool, 2)
    assert len(limits.uncertainty) == 2
    for depth in range(2):
        u = torch.cat([limits.uncertainty_of(t.disagreement)[t.depth == depth] for t in pool])
        assert (u <= limits.uncertainty[depth]).float().mean() == pytest.approx(0.95, abs=0.01)
    judged = sum(float(t.success.amax()) > limits.success for t in pool if t.failed)
    assert judged == 1
    verdict = judge_model(pool, limits)
    assert verdict.rank == pytest.approx(1.0)
    assert verdict.error == pytest.approx(0.58 / 2, abs=0.02)
    assert verdict.passed


def test_a_single_near_miss_does_not_set_the_threshold_of_success() -> None:
    pool = [episode(failed=True, success=0.001 * (i + 1), seed=i) for i in range(11)]
    near = [*pool, episode(failed=True, success=0.95)]
    assert calibrate(pool, 2).success == 0.5
    assert 0.5 < calibrate(near, 2).success < 0.9
    # Where near misses are usual, they count.
    usual = [episode(failed=True, success=0.9 + 0.005 * i, seed=i) for i in range(11)]
    assert calibrate(usual, 2).success == pytest.approx(0.95, abs=0.01)


def test_without_a_failure_the_threshold_of_success_stays_as_it_was() -> None:
    pool = [episode(failed=True, success=0.7)]
    before = calibrate(pool, 2)
    assert before.success == pytest.approx(0.7)
    succeeded = [episode(failed=False, success=0.9)]
    assert calibrate(succeeded, 2, before).success == before.success
    assert calibrate(succeeded, 2).success == 0.99


def test_an_error_that_the_threshold_keeps_out_fails_nobody() -> None:
    """Of a model that knows where it is wrong, only what is used counts."""
    pool = [episode(failed=i % 2 == 0, success=0.6, seed=i) for i in range(40)]
    clean = judge_model(pool, calibrate(pool, 2))
    for test in pool[::2]:
        test.error[0], test.disagreement[0] = 100.0, 50.0
    assert judge_model(pool, calibrate(pool, 2)).error == pytest.approx(clean.error, rel=0.2)
    for test in pool:
        test.disagreement[0] = 0.0
    assert judge_model(pool, calibrate(pool, 2)).error > 10 * clean.error


@pytest.mark.parametrize(("wrong", "used"), [(1, 0.95), (4, 0.8), (9, 0.55), (12, 0.5)])
def test_a_model_is_used_where_it_is_right_and_knows_it_at_least_half_of_the_time(
    wrong: int, used: float
) -> None:
    """In so many of 20 chunks it is wrong, and uncertain."""
    pool = [episode(failed=i % 2 == 0, success=0.6, seed=i) for i in range(50)]
    for test in pool:
        test.depth[:], chunks = 0, torch.arange(20)[:, None]
        test.error[:] = torch.where(chunks < wrong, 10.0, 0.1)
        test.disagreement[:] = test.error * (1 + 0.1 * torch.rand(20, 1))
    limits = calibrate(pool, 1)
    u = torch.cat([limits.uncertainty_of(test.disagreement) for test in pool])
    assert (u <= limits.uncertainty[0]).float().mean() == pytest.approx(used, abs=0.01)
    assert (judge_model(pool, limits).error <= 0.7) == (wrong < 12)


def test_a_model_that_sees_success_everywhere_fails() -> None:
    pool = [episode(failed=i % 2 == 0, success=1.0, seed=i, false_success=i % 2 == 0) for i in range(20)]
    verdict = judge_model(pool, calibrate(pool, 2))
    assert verdict.false_success == 0.5
    assert not verdict.passed


def test_a_model_that_sees_no_success_or_was_never_tested_on_one_fails() -> None:
    blind = [episode(failed=i % 2 == 0, success=0.1, seed=i) for i in range(20)]
    assert judge_model(blind, calibrate(blind, 2)).missed == 1.0
    untested = [episode(failed=True, success=0.1, seed=i) for i in range(20)]
    verdict = judge_model(untested, calibrate(untested, 2))
    assert verdict.missed == 1.0
    assert not verdict.passed


def test_a_model_that_leaves_every_success_open_has_no_gap_and_fails() -> None:
    pool = [
        EpisodeTest(**{**vars(episode(failed=False, success=0.9, seed=i)), "gap": torch.zeros(0)})
        for i in range(20)
    ]
    assert not judge_model(pool, calibrate(pool, 2)).passed


def test_disagreement_that_follows_the_depth_alone_has_no_rank() -> None:
    def mixed(seed: int) -> EpisodeTest:
        made = vars(episode(failed=False, success=0.9, seed=seed))
        deeper = 1 + 2 * made["depth"][:, None]
        return EpisodeTest(
            **{**made, "error": made["error"] * deeper, "disagreement": made["disagreement"].flip(0) * deeper}
        )

    pool = [mixed(i) for i in range(40)]
    assert abs(judge_model(pool, calibrate(pool, 2)).rank) < 0.3


def test_a_model_whose_disagreement_says_nothing_of_its_errors_fails() -> None:
    pool = [
        EpisodeTest(**{**vars(e), "disagreement": e.disagreement.flip(0)})
        for e in (episode(failed=False, success=0.9, seed=i) for i in range(20))
    ]
    assert not judge_model(pool, calibrate(pool, 2)).passed


class Late(Oracle):
    """Exact, but for success, which it predicts one step late."""

    def step(self, start, chunk, member, length=None) -> Prediction:  # type: ignore[no-untyped-def]
        made = super().step(start, chunk, member, length)
        late = torch.cat([torch.zeros_like(made.success_low[:, :1]), made.success_low[:, :-1]], 1)
        return Prediction(made.states, late, late, made.disagreement)


@pytest.mark.parametrize(("steps", "missed"), [(CHUNK + 1, False), (2 * CHUNK, True)])
def test_a_success_that_is_predicted_late_is_missed_only_where_the_chunk_ends(
    steps: int, missed: bool
) -> None:
    """A branch runs to the end of its chunk, whatever happened in the replayed one."""
    states = torch.stack([STEP * torch.arange(steps, -1, -1.0), torch.zeros(steps + 1)], 1)
    actions = torch.tensor([[-1.0, 0.0]]).repeat(steps, 1)
    episode = Episode(states, actions, success=True)

    def value(frames: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
        return torch.zeros(len(frames))

    generator = torch.Generator().manual_seed(0)
    (test,) = replay_in_model([episode], Late(), value, TaskReward(0.95), CHUNK, 1, 0.5, generator)
    assert test.succeeded.tolist() == [False, True]
    assert test.error.abs().max() < 1e-5
    assert (test.possible[1] < 0.5) == missed
    assert (test.gap.abs() < 0.06).tolist() == [True, not missed]


def test_an_end_that_was_not_recorded_is_no_error_without_uncertainty() -> None:
    """Of a demonstration the state after the last step is unknown; the model may be most uncertain there."""
    pool = [episode(failed=i % 2 == 0, success=0.7, seed=i) for i in range(30)]
    known = judge_model(pool, calibrate(pool, 2))
    unknown = [
        EpisodeTest(
            **{
                **vars(test),
                "seen": torch.cat([test.seen, torch.zeros(1, dtype=torch.bool)]),
                "depth": torch.cat([test.depth, torch.zeros(1, dtype=torch.long)]),
                "error": torch.cat([test.error, torch.zeros(1, 3)]),
                "persistence": torch.cat([test.persistence, torch.zeros(1, 3)]),
                "disagreement": torch.cat([test.disagreement, test.disagreement.amax(0, keepdim=True)]),
                "success": torch.cat([test.success, test.success[-1:]]),
                "possible": torch.cat([test.possible, test.possible[-1:]]),
                "succeeded": torch.cat([test.succeeded, test.succeeded[-1:]]),
            }
        )
        for test in pool
    ]
    limits = calibrate(unknown, 2)
    assert torch.equal(limits.error, calibrate(pool, 2).error)
    judged = judge_model(unknown, limits)
    assert judged.rank == pytest.approx(known.rank)
    assert judged.error == pytest.approx(known.error, abs=0.01)


def test_predictions_that_are_no_numbers_are_found() -> None:
    good = episode(failed=False, success=0.9)
    assert good.is_finite
    for name in ("error", "disagreement", "success", "gap"):
        broken = getattr(good, name).clone()
        broken[0] = float("nan")
        assert not EpisodeTest(**{**vars(good), name: broken}).is_finite
