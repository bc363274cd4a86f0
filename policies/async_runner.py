"""Asynchronous execution: the next chunk is computed while the current one is executed.

A chunk requested at control step t predicts the actions of steps t, t + 1, … from the observation of step t,
and arrives d steps later. Its action k is executed at step t + k or never. What RL trained around the base
sees the newest observation: candidates are chosen, and actions corrected, when they are executed.
docs/asynchronous.md has the equations and where they come from.
"""

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import wait
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from robot_rl.policies.acting import ActingPolicy
from robot_rl.policies.asynchronous import AsyncOptions, check_asynchronous
from robot_rl.policies.bases.base_policy import BasePolicy, Chunk, ObservationHistory
from robot_rl.policies.chunk_request import Answer, Request, Samples, Submit, compute_at_once
from robot_rl.policies.chunk_runner import (
    BaseSamples,
    ChunkRunner,
    Frames,
    PolicyOutput,
    SelectChunk,
    SelectedChunk,
    features_of,
    sample_base,
    select_first,
)
from robot_rl.policies.nets.encoder import FEATURES


@dataclass
class _Episode:
    """State of one environment."""

    now: int = 0
    """Control step."""
    samples: Samples | None = None
    features: Tensor | None = None
    """Those of the newest samples that have arrived [K, D]; `replan` does not drop them."""
    chosen: int = 0
    """Which of the samples is executed."""
    taken: int = 0
    """Control step since which the samples are executed."""
    decided: int = 0
    """Control step of the last choice among them."""
    request: Request | None = None
    held: bool = False
    replanning: bool = False
    """Whether the first chunk is one after `replan`."""

    def state_dict(self) -> dict[str, Any]:
        """All of it, for a checkpoint; the requested chunk must be there."""
        assert not self.request or self.request.future.done(), "a chunk is being computed"
        return {
            **vars(self),
            "samples": self.samples and vars(self.samples),
            "request": self.request and vars(self.request.result()),
        }

    @classmethod
    def from_state(cls, state: Mapping[str, Any], device: torch.device) -> "_Episode":
        """The state of `state_dict`, with samples on a device."""
        samples, requested = (
            state[name] and Samples(**state[name]).to(device) for name in ("samples", "request")
        )
        features = state["features"]
        moved = {
            "samples": samples,
            "request": requested and requested.as_request(),
            "features": None if features is None else features.to(device),
        }
        return cls(**{**state, **moved})


def execute_asynchronously(
    policy: ActingPolicy, options: AsyncOptions, repeated: tuple[bool, ...], submit: Submit = compute_at_once
) -> None:
    """Let a policy execute its chunks asynchronously, from its next `reset` on, if `options` say so.

    Args:
        policy: the policy.
        options: mode and delay.
        repeated: action dimensions [A] that repeat their last value while the arm is held; the others are 0.
        submit: computes chunks. Until one that is not ready after the delay is, the old one is executed, then
            the arm is held.

    Raises:
        ValueError: if it chooses the noise of the base, or the base's chunks are too short.
    """
    if not options:
        return
    if policy.steers_base:
        raise ValueError(
            f"{type(policy).__name__} chooses the base's noise by the newest observation, and asynchronous "
            "execution runs the base before: leave asynchronous out"
        )
    execute = policy.execute or policy.base.spec.execute
    policy.runner = AsyncRunner(policy.runner, options, execute, repeated, submit)


class AsyncRunner(ChunkRunner):
    """Executes chunks that arrive with a delay.

    One request at a time is open in each environment, made so that its chunk arrives when the executed part
    of the current one ends. If it does not, the current samples are used further, after another choice among
    them, until fewer than h are left; then the arm is held, as it is after `replan`. Where the new chunk goes
    on from what is planned (`prefix` and `guided`), there is no other choice, and the plan is executed.
    The first chunk of an episode is waited for: the arm is at rest; a chunk requested before a reset is not
    executed.
    """

    def __init__(
        self,
        runner: ChunkRunner,
        options: AsyncOptions,
        execute: int,
        repeated: tuple[bool, ...],
        submit: Submit,
    ) -> None:
        """Create the runner.

        Args:
            runner: executes the same base's chunks without a delay.
            options: mode and delay.
            execute: executed steps of a chunk.
            repeated: see `execute_asynchronously`.
            submit: see `execute_asynchronously`.

        Raises:
            ValueError: if the base's chunks are too short.
        """
        base, num_envs, copies = runner.base, runner.num_envs, runner.feature_copies
        super().__init__(base, num_envs, runner.base_samples, copies, runner.features_every_step)
        check_asynchronous(base, options, execute)
        self._mode, self._delay, self._submit = options.asynchronous, options.delay, submit
        self._continues = self._mode in ("prefix", "guided") and self._delay > 0
        self._episodes = [_Episode() for _ in range(num_envs)]
        self._last = np.zeros((num_envs, base.spec.action_size), np.float32)
        self._repeated = np.array(repeated)
        self._followed: dict[int, Tensor] = {}

    @property
    def delay(self) -> int:
        return self._delay

    def reset(self, env_ids: Sequence[int], seeds: Sequence[int]) -> None:
        super().reset(env_ids, seeds)
        for env_id in env_ids:
            self._forget(env_id)

    def replan(self, env_id: int) -> None:
        """Request a new chunk at the next step. The arm is held until it is there: it is moving."""
        super().replan(env_id)
        before = self._episodes[env_id]
        self._forget(env_id)
        episode = self._episodes[env_id]
        # An arm that has not begun to move may wait for its first chunk.
        episode.features, episode.replanning = before.features, before.now > 0 or before.replanning

    def follow(self, env_id: int, actions: NDArray[np.float32]) -> None:
        """Say which actions [T, A] an episode executes whatever is chosen, as along a demonstration."""
        self._followed[env_id] = torch.from_numpy(actions)

    def reads_next_frame(self, execute: int | None = None) -> NDArray[np.bool_]:
        """All: a chunk may be requested from any frame."""
        return np.ones(self.num_envs, bool)

    @torch.no_grad()
    def step(
        self,
        frames: Frames,
        env_ids: NDArray[np.int64],
        select: SelectChunk | None = None,
        *,
        execute: int | None = None,
        with_base_samples: bool = False,
    ) -> PolicyOutput:
        """See `ChunkRunner.step`.

        The samples of the base are those that a choice at this step would be made from: of the newest chunk
        that has arrived, the actions meant for the coming steps, then a hold. The features are of the
        observation that this chunk was made from. The base is not run for either.
        """
        copies, with_features = self._features_of_step(with_base_samples)
        execute = execute or self.base.spec.execute
        self._update_history(frames, env_ids)
        episodes = {int(i): self._episodes[i] for i in env_ids}
        new = [i for i, episode in episodes.items() if not episode.samples and not episode.request]
        self._request(new, copies)
        if self.delay == 0:
            self._request([i for i, episode in episodes.items() if self._is_due(episode, execute)], copies)
        for episode in episodes.values():
            if episode.request and self._has_arrived(episode, episode.request):
                self._take(episode, episode.request)
        due = {i: episode for i, episode in episodes.items() if self._must_choose(episode, execute)}
        committed = [i for i, episode in due.items() if self._is_committed(episode)]
        self._choose([i for i in due if i not in committed], select)
        self._choose(committed, partial(self._same_samples, committed))
        if self.delay > 0:
            # After the choice, so that the actions of the next steps are known.
            self._request([i for i, episode in episodes.items() if self._is_due(episode, execute)], copies)
        position = np.array([episode.now - episode.decided for episode in episodes.values()])
        base_samples = None
        if with_base_samples and self.base_samples > 0:
            coming = self._coming(list(episodes))
            drawn = None if coming.noise is None else coming.noise.cpu().numpy()
            base_samples = BaseSamples(drawn, coming.actions.cpu().numpy())
        features = self._newest_features(list(episodes)).cpu().numpy() if with_features else None
        for episode in episodes.values():
            episode.now += 1
        at = position.clip(max=self.base.spec.execute - 1)
        noise = None if self._noise is None else self._noise[env_ids]
        action, base = self._chunk[env_ids, at], self._base_chunk[env_ids, at]
        held, hold = self._holds(env_ids)
        return PolicyOutput(action, np.where(held, hold, base), noise, position, base_samples, features)

    def is_held(self, env_id: int) -> bool:
        return self._episodes[env_id].held

    def overrule(self, env_id: int, action: NDArray[np.float32]) -> None:
        # A hold repeats what was executed: a gripper that a person has closed stays closed.
        self._last[env_id] = action

    def wait(self) -> None:
        wait([episode.request.future for episode in self._episodes if episode.request])

    def executed(self, env_ids: NDArray[np.int64], action: NDArray[np.float32]) -> NDArray[np.float32]:
        """Executed actions [B, A]: the chosen ones, or those that hold the arm."""
        held, hold = self._holds(env_ids)
        executed = np.where(held, hold, action)
        self._last[env_ids] = executed
        self.holds += int(held.sum())
        return executed

    def state_dict(self) -> dict[str, Any]:
        """See `ChunkRunner`; only of a runner whose chunks are computed at once, as in simulation."""
        return {
            **super().state_dict(),
            "last": self._last.copy(),
            "episodes": [episode.state_dict() for episode in self._episodes],
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        super().load_state_dict(state)
        self._last[:] = state["last"]
        self._episodes = [_Episode.from_state(one, self.base.device) for one in state["episodes"]]

    def _holds(self, env_ids: NDArray[np.int64]) -> tuple[NDArray[np.bool_], NDArray[np.float32]]:
        """Whether environments are held [B, 1], and the actions [B, A] that hold them."""
        held = np.array([self._episodes[i].held for i in env_ids])
        hold = np.where(self._repeated, self._last[env_ids], 0).astype(np.float32)
        return held[:, None], hold

    # ---- one environment -----------------------------------------------------------------------------

    def _forget(self, env_id: int) -> None:
        request = self._episodes[env_id].request
        if request and all(
            other.request is None or other.request.future is not request.future
            for i, other in enumerate(self._episodes)
            if i != env_id
        ):
            request.future.cancel()
        self._episodes[env_id] = _Episode()

    def _has_arrived(self, episode: _Episode, request: Request) -> bool:
        """Whether a requested chunk is executed from now on; the first of an episode is waited for."""
        if not episode.samples and not episode.replanning:
            return True
        return episode.now - request.step >= self._delay and request.future.done()

    def _is_due(self, episode: _Episode, execute: int) -> bool:
        """Whether the next chunk has to be requested now."""
        soon = episode.now - episode.taken >= execute - self._delay
        return not episode.request and (soon or self._is_short(episode, episode.samples))

    def _is_short(self, episode: _Episode, samples: Samples | None) -> bool:
        """Whether samples reach over less than h further steps."""
        assert samples
        return self.base.spec.horizon - (episode.now - samples.step) < self.base.spec.execute

    def _must_choose(self, episode: _Episode, execute: int) -> bool:
        """Whether the chosen part ends here, and the samples reach over another one; if they do not, hold."""
        if not episode.samples:
            episode.held = True
            return False
        chosen = self.base.spec.execute if self._is_committed(episode) else execute
        # An arm that is held has nothing left to execute: what it did before is over.
        over = episode.held or episode.taken == episode.now or episode.now - episode.decided >= chosen
        episode.held = over and self._is_short(episode, episode.samples)
        return over and not episode.held

    def _is_committed(self, episode: _Episode) -> bool:
        """Whether a chunk is being computed that goes on from the present plan, see `_planned`."""
        return episode.request is not None and self._continues

    def _take(self, episode: _Episode, request: Request) -> None:
        """Execute the chunk of a request from now on, unless it came too late for another choice."""
        new = request.result()
        if episode.samples and self._is_short(episode, new):
            episode.request = None
            return
        if self._mode == "blend" and episode.samples and not episode.held:
            old = episode.samples
            left = old.actions[episode.chosen, episode.now - old.step :]
            _blend(new.actions[:, episode.now - new.step :], left, self.base.spec.execute)
        episode.samples, episode.request, episode.taken = new, None, episode.now
        episode.features = new.features

    # ---- several environments ------------------------------------------------------------------------

    def _request(self, env_ids: Sequence[int], copies: int) -> None:
        """Begin to compute chunks from the newest observations, and `copies` versions of their features."""
        if not env_ids:
            return
        planned = {env_id: self._planned(env_id) for env_id in env_ids}
        for length in sorted({len(plan) for plan in planned.values()}, reverse=True):
            ids = [env_id for env_id, plan in planned.items() if len(plan) == length]
            rows = np.array(ids)
            obs, noise = self._observations(rows), self._query_noise(rows, np.ones(len(ids), bool))
            sample = self._sample_after(torch.stack([planned[env_id] for env_id in ids]))
            sample = partial(sample, noise=noise, num_samples=max(self.base_samples, 1))
            shifts = self._shifts(rows, copies) if copies else None
            future = self._submit(partial(_answer, self.base, sample, obs, shifts))
            for row, env_id in enumerate(ids):
                episode = self._episodes[env_id]
                episode.request = Request(future, row, episode.now)

    def _sample_after(self, planned: Tensor) -> Callable[..., Chunk]:
        """Draws chunks of the base that go on from planned actions [b, L, A]; from any if L is 0."""
        if planned.shape[1] == 0:
            return partial(sample_base, self.base)
        if self._mode == "guided":
            return partial(self.base.sample_guided, previous=planned, committed=self.delay)
        return partial(self.base.sample_after, prefix=planned)

    def _planned(self, env_id: int) -> Tensor:
        """Actions [L, A] that a chunk requested now has to go on from: for `prefix` the next d, which are
        executed until it arrives, for `guided` all that is left of the current chunk.

        There are none (L = 0) at the first chunk of an episode, and where the next d are not known, since the
        arm is held or will be.
        """
        episode, h = self._episodes[env_id], self.base.spec.execute
        none = torch.empty(0, self.base.spec.action_size)
        if not self._continues or not episode.samples or episode.held:
            return none
        begin, reach = episode.now - episode.samples.step, self.base.spec.horizon
        if env_id in self._followed:
            planned = self._followed[env_id][episode.now :][: reach - begin]
            known = len(planned)
        else:
            chosen = torch.from_numpy(self._chunk[env_id, episode.now - episode.decided :])
            left = episode.samples.actions[episode.chosen, episode.decided + h - episode.samples.step :]
            planned = torch.cat([chosen.to(left.device), left])
            # Of what is left, whole parts are executed; then the arm is held.
            known = len(chosen) + len(left) // h * h
        if self._mode == "prefix":
            planned = planned[: self.delay]
        return planned if known >= self.delay else none

    def _choose(self, env_ids: Sequence[int], select: SelectChunk | None) -> None:
        """Choose among the samples of some environments, given their newest observations."""
        if not env_ids:
            return
        part, obs = self._coming(env_ids), self._observations(np.array(env_ids))
        if self.feature_copies:
            obs[FEATURES] = self._newest_features(env_ids)[:, 0]
        chosen = select(obs, part) if select else select_first(part)
        self._start_chunks(np.array(env_ids), chosen)
        # The sample that was chosen is the one with the chosen actions of the base.
        found = (part.actions == chosen.base[:, None]).flatten(2).all(2).int().argmax(1)
        for env_id, index in zip(env_ids, found.tolist(), strict=True):
            episode = self._episodes[env_id]
            episode.chosen, episode.decided = index, episode.now

    def _same_samples(self, env_ids: Sequence[int], obs: ObservationHistory, samples: Chunk) -> SelectedChunk:
        """The base's actions of the samples that are executed already."""
        at = torch.arange(len(env_ids)), torch.tensor([self._episodes[i].chosen for i in env_ids])
        same = samples[at]
        return SelectedChunk(same.actions, same.actions, same.noise)

    def _newest_features(self, env_ids: Sequence[int]) -> Tensor:
        """Features [b, K, D] of the observations of the newest chunks that have arrived."""
        known = []
        for env_id in env_ids:
            features = self._episodes[env_id].features
            assert features is not None, "the first chunk of an episode is waited for"
            known.append(features)
        return torch.stack(known)

    def _coming(self, env_ids: Sequence[int]) -> Chunk:
        """The samples of some environments, their actions for the next h steps [b, N, h, A].

        Where they do not reach as far, and where there are none after `replan`, the arm is held.
        """
        spec, count = self.base.spec, max(self.base_samples, 1)
        repeated = torch.from_numpy(self._repeated).to(self.base.device)
        parts, noises = [], []
        for env_id in env_ids:
            episode = self._episodes[env_id]
            before = torch.from_numpy(self._last[env_id]).to(self.base.device).expand(count, 1, -1)
            if samples := episode.samples:
                at = episode.now - samples.step
                before = torch.cat([before, samples.actions[:, at : at + spec.execute]], 1)
            hold = torch.where(repeated, before[:, -1:], 0)
            missing = spec.execute + 1 - before.shape[1]
            parts.append(torch.cat([before[:, 1:], hold.expand(-1, missing, -1)], 1))
            if spec.noise_shape is not None:
                given = samples.noise if samples else None
                noises.append(before.new_zeros(count, *spec.noise_shape) if given is None else given)
        return Chunk(torch.stack(parts), torch.stack(noises) if noises else None)


def _blend(new: Tensor, old: Tensor, steps: int) -> None:
    """Mix the first steps of new chunks [N, L, A] with what is left of the old one [L', A], in place."""
    steps = min(steps, len(old), new.shape[1])
    weight = 1 - torch.arange(1, steps + 1, device=new.device) / (steps + 1)
    new[:, :steps] = torch.lerp(new[:, :steps], old[:steps].expand(len(new), -1, -1), weight[:, None])


@torch.no_grad()
def _answer(
    base: BasePolicy, sample: Callable[..., Chunk], obs: Mapping[str, Tensor], shifts: Tensor | None
) -> Answer:
    if shifts is None:
        return Answer(sample(obs))
    features = features_of(base, obs, shifts)
    return Answer(sample({**obs, FEATURES: features[:, 0]}), features)
