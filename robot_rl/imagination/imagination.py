"""Imagination during training: collects episodes, refits and tests the world model, makes imagined batches.

Between two updates of the policy:

    new episodes -> replayed in the model (gate) -> learned from (refit) -> thresholds, imagined share
    start states -> branches in the model -> imagined transitions, a share of each batch
"""

import copy
import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Tensor

from robot_rl.data.replay_buffer import Batch
from robot_rl.imagination.branches import Branches, Limits, TaskReward
from robot_rl.imagination.config import ImaginationConfig
from robot_rl.imagination.episodes import (
    Episode,
    Steps,
    episode_from_rows,
    pack_episodes,
    unpack_episodes,
)
from robot_rl.imagination.gate import (
    MAX_ERROR,
    MAX_GAP,
    UNTESTED,
    EpisodeTest,
    Gate,
    calibrate,
    judge_model,
    replay_in_model,
)
from robot_rl.imagination.values import BaseSampler, LearnedValues, QueriedValues, StateValues
from robot_rl.imagination.world_model import WorldModel, chunk_start
from robot_rl.learning.learner import CandidatesLearner, ChunkLearner
from robot_rl.policies.bases.base_policy import Chunk

_JUMPS = 0.1
"""Part of a new episode's chunks, those with the largest change of value, that count as key moments."""
_VALUE_UPDATES = 500
"""Updates of a learned V before anything is imagined, since its values are whole targets."""
_CALLS = 4
"""Most times that branches are imagined for one batch."""
_STORED = 16
"""Imagined transitions that are held, in units of `branches`."""


@dataclass(frozen=True)
class ImaginedPart:
    """Imagined rows of a batch."""

    rows: Batch
    for_actor: bool
    """Whether the actor may learn from them as well."""


class Imagination:
    """Everything between a learner and its world model."""

    def __init__(
        self,
        config: ImaginationConfig,
        build_model: Callable[[], WorldModel],
        learner: ChunkLearner,
        sample_base: BaseSampler,
        task_reward: TaskReward,
        fields: Collection[str],
        seed: int,
    ) -> None:
        """Build the model and all that uses it.

        Args:
            config: options.
            build_model: makes a model that has learned nothing, with the same weights each time.
            learner: of the run; a `CandidatesLearner` if the base cannot be queried at predicted states.
            sample_base: queries the base.
            task_reward: the task's rewards.
            fields: names of the policy's fields that the learner's batches have.
            seed: of the random numbers.
        """
        self._build_model = build_model
        self.config, self.model, self.learner = config, build_model(), learner
        self.sample_base = sample_base
        self.chunk, self.task_reward, self.layout = sample_base.length, task_reward, sample_base.layout
        self.chunks = config.chunks
        """Most chunks of a branch."""
        self.episode_fields = self.layout.fields
        """Fields of the replay that an episode has besides states and actions."""
        self.values: StateValues = QueriedValues(learner, sample_base)
        self._learned_values: LearnedValues | None = None
        base = sample_base.base
        if not sample_base.is_queryable:
            assert isinstance(learner, CandidatesLearner)
            self.chunks = 1
            self.episode_fields += tuple(name for name in fields if name.startswith("base_sample"))
            size = self.layout.size(base.feature_size)
            self.values = self._learned_values = LearnedValues(learner, self.layout, size, seed)
        trace = config.trace if config.returns == "expansion" else None
        queried = sample_base if sample_base.is_queryable else None
        blind = config.ignore_uncertainty
        self.branches = Branches(
            self.model, learner, queried, task_reward, trace, fields, self.layout, ignore_uncertainty=blind
        )
        self.gate = Gate(config.share)
        self.episodes: list[Episode] = []
        self.learned = 0
        """Number of episodes that the model has learned from; those after them are new."""
        self.pool: list[EpisodeTest] = []
        self.limits: Limits | None = None
        self.history: list[dict[str, float | bool]] = []
        """The gate's decisions."""
        self.generator = torch.Generator().manual_seed(seed)
        """Of all random numbers but those of the model's gradient steps."""
        self._key_rows: list[list[int]] = []
        """Steps at key moments of each learned episode."""
        self._steps: Steps | None = None
        self._starts = torch.zeros(0)
        self._imagined: Batch = {}
        self.figures: dict[str, float] = {}
        """Of the newest branches: chunks of each, and of these the part that succeed and the mean weight."""
        self._owed = 0.0
        """Imagined transitions to be made, so that each is learned from `uses` times on average."""

    # ---- data ----------------------------------------------------------------------------------------

    def add_rows(self, rows: Mapping[str, Tensor], *, success: bool, demo: bool = False) -> None:
        """Take an episode that ended, from a replay's rows with `episode_fields`."""
        rows = {**rows, "state": self.layout.vectors(rows)}
        self.add_episode(episode_from_rows(rows, success=success, demo=demo))

    def add_episode(self, episode: Episode) -> None:
        """Take an episode that ended; one without a complete step is left out."""
        if len(episode):
            self.episodes.append(episode)

    # ---- the model -----------------------------------------------------------------------------------

    @property
    def is_due(self) -> bool:
        """Whether there are enough new episodes for a refit, or enough in all for the first fit."""
        new = len(self.episodes) - self.learned
        return new >= (self.config.refit_every if self.learned else self.config.pool)

    def refit(self, step: int) -> None:
        """Test the model on the new episodes, learn from them, and let the gate decide."""
        config, new = self.config, self.episodes[self.learned :]
        first = not self.learned
        pool_scale = None if first else self.model.scale.clone()
        if first and self._learned_values:
            self._learned_values.fit_norm(torch.cat([e.states for e in self.episodes]))
        tests = self._cross_test() if first else self._test(new)
        if rebuilt := not all(test.is_finite for test in tests):
            # Its weights are no numbers any more, and gradient steps from them never will be.
            self.model = self.branches.model = self._build_model()
            if not first:
                self.model.fit(self.episodes[: self.learned], 0, config.first_updates)
                tests = self._test(new)
        # The first ones are in the units of the states.
        scale = torch.ones(()) if first else self.model.scale.clone()
        self._key_rows += [self._key_moments(episode) for episode in new]
        updates = config.first_updates if first else config.fit_updates
        losses = self.model.fit(self.episodes, 0 if first else len(new), updates)
        # The others are of a model that is not used, or that fails.
        tests = [test.scaled(scale / self.model.scale) for test in tests if test.is_finite]
        if pool_scale is not None:
            # A model in another process, or a new one, may have changed its units.
            self.pool = [test.scaled(pool_scale / self.model.scale) for test in self.pool]
        self.pool = (self.pool + tests)[-config.pool :]
        self.learned = len(self.episodes)
        self._imagined, self._owed = {}, 0.0
        self._prepare_starts(len(new))
        if self.pool:
            self.limits = calibrate(self.pool, self.chunks, self.limits)
        record: dict[str, float | bool] = {**losses, "step": step, "episodes": self.learned}
        record["rebuilt"] = rebuilt
        newest = [test for test in tests if not test.demo]
        if not tests:
            self.gate.decide(passed=False)
            record["passed"] = False
        elif newest and len(self.pool) >= config.pool:
            assert self.limits is not None
            verdict = judge_model(self.pool, self.limits)
            # The pool may hold tests of an earlier, better model, and those of demonstrations, which are not
            # how the policy acts: the newest of the policy's have to agree with it.
            own = judge_model(newest, self.limits)
            passed = verdict.passed and own.error <= MAX_ERROR and abs(own.gap) <= MAX_GAP
            self.gate.decide(passed=passed, learned=self.has_values)
            record |= {**asdict(verdict), "newest_error": own.error, "newest_gap": own.gap}
            record["passed"] = passed
        record["share"] = self.gate.share
        if self.limits is not None:
            record["success_threshold"] = self.limits.success
            record |= {f"uncertainty_{i + 1}": value for i, value in enumerate(self.limits.uncertainty)}
        self.history.append(record)

    def _cross_test(self) -> list[EpisodeTest]:
        """Test each half of the episodes with a model that has learned from the other half.

        The tests are in the units of the states. A model that cannot be restored learns from the first half
        only and tests the second.
        """
        even, odd = slice(0, None, 2), slice(1, None, 2)
        unlearned = copy.deepcopy(self.model.checkpoint()) if self.model.resumable else None
        tests: dict[int, EpisodeTest] = {}
        for learned, tested in ((even, odd), (odd, even)):
            if tests:
                if unlearned is None:
                    break
                self.model.restore(unlearned)
            self.model.fit(self.episodes[learned], 0, self.config.first_updates)
            numbers = range(len(self.episodes))[tested]
            made = [test.scaled(self.model.scale) for test in self._test(self.episodes[tested])]
            tests |= zip(numbers, made, strict=True)
        if unlearned is not None:
            # The model that is used gets its units and its linear part from all episodes.
            self.model.restore(unlearned)
        return [tests[number] for number in sorted(tests)]

    def _test(self, new: Sequence[Episode]) -> list[EpisodeTest]:
        """Tests of the model on episodes that it has not learned from."""
        return replay_in_model(
            new,
            self.model,
            self.values,
            self.task_reward,
            self.chunk,
            self.chunks,
            self.limits.success if self.limits else UNTESTED,
            self.generator,
            self.config.context_chunks,
        )

    def _prepare_starts(self, newest: int) -> None:
        """Probability of each recorded step to be the start of a branch."""
        config = self.config
        self._steps = steps = Steps(self.episodes, config.context_chunks)
        count = len(steps.starts)
        episode = steps.episode[steps.starts]
        demo = torch.tensor([e.demo for e in self.episodes])[episode]
        recent = (episode >= len(self.episodes) - 2 * newest) & ~demo
        key = torch.zeros(len(steps.state), dtype=torch.bool)
        for offset, rows in zip(torch.unique(steps.first).tolist(), self._key_rows, strict=True):
            key[offset + torch.tensor(rows, dtype=torch.long)] = True
        weights = torch.zeros(count)
        left = 1.0
        for share, mask in (
            (config.recent, recent),
            (config.key_moments, key[steps.starts]),
            (config.demonstrations, demo),
        ):
            if share and mask.any():
                weights += share * mask / mask.sum()
                left -= share
        # Shares whose sum is 1 may leave -1e-17.
        self._starts = weights + max(left, 0.0) / count

    def _key_moments(self, episode: Episode) -> list[int]:
        """Steps before the episode's end, a gripper command or a jump of the value, once that is learned."""
        h, length = self.chunk, len(episode)
        found = set(range(max(0, length - 2 * h), length))
        for dimension in self.task_reward.switch.dimensions:
            command = episode.actions[:, dimension] > 0
            for at in (torch.nonzero(command[1:] != command[:-1]).squeeze(1) + 1).tolist():
                found.update(range(max(0, at - h), at + 1))
        rows = torch.arange(0, length, h)
        if len(rows) > 2 and self.has_values:
            frames = torch.stack([episode.states[(rows - 1).clamp(min=0)], episode.states[rows]], 1)
            value = self.values(frames, self.generator)
            jump = (value[1:] - value[:-1]).abs()
            found.update(rows[jump.topk(math.ceil(_JUMPS * len(jump))).indices].tolist())
        return sorted(found)

    # ---- imagined batches ----------------------------------------------------------------------------

    @property
    def share(self) -> float:
        """Fraction of a batch that is imagined now."""
        return self.gate.share if self.limits is not None and self.has_values else 0.0

    @property
    def has_values(self) -> bool:
        """Whether values of predicted states mean anything.

        Before the critics' warm-up is over, the policy is the base, and values are those of new critics.
        """
        values = self._learned_values
        return self.learner.warmed_up and (values is None or values.updates >= _VALUE_UPDATES)

    def learn_values(self, real: Batch) -> None:
        """Learn the values of states from a real batch, where the base cannot be queried for them."""
        if self._learned_values and self.learned:
            self._learned_values.update(real, self.generator)

    def sample(self, count: int) -> ImaginedPart | None:
        """Imagined transitions; None if no branch has a usable chunk."""
        self._owed += count / self.config.uses
        for _ in range(_CALLS):
            if self._owed > 0:
                # Branches without a usable chunk are not made again and again.
                self._owed -= self.imagine() or self.config.branches
        self._owed = min(self._owed, 0.0)
        if not self._imagined or not len(self._imagined["reward"]):
            return None
        stored = len(self._imagined["reward"])
        drawn = torch.randint(stored, (count,), generator=self.generator)
        rows = {name: value[drawn] for name, value in self._imagined.items()}
        if self._learned_values:
            rows = self._learned_values.complete(rows)
        return ImaginedPart(self.layout.stored(rows), self.gate.for_actor)

    def imagine(self) -> int:
        """Imagine branches and store their transitions. Returns how many there are."""
        assert self.limits is not None
        assert self._steps is not None
        drawn = torch.multinomial(
            self._starts, self.config.branches, replacement=True, generator=self.generator
        )
        rows = self._steps.starts[drawn]
        window = self._steps.windows(rows, self.chunk)
        start = chunk_start(window)
        stored = self._stored_samples(self._steps, rows) if self._learned_values else None
        made = self.branches.imagine(start, self.limits, self.generator, stored)
        count = len(made["reward"])
        self.figures = {"imagined_chunks": count / len(rows)}
        if count:
            self.figures["imagined_success"] = float((made["discount"] == 0).float().mean())
            self.figures["imagined_weight"] = float(made["weight"].mean())
        if self._imagined:
            made = {name: torch.cat([value, made[name]]) for name, value in self._imagined.items()}
        self._imagined = {name: value[-_STORED * self.config.branches :] for name, value in made.items()}
        return count

    def _stored_samples(self, steps: Steps, rows: Tensor) -> Chunk:
        """Samples of the base at rows [B] of the recorded steps."""
        episodes = steps.episode[rows].tolist()
        ats = (rows - steps.first[rows]).tolist()
        found = [(self.episodes[i].base_samples, at) for i, at in zip(episodes, ats, strict=True)]
        actions = [samples.actions[at] for samples, at in found if samples]
        noise = [samples.noise[at] for samples, at in found if samples and samples.noise is not None]
        assert len(actions) == len(rows)
        return Chunk(torch.stack(actions), torch.stack(noise) if noise else None)

    # ---- saving --------------------------------------------------------------------------------------

    def state_dict(self) -> dict[str, Any]:
        """Everything but what is computed from it."""
        return {
            "model": self.model.checkpoint(),
            "values": self._learned_values and self._learned_values.checkpoint(),
            "gate": self.gate.state_dict(),
            "learned": self.learned,
            **pack_episodes(self.episodes),
            "pool": [vars(test) for test in self.pool],
            "limits": None
            if self.limits is None
            else vars(self.limits) | {"uncertainty": list(self.limits.uncertainty)},
            "history": list(self.history),
            "key_rows": list(self._key_rows),
            "starts": self._starts,
            "imagined": self._imagined,
            "figures": self.figures,
            "owed": self._owed,
            "generator": self.generator.get_state(),
        }

    def load_state_dict(self, state: Mapping[str, Any], *, with_model: bool = True) -> None:
        """Go on from what `state_dict` returned, without the model if that is lost."""
        if with_model:
            self.model.restore(state["model"])
        if self._learned_values:
            self._learned_values.restore(state["values"])
        self.gate.load_state_dict(state["gate"])
        self.episodes = unpack_episodes(state)
        self.learned = state["learned"]
        self.pool, self.limits = read_pool(state), read_limits(state)
        self.history, self._key_rows = state["history"], state["key_rows"]
        self._starts, self._imagined = state["starts"], dict(state["imagined"])
        self._owed = state["owed"]
        self.figures = dict(state["figures"])
        self.generator.set_state(state["generator"])
        if self.learned:
            self._steps = Steps(self.episodes[: self.learned], self.config.context_chunks)


def read_pool(state: Mapping[str, Any]) -> list[EpisodeTest]:
    """The pool in what `Imagination.state_dict` returned."""
    return [EpisodeTest(**test) for test in state["pool"]]


def read_limits(state: Mapping[str, Any]) -> Limits | None:
    """The limits in what `Imagination.state_dict` returned."""
    limits = state["limits"]
    return limits and Limits(limits["error"], tuple(limits["uncertainty"]), limits["success"])
