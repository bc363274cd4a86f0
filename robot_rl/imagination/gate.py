"""The gate: tests a world model on episodes that it was not trained on, and sets how much it is used.

Every new episode is replayed in the model, chunk by chunk from its real states, before the model learns
from it. The newest tested episodes are the pool: they give the thresholds at which branches end, and decide
whether the imagined share of a batch rises or falls.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import NormalDist, mean, stdev
from typing import Any

import scipy
import torch
from torch import Tensor

from robot_rl.imagination.branches import DOUBT, Limits, TaskReward, judge
from robot_rl.imagination.episodes import Episode, Steps
from robot_rl.imagination.values import StateValues
from robot_rl.imagination.world_model import ChunkStart, WorldModel, chunk_start

MAX_ERROR = 0.7
"""Largest error, relative to predicting that nothing moves."""
MIN_RANK = 0.3
"""Least rank correlation of uncertainty and error."""
NEGLIGIBLE = 0.1
"""Relative error below which there is nothing to rank."""
MAX_FALSE_SUCCESS = 0.02
"""Largest fraction of failed episodes that reach the threshold of success."""
MAX_FALSE_EPISODES = 0.1
"""Largest part of the pool that are failed episodes in which the model saw a success. It is a part of all
episodes: a policy that seldom fails leaves too few failed ones for a rate among them."""
MAX_MISSED = 0.75
"""Largest fraction of successful chunks that the model calls failures, instead of leaving them open."""
MAX_GAP = 0.1
"""Largest gap of imagined and real R + gamma V, and its 95 % interval, in units of the returns' span."""
STEP = 0.05
"""Rise of the share after a pass."""
_QUANTILES = tuple(percent / 100 for percent in range(95, 45, -5))
"""Quantiles of the pool's uncertainty at one of which branches end."""
UNTESTED = 0.99
"""Threshold of success while no failed episode was tested; it is never larger."""
_LEAST_SUCCESS = 0.5
"""Least threshold of success."""


@dataclass(frozen=True)
class EpisodeTest:
    """An episode replayed in the model: R predicted chunks of all depths."""

    failed: bool
    depth: Tensor
    """Chunks imagined before this one [R]."""
    error: Tensor
    """Difference of the last predicted and real state, in units of the model's scale [R, S]."""
    persistence: Tensor
    """The same for the prediction that nothing moves [R, S]."""
    seen: Tensor
    """Whether the last state was recorded [R]; error and persistence mean nothing where it was not."""
    disagreement: Tensor
    """Of the model's members [R, S]."""
    success: Tensor
    """Lower bound of the probability that the chunk succeeds [R]."""
    possible: Tensor
    """Upper bound of the same [R]."""
    succeeded: Tensor
    """Whether the chunk really succeeded [R]."""
    false_success: bool
    """Whether the episode failed and the model saw a success, by the threshold before this test."""
    gap: Tensor
    """Imagined minus real R + gamma^len V of chunks of depth 0, in units of the returns' span [G]; chunks
    whose success the model leaves open are left out."""
    demo: bool = False

    @property
    def is_finite(self) -> bool:
        """Whether all predictions were numbers."""
        return all(part.isfinite().all() for part in (self.error, self.disagreement, self.success, self.gap))

    def scaled(self, factor: Tensor) -> "EpisodeTest":
        """The same test with a scale that is `factor` [S] times as fine."""
        names = ("error", "persistence", "disagreement")
        return replace(self, **{name: factor * getattr(self, name) for name in names})


@dataclass(frozen=True)
class Verdict:
    """What the gate measured on the pool."""

    error: float
    """Root mean square error relative to persistence, after one chunk that the thresholds let pass."""
    rank: float
    """Rank correlation of uncertainty and error, mean over depths."""
    false_success: float
    """Failed episodes in which the model saw a success, as a part of all episodes."""
    missed: float
    """Fraction of successful chunks whose success the model calls improbable; 1 if no success was tested."""
    sure: float
    """Fraction of successful chunks above the threshold of success; branches have no other successes."""
    gap: float
    """Mean difference of imagined and real R + gamma V; infinite if there is none."""
    gap_interval: float
    """Half of its 95 % interval, over episodes."""

    @property
    def passed(self) -> bool:
        return (
            self.error <= MAX_ERROR
            and (self.rank >= MIN_RANK or self.error < NEGLIGIBLE)
            and self.false_success <= MAX_FALSE_EPISODES
            and self.missed <= MAX_MISSED
            and abs(self.gap) + self.gap_interval <= MAX_GAP
        )


class Gate:
    """Raises and lowers the imagined share of a batch, test after test of the model."""

    def __init__(self, largest: float) -> None:
        self.largest = largest
        self.share = 0.0
        self.failures = 0
        """Failed tests in a row."""
        self.passes = 0
        """Passed tests in a row since the critics have learned."""

    @property
    def for_actor(self) -> bool:
        """Whether actors learn from imagined states: critics do from the first pass on, actors after two."""
        return self.passes >= 2

    def decide(self, *, passed: bool, learned: bool = True) -> None:
        """A pass raises the share by `STEP`, a failure halves it, a second failure in a row sets it to 0.

        `learned` says whether the critics have: before, a pass does not count for actors.
        """
        self.passes = self.passes + learned if passed else 0
        self.failures = 0 if passed else self.failures + 1
        if passed:
            self.share = min(self.largest, self.share + STEP)
        else:
            self.share = self.share / 2 if self.failures < 2 else 0.0

    def state_dict(self) -> dict[str, Any]:
        return {"share": self.share, "failures": self.failures, "passes": self.passes}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.share, self.failures, self.passes = state["share"], state["failures"], state["passes"]


@torch.no_grad()
def replay_in_model(
    episodes: Sequence[Episode],
    model: WorldModel,
    values: StateValues,
    task_reward: TaskReward,
    chunk: int,
    chunks: int,
    threshold: float,
    generator: torch.Generator,
    history: int = 0,
) -> list[EpisodeTest]:
    """Replay the executed actions of episodes in the model, from every h-th of their states.

    Args:
        episodes: new to the model.
        model: that is tested.
        values: V of real and of predicted states.
        task_reward: the task's rewards.
        chunk: steps h of an executed chunk.
        chunks: most chunks of a replay.
        threshold: of success so far, by which imagined rewards are judged.
        generator: of the values.
        history: chunks before each that the model looks at.
    """
    steps, h = Steps(episodes, history), chunk
    start = steps.chunk_starts(h)
    window = steps.windows(start, h, chunks)
    member = torch.arange(len(start)) % model.members
    now = chunk_start(window)
    alive = torch.arange(len(start))
    found: list[dict[str, Tensor]] = []
    gap = torch.zeros(0)
    for depth in range(chunks):
        part = slice(depth * h, (depth + 1) * h)
        length = window.valid[alive, part].sum(1)
        alive, now, length = alive[length > 0], now[length > 0], length[length > 0]
        if not len(alive):
            break
        actions, real = window.actions[alive, part], window.states[alive, part]
        succeeded = window.success[alive, part].any(1)
        # Success ended the episode but not the chunk: in a branch a later step may be the successful one.
        last = torch.minimum(torch.arange(h), length[:, None] - 1)
        actions = actions.gather(1, last[..., None].expand_as(actions))
        whole = torch.where(succeeded, h, length)
        prediction = model.step(now, actions, member[alive], length)
        as_in_branch = model.step(now, actions, member[alive], whole)
        at = torch.arange(len(alive)), length - 1
        found.append(
            {
                "window": alive,
                "depth": torch.full_like(alive, depth),
                "error": (prediction.states[at] - real[at]) / model.scale,
                "persistence": (window.frames[alive, -1] - real[at]) / model.scale,
                "seen": window.seen[alive, part][at],
                "disagreement": prediction.disagreement,
                "success": as_in_branch.success_low.amax(1),
                "possible": as_in_branch.success_high.amax(1),
                "succeeded": succeeded,
            }
        )
        if depth == 0:
            judged = judge(as_in_branch, threshold)
            imagined = as_in_branch.states, torch.minimum(judged.length, whole), judged.success
            outcomes = imagined, (real, length, succeeded)
            gap, known = _backup_gap(task_reward, values, now, actions, outcomes, generator), ~judged.doubtful
        going = (length == h) & ~succeeded
        now, alive = now.after(actions, prediction.states)[going], alive[going]
    rows = {name: torch.cat([row[name] for row in found]) for name in found[0]}
    # Whether a window belongs to an episode [E, W].
    of_episode = steps.episode[start] == torch.arange(len(episodes))[:, None]
    tests = []
    for episode, mine in zip(episodes, of_episode, strict=True):
        kept = {name: value[mine[rows["window"]]].cpu() for name, value in rows.items() if name != "window"}
        wrong = episode.failed and bool((kept["success"] > threshold).any())
        gaps = gap[known & mine].cpu()
        tests.append(EpisodeTest(episode.failed, gap=gaps, false_success=wrong, demo=episode.demo, **kept))
    return tests


def _backup_gap(
    task_reward: TaskReward,
    values: StateValues,
    now: ChunkStart,
    chunk: Tensor,
    outcomes: tuple[tuple[Tensor, Tensor, Tensor], tuple[Tensor, Tensor, Tensor]],
    generator: torch.Generator,
) -> Tensor:
    """Imagined minus real R + gamma^len V(s') [B], in units of the returns' span.

    The outcomes of the chunks are states [B, h, S], length [B] and success [B].
    """
    before, backups = generator.get_state(), []
    for states, length, success in outcomes:
        # The same random numbers on both sides of the difference.
        generator.set_state(before)
        backups.append(_backup(task_reward, values, now, chunk, states, length, success, generator))
    return (backups[0] - backups[1]) / task_reward.span


def _backup(
    task_reward: TaskReward,
    values: StateValues,
    now: ChunkStart,
    chunk: Tensor,
    states: Tensor,
    length: Tensor,
    success: Tensor,
    generator: torch.Generator,
) -> Tensor:
    """R + gamma^len V(s') [B] of chunks after which the states [B, h, S] followed."""
    reward, discount = task_reward.of_chunk(chunk, now.past, length, success)
    whole = torch.cat([now.frames, states], 1)
    at = torch.arange(len(chunk))
    frames = torch.stack([whole[at, length], whole[at, length + 1]], 1)
    return reward + discount * values(frames, generator)


def pooled(pool: Sequence[EpisodeTest], *names: str) -> list[Tensor]:
    """Figures of all tested chunks [R, …], by their names in `EpisodeTest`."""
    return [torch.cat([getattr(test, name) for test in pool]) for name in names]


def calibrate(pool: Sequence[EpisodeTest], chunks: int, before: Limits | None = None) -> Limits:
    """Thresholds from tested episodes; if none of them failed, the threshold of success is that `before`."""
    depth, seen, error, still, disagreement = pooled(
        pool, "depth", "seen", "error", "persistence", "disagreement"
    )
    scale = error[seen & (depth == 0)].square().mean(0).sqrt().clamp(min=1e-6)
    uncertainty = Limits(scale, (), 1.0).uncertainty_of(disagreement)
    tested = torch.stack([uncertainty, error.square().mean(1), still.square().mean(1)])
    # Branches are not longer than the episodes of the pool.
    depths = [i for i in range(chunks) if (depth == i).any()]
    largest = tuple(_largest_uncertainty(tested[:, depth == i], seen[depth == i]) for i in depths)
    scores = [float(test.success.amax()) for test in pool if test.failed]
    threshold = before.success if before else UNTESTED
    if scores:
        threshold = _success_threshold(scores)
    return Limits(scale, largest, min(max(threshold, _LEAST_SUCCESS), UNTESTED))


def _largest_uncertainty(tested: Tensor, seen: Tensor) -> float:
    """The largest quantile of uncertainty up to which errors are at most `MAX_ERROR`, or the smallest one.

    As in M2AC (arXiv 2010.04893) a model is used where it knows most, and not less than half of the time.

    Args:
        tested: uncertainty, mean squared error and that of persistence [3, R].
        seen: whether the two errors are known [R].
    """
    most = 0.0
    for quantile in _QUANTILES:
        most = float(tested[0].quantile(quantile))
        _, error, still = tested[:, seen & (tested[0] <= most)].mean(1)
        if error <= MAX_ERROR**2 * still:
            break
    return most


def _success_threshold(scores: Sequence[float]) -> float:
    """Quantile of the failed episodes' highest probabilities of success, for `MAX_FALSE_SUCCESS`.

    A few episodes do not show it: their largest value is that of a single near miss. So it is at most that of
    a normal distribution of their logits.
    """
    seen = sorted(scores, reverse=True)[int(MAX_FALSE_SUCCESS * len(scores))]
    if len(scores) < 2:
        return seen
    logits = torch.tensor(scores).logit(1e-6)
    fitted = logits.mean() + NormalDist().inv_cdf(1 - MAX_FALSE_SUCCESS) * logits.std()
    return min(seen, float(fitted.sigmoid()))


def judge_model(pool: Sequence[EpisodeTest], limits: Limits) -> Verdict:
    """Measure a model on tested episodes."""
    depth, seen, *parts = pooled(pool, "depth", "seen", "error", "persistence", "disagreement")
    depth, error, still, disagreement = (part[seen] for part in (depth, *parts))
    size, uncertainty = error.square().mean(1).sqrt(), limits.uncertainty_of(disagreement)
    # Chunks beyond the threshold are never used.
    used = (depth == 0) & (uncertainty <= limits.uncertainty[0])
    relative = size[used].square().mean() / still[used].square().mean().clamp(min=1e-12)
    # Depth by depth, as the thresholds: errors and disagreement both grow with it.
    ranks = [rank_correlation(uncertainty[depth == i], size[depth == i]) for i in depth.unique()]
    success, possible, succeeded = pooled(pool, "success", "possible", "succeeded")
    missed, sure = 1.0, 0.0
    if succeeded.any():
        missed = float((possible[succeeded] < DOUBT).float().mean())
        sure = float((success[succeeded] > limits.success).float().mean())
    gaps = [float(test.gap.mean()) for test in pool if len(test.gap)]
    return Verdict(
        float(relative.sqrt()),
        sum(ranks) / len(ranks),
        sum(test.false_success for test in pool) / len(pool),
        missed,
        sure,
        mean(gaps) if gaps else math.inf,
        1.96 * stdev(gaps) / len(gaps) ** 0.5 if len(gaps) > 1 else math.inf,
    )


def rank_correlation(a: Tensor, b: Tensor) -> float:
    """Spearman's; 0 where one of them is constant."""
    if (a == a[0]).all() or (b == b[0]).all():
        return 0.0
    return float(scipy.stats.spearmanr(a.numpy(), b.numpy()).statistic)
