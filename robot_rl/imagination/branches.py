"""Imagined branches: short rollouts of the policy in a world model, from real states.

The actions are the policy's own: samples of the base and their bounded corrections, chosen by value. A branch
ends where the model is uncertain, and no gradient goes through it.
"""

from collections.abc import Collection
from dataclasses import dataclass

import torch
from torch import Tensor

from robot_rl.data.replay_buffer import FREE, Batch, SwitchCost
from robot_rl.imagination.layout import Layout
from robot_rl.imagination.values import BaseSampler
from robot_rl.imagination.world_model import ChunkStart, Prediction, WorldModel
from robot_rl.learning.learner import ChunkLearner
from robot_rl.policies.bases.base_policy import Chunk

DOUBT = 0.2
"""Upper bound of the probability of success above which a step that is no sure success is doubtful. A success
that is called a failure bootstraps from a state from which no episode goes on."""


@dataclass(frozen=True)
class Limits:
    """Where branches end; measured on episodes that the model was not trained on."""

    error: Tensor
    """Root mean square error of a chunk's last state in each dimension, in units of the model's scale [S]."""
    uncertainty: tuple[float, ...]
    """Largest uncertainty of the first, second, … chunk of a branch; its length is the number of chunks."""
    success: float
    """Lower bound of the probability of success above which a step counts as a success."""

    def uncertainty_of(self, disagreement: Tensor) -> Tensor:
        """Disagreement [B, S] in units of the held-out error, root mean square over dimensions [B]."""
        return (disagreement / self.error).square().mean(-1).sqrt()


@dataclass(frozen=True)
class TaskReward:
    """Rewards of a task and how they are discounted."""

    gamma: float
    """Discount per environment step."""
    offset: float = 0.0
    """Added to each step's reward."""
    switch: SwitchCost = FREE
    span: float = 1.0
    """Largest minus smallest possible return."""

    def of_chunk(self, chunk: Tensor, past: Tensor, length: Tensor, success: Tensor) -> tuple[Tensor, Tensor]:
        """Discounted reward [B] of the first `length` [B] steps of chunks [B, h, A], and its discount [B].

        A success [B] is that of the last of these steps; it ends the episode, so its discount is 0.
        """
        steps = torch.arange(chunk.shape[1])
        made = steps < length[:, None]
        powers = self.gamma ** steps.float()
        each = self.offset + (success[:, None] & (steps == length[:, None] - 1)).float()
        if self.switch.cost:
            grippers = list(self.switch.dimensions)
            commands = torch.cat([past[:, -1:], chunk], 1)[..., grippers]
            changed = (commands[:, 1:] > 0) != (commands[:, :-1] > 0)
            # Past actions are 0 before an episode's start, where nothing is switched.
            changed[:, 0] &= past[:, -1].any(-1, keepdim=True)
            each = each - self.switch.cost * changed.sum(-1)
        reward = (each * powers * made).sum(1)
        return reward, torch.where(success, 0.0, self.gamma ** length.float())


@dataclass(frozen=True)
class JudgedChunk:
    """What a predicted chunk comes to."""

    length: Tensor
    """Valid steps of the chunk [B]."""
    success: Tensor
    """Whether the last of them succeeded [B]."""
    doubtful: Tensor
    """Whether success is neither sure nor unlikely [B]."""


def judge(prediction: Prediction, threshold: float) -> JudgedChunk:
    """The first step whose success is sure ends the chunk."""
    sure = prediction.success_low > threshold
    success = sure.any(1)
    h = sure.shape[1]
    length = torch.where(success, sure.float().argmax(1) + 1, h)
    return JudgedChunk(length, success, (prediction.success_high > DOUBT).any(1) & ~success)


class Branches:
    """Imagines branches with one model, learner and base."""

    def __init__(
        self,
        model: WorldModel,
        learner: ChunkLearner,
        sample_base: BaseSampler | None,
        task_reward: TaskReward,
        trace: float | None,
        fields: Collection[str],
        layout: Layout,
        *,
        ignore_uncertainty: bool = False,
    ) -> None:
        """Build what all branches share.

        Args:
            model: predicts the results of chunks.
            learner: chooses the chunks.
            sample_base: queries the base; None if it cannot be queried at predicted states.
            task_reward: the task's rewards.
            trace: lambda of value expansion; None gives every chunk as a transition.
            fields: names of the policy's fields that the learner's batches have.
            layout: of the model's vectors.
            ignore_uncertainty: whether no branch ends because of it, and none weighs less.
        """
        self.ignore_uncertainty = ignore_uncertainty
        self.model, self.learner, self.sample_base = model, learner, sample_base
        self.task_reward, self.trace, self.fields, self.layout = task_reward, trace, fields, layout

    @torch.no_grad()
    def imagine(
        self,
        start: ChunkStart,
        limits: Limits,
        generator: torch.Generator,
        stored: Chunk | None = None,
    ) -> Batch:
        """Transitions of one branch from each start, as a replay gives them, with their `weight` [B].

        A base that cannot be queried has `stored` samples at the real states where branches begin. Branches
        have one chunk then, and nothing uses the samples of its next state, which are the same ones.
        """
        model, learner = self.model, self.learner
        member = torch.randint(model.members, (len(start.frames),), generator=generator)
        assert (stored is None) == (self.sample_base is not None)
        assert stored is None or len(limits.uncertainty) == 1
        samples = stored or self._sample_base(start, generator)
        now = start
        rows: list[Batch] = []
        first: Batch | None = None
        for depth, most in enumerate(limits.uncertainty):
            chunk = learner.exploration_chunks(self.layout.observation(now.frames), samples, generator)
            prediction = model.step(now, chunk, member)
            outcome = judge(prediction, limits.success)
            uncertainty = limits.uncertainty_of(prediction.disagreement)
            if self.ignore_uncertainty:
                uncertainty = torch.zeros_like(uncertainty)
            kept = (uncertainty <= most) & ~outcome.doubtful & prediction.states.isfinite().all(2).all(1)
            after = now.after(chunk, prediction.states)
            samples_after = stored or self._sample_base(after, generator)
            reward, discount = self.task_reward.of_chunk(chunk, now.past, outcome.length, outcome.success)
            row = self._row("", now, samples) | self._row("next.", after, samples_after)
            valid = torch.arange(chunk.shape[1]) < outcome.length[:, None]
            row |= {
                "chunk": chunk,
                "chunk_mask": valid.float(),
                "action": chunk[:, 0],
                "reward": reward,
                "discount": discount,
                "weight": 1 / (1 + uncertainty),
                "success": torch.zeros_like(reward),
                "demo": torch.zeros_like(reward),
            }
            if self.trace is not None:
                left = len(limits.uncertainty) - depth
                if first is not None:
                    # The return so far again, in place of those over more chunks: else branches that end
                    # before a doubtful success count less.
                    missing = sum(self.trace**more for more in range(1, left + 1))
                    shorter = {**first, "weight": missing * first["weight"]}
                    rows.append({name: value[~kept] for name, value in shorter.items()})
                first = row = _expanded(first, row, self.trace**depth)
                # No return over more chunks follows that of a success: it has their weight too.
                longer = sum(self.trace**more for more in range(left))
                whole = torch.where(outcome.success, longer, 1.0)
                row = {**row, "weight": whole * row["weight"]}
            rows.append({name: value[kept] for name, value in row.items()})
            going = torch.nonzero(kept & ~outcome.success).squeeze(1)
            if not len(going):
                break
            now, member, samples = after[going], member[going], samples_after[going]
            first = None if first is None else {name: value[going] for name, value in first.items()}
        return {name: torch.cat([row[name] for row in rows]) for name in rows[0]}

    def _sample_base(self, start: ChunkStart, generator: torch.Generator) -> Chunk:
        assert self.sample_base is not None
        return self.sample_base(start.frames, generator)

    def _row(self, prefix: str, start: ChunkStart, samples: Chunk) -> Batch:
        """The observation where a chunk begins, and what the policy's fields hold of the base there."""
        of_base = {
            "base": samples.actions[:, 0, 0],
            "base_samples": samples.actions,
            "base_sample_noise": samples.noise,
        }
        known = {name: value for name, value in of_base.items() if name in self.fields and value is not None}
        row = self.layout.observation(start.frames) | known
        return {f"{prefix}{name}": value for name, value in row.items()}


def _expanded(first: Batch | None, row: Batch, weight: float) -> Batch:
    """The return from the branch's first state over one more chunk: `first` so far, `row` the chunk's own."""
    if first is None:
        return row
    after = {name: value for name, value in row.items() if name.startswith("next.")}
    return {
        **first,
        **after,
        "reward": first["reward"] + first["discount"] * row["reward"],
        "discount": first["discount"] * row["discount"],
        "weight": torch.minimum(first["weight"], weight * row["weight"]),
    }
