"""Execution of a base policy's action chunks, step by step, in several environments."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from robot_rl.policies.bases.base_policy import BasePolicy, Chunk, ObservationHistory
from robot_rl.policies.nets.encoder import FEATURES
from robot_rl.policies.nets.vision import MAX_SHIFT, shift_images

Frames = Mapping[str, NDArray[Any]]
"""One observation per environment: `state` float32 [B, S], `images.<camera>` uint8 [B, H, W, 3]."""


@dataclass(frozen=True)
class SelectedChunk:
    """The chunks that B environments execute next."""

    actions: Tensor
    """Actions to execute [B, h, A], before the correction of each step."""
    base: Tensor
    """Actions of the base alone [B, h, A]."""
    noise: Tensor | None
    """Latent noise from which the base made the chunk [B, Hn, Dn]."""


@dataclass(frozen=True)
class BaseSamples:
    """Samples of the base for B observations, stored so that updates need no pass through the base."""

    noise: NDArray[np.float32] | None
    """[B, N, Hn, Dn]."""
    chunks: NDArray[np.float32]
    """Their executed parts [B, N, h, A]."""


@dataclass(frozen=True)
class PolicyOutput:
    """Output of an acting policy for one control step in B environments."""

    action: NDArray[np.float32]
    """Requested action [B, A] in [-1, 1]."""
    base: NDArray[np.float32]
    """Action of the base alone [B, A]."""
    noise: NDArray[np.float32] | None
    """Latent noise [B, Hn, Dn] of the chunk that this step belongs to."""
    chunk_step: NDArray[np.int64]
    """Position [B] of this step in its chunk; 0 where a new chunk was sampled."""
    base_samples: BaseSamples | None = None
    """Samples of the base for this observation, if the policy learns from them."""
    features: NDArray[np.float32] | None = None
    """Features of the base of this observation, if the policy reads them: K versions [B, K, D], the first of
    the images as they are and the others of randomly shifted ones."""

    @property
    def correction(self) -> NDArray[np.float32]:
        """Difference from the base action, after clipping [B, A]."""
        return self.action - self.base

    def replay_fields(self) -> dict[str, NDArray[Any]]:
        """Fields that a replay may store, by name."""
        kept: dict[str, NDArray[Any]] = {"base": self.base, "chunk_step": self.chunk_step}
        if self.noise is not None:
            kept["noise"] = self.noise
        if self.base_samples is not None:
            kept["base_samples"] = self.base_samples.chunks
            if self.base_samples.noise is not None:
                kept["base_sample_noise"] = self.base_samples.noise
        if self.features is not None:
            kept[FEATURES] = self.features
        return kept


SelectChunk = Callable[[ObservationHistory, Chunk], SelectedChunk]
"""Chooses chunks, from observations [b, To, …] and samples of the base."""


class ChunkRunner:
    """Executes the chunks of a base policy step by step in B environments.

    Each environment has its own observation history, chunk and noise generators, seeded when an episode
    begins, so that episodes do not depend on each other. `base_samples` is the number of samples drawn where
    a chunk is chosen: the first is the one that the base alone would execute, the others come from a second
    generator. With `feature_copies` the observations that `select` gets hold the base's features [b, D], of
    which its samples are made too; a third generator shifts the images of the other copies. They are computed
    where a chunk is chosen or, with `features_every_step`, at each step.
    """

    def __init__(
        self,
        base: BasePolicy,
        num_envs: int,
        base_samples: int = 0,
        feature_copies: int = 0,
        features_every_step: bool = False,
    ) -> None:
        spec = base.spec
        self.base, self.num_envs = base, num_envs
        self.base_samples = spec.distinct(base_samples)
        self.feature_copies, self.features_every_step = feature_copies, features_every_step
        self.queries = 0
        """Number of observations for which the base was sampled."""
        self.encodings = 0
        """Number of observations whose features the base computed, each shifted version counted."""
        self.holds = 0
        """Number of control steps in which an arm was held, for want of a chunk."""
        self.starting = np.zeros(0, np.int64)
        """Environments [b] that started a chunk in the latest step, in the order of what `select` got."""
        self.decisions_only = False
        """Whether samples of the base and its features are only computed where a chunk starts."""
        self._history: dict[str, NDArray[Any]] = {}
        self._fresh = np.ones(num_envs, bool)
        self._chunk = np.zeros((num_envs, spec.execute, spec.action_size), np.float32)
        self._base_chunk = np.zeros_like(self._chunk)
        self._cursor = np.full(num_envs, spec.execute)
        self._noise = (
            None if spec.noise_shape is None else np.zeros((num_envs, *spec.noise_shape), np.float32)
        )
        self._generators = [torch.Generator() for _ in range(num_envs)]
        self._extra_generators = [torch.Generator() for _ in range(num_envs)]
        self._shift_generators = [torch.Generator() for _ in range(num_envs if feature_copies > 1 else 0)]

    def reset(self, env_ids: Sequence[int], seeds: Sequence[int]) -> None:
        """Begin new episodes in some environments, each with its own seed."""
        for env_id, seed in zip(env_ids, seeds, strict=True):
            self._generators[env_id].manual_seed(seed)
            self._extra_generators[env_id].manual_seed(seed + 1)
            if self._shift_generators:
                self._shift_generators[env_id].manual_seed(seed + 2)
            self._fresh[env_id] = True
            self._cursor[env_id] = self.base.spec.execute

    def replan(self, env_id: int) -> None:
        """Drop the rest of a chunk: the next step starts a new one."""
        self._cursor[env_id] = self.base.spec.execute

    def reads_next_frame(self, execute: int | None = None) -> NDArray[np.bool_]:
        """Whether a chunk that starts within the next To steps reads the next frame, for each environment."""
        spec = self.base.spec
        return self._cursor + spec.obs_steps - 1 >= (execute or spec.execute)

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
        """Execute the next step of the given environments.

        Args:
            frames: their latest observations.
            env_ids: indices [B] of the environments that the frames belong to.
            select: chooses the chunks of environments that start one now, from their observations
                [b, To, …] and the base's samples; without it the base's first sample is executed.
            execute: steps of a chunk that are executed; `base.spec.execute` if None.
            with_base_samples: draw and return samples of the base at every step, also within a chunk, and
                all versions of its features. With `decisions_only` they are 0 within a chunk, and None where
                no environment starts one.
        """
        self._update_history(frames, env_ids)
        starting = self._cursor[env_ids] >= (execute or self.base.spec.execute)
        base_samples = features = None
        copies, with_features = self._features_of_step(with_base_samples)
        with_base_samples = with_base_samples and self.base_samples > 0
        asked = starting if self.decisions_only else np.ones(len(env_ids), bool)
        observed = asked if with_base_samples or with_features else starting
        if observed.any():
            obs = self._observations(env_ids[observed])
            if copies:
                versions = features_of(self.base, obs, self._shifts(env_ids[observed], copies))
                obs[FEATURES] = versions[:, 0]
                features = _spread(versions, observed) if with_features else None
            sampled = asked if with_base_samples else starting
            if sampled.any():
                obs = _rows(obs, torch.from_numpy(sampled[observed]))
                chunk = self._sample(obs, env_ids[sampled], starting[sampled])
            if starting.any():
                self.starting = env_ids[starting]
                mask = torch.from_numpy(starting[sampled])
                begun = _rows(obs, mask), chunk[mask]
                self._start_chunks(env_ids[starting], select(*begun) if select else select_first(begun[1]))
            if with_base_samples:
                noise = None if chunk.noise is None else _spread(chunk.noise, sampled)
                base_samples = BaseSamples(noise, _spread(chunk.actions, sampled))
        position = self._cursor[env_ids].copy()
        self._cursor[env_ids] += 1
        executed_noise = None if self._noise is None else self._noise[env_ids]
        action, base = self._chunk[env_ids, position], self._base_chunk[env_ids, position]
        return PolicyOutput(action, base, executed_noise, position, base_samples, features)

    @property
    def delay(self) -> int:
        """Control steps from a request to its chunk."""
        return 0

    def is_held(self, env_id: int) -> bool:
        """Whether the last step holds the arm, because its actions are not computed yet."""
        del env_id
        return False

    def overrule(self, env_id: int, action: NDArray[np.float32]) -> None:
        """Say that an environment executes another action [A] than that of its last step."""

    def wait(self) -> None:
        """Wait for chunks that are being computed, if any are."""

    def executed(self, env_ids: NDArray[np.int64], action: NDArray[np.float32]) -> NDArray[np.float32]:
        """Executed actions [B, A], given the corrected ones of the last `step`."""
        del env_ids
        return action

    def state_dict(self) -> dict[str, Any]:
        return {
            "history": {key: value.copy() for key, value in self._history.items()},
            "fresh": self._fresh.copy(),
            "chunk": self._chunk.copy(),
            "base_chunk": self._base_chunk.copy(),
            "cursor": self._cursor.copy(),
            "noise": None if self._noise is None else self._noise.copy(),
            "generators": [generator.get_state() for generator in self._generators],
            "extra_generators": [generator.get_state() for generator in self._extra_generators],
            "shift_generators": [generator.get_state() for generator in self._shift_generators],
            "queries": self.queries,
            "encodings": self.encodings,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self._history = {key: value.copy() for key, value in state["history"].items()}
        self._fresh[:] = state["fresh"]
        self._chunk[:] = state["chunk"]
        self._base_chunk[:] = state["base_chunk"]
        self._cursor[:] = state["cursor"]
        if self._noise is not None:
            self._noise[:] = state["noise"]
        self.queries, self.encodings = state["queries"], state["encodings"]
        for name in ("generators", "extra_generators", "shift_generators"):
            for generator, value in zip(getattr(self, f"_{name}"), state[name], strict=True):
                generator.set_state(value)

    def _update_history(self, frames: Frames, env_ids: NDArray[np.int64]) -> None:
        spec = self.base.spec
        # All observations: RL may use cameras that the base does not.
        for key, frame in frames.items():
            if key not in self._history:
                self._history[key] = np.zeros((self.num_envs, spec.obs_steps, *frame.shape[1:]), frame.dtype)
            history = self._history[key]
            fresh = self._fresh[env_ids].reshape(-1, *[1] * frame.ndim)
            shifted = np.concatenate([history[env_ids, 1:], frame[:, None]], axis=1)
            history[env_ids] = np.where(fresh, frame[:, None], shifted)
        self._fresh[env_ids] = False

    def _sample(
        self, obs: ObservationHistory, env_ids: NDArray[np.int64], starting: NDArray[np.bool_]
    ) -> Chunk:
        noise = self._query_noise(env_ids, starting)
        chunk = sample_base(self.base, obs, noise, max(self.base_samples, 1))
        return chunk.executed(self.base.spec.execute)

    def _query_noise(self, env_ids: NDArray[np.int64], starting: NDArray[np.bool_]) -> Tensor | None:
        """Noise [b, N, Hn, Dn] with which the base is asked now for samples in some environments."""
        base, count = self.base, max(self.base_samples, 1)
        self.queries += len(env_ids)
        if self._noise is None:
            return None
        noise = []
        for env_id, starts in zip(env_ids, starting, strict=True):
            first = [base.draw_noise(1, generator=self._generators[env_id])] if starts else []
            if extra := count - len(first):
                first.append(base.draw_noise(1, extra, generator=self._extra_generators[env_id]))
            noise.append(torch.cat(first, 1))
        return torch.cat(noise)

    def _observations(self, env_ids: NDArray[np.int64]) -> dict[str, Tensor]:
        """Newest observations [b, To, …] of some environments."""
        device = self.base.device
        return {key: torch.from_numpy(value[env_ids]).to(device) for key, value in self._history.items()}

    def _features_of_step(self, with_base_samples: bool) -> tuple[int, bool]:
        """Versions K of the features that are computed of an observation, and whether a step returns them."""
        copies = self.feature_copies if with_base_samples else min(self.feature_copies, 1)
        return copies, copies > 0 and (with_base_samples or self.features_every_step)

    def _shifts(self, env_ids: NDArray[np.int64], copies: int) -> Tensor:
        """Random shifts [b, cameras, 2, K - 1] of the images of all but the first of K copies to encode."""
        self.encodings += copies * len(env_ids)
        shape = (len(self.base.spec.cameras), 2, copies - 1)
        if copies == 1:
            return torch.zeros(len(env_ids), *shape, dtype=torch.long)
        generators = (self._shift_generators[env_id] for env_id in env_ids)
        draws = [torch.randint(-MAX_SHIFT, MAX_SHIFT + 1, shape, generator=each) for each in generators]
        return torch.stack(draws)

    def _start_chunks(self, env_ids: NDArray[np.int64], chosen: SelectedChunk) -> None:
        self._chunk[env_ids] = chosen.actions.cpu().numpy()
        self._base_chunk[env_ids] = chosen.base.cpu().numpy()
        if self._noise is not None and chosen.noise is not None:
            self._noise[env_ids] = chosen.noise.cpu().numpy()
        self._cursor[env_ids] = 0


def select_first(chunk: Chunk) -> SelectedChunk:
    """The chunk that the base alone executes: its first sample."""
    noise = None if chunk.noise is None else chunk.noise[:, 0]
    return SelectedChunk(chunk.actions[:, 0], chunk.actions[:, 0], noise)


def features_of(base: BasePolicy, obs: ObservationHistory, shifts: Tensor) -> Tensor:
    """Features [b, K, D] of observations, and of their images shifted by `shifts` [b, cameras, 2, K - 1]."""
    features, copies = base.features(obs)[:, None], shifts.shape[-1]
    if not copies:
        return features
    moved = {key: value.repeat_interleave(copies, 0) for key, value in obs.items()}
    of_cameras = shifts.movedim(0, 2).flatten(2)
    for camera, each in zip(base.spec.cameras, of_cameras, strict=True):
        moved[f"images.{camera}"] = shift_images(moved[f"images.{camera}"], each)
    others = base.features(moved).unflatten(0, (-1, copies))
    return torch.cat([features, others], 1)


def sample_base(
    base: BasePolicy, obs: ObservationHistory, noise: Tensor | None = None, num_samples: int = 1
) -> Chunk:
    """Samples of the base for observations [B, To, …], from their features [B, D] where they hold them."""
    if FEATURES in obs:
        return base.sample_from_features(obs[FEATURES], noise=noise, num_samples=num_samples)
    return base.sample(obs, noise=noise, num_samples=num_samples)


def latest_frame(obs: ObservationHistory) -> dict[str, Tensor]:
    """The latest frame [B, …] of observations [B, To, …], and their features [B, D]."""
    return {key: value if key == FEATURES else value[:, -1] for key, value in obs.items()}


def _spread(values: Tensor, mask: NDArray[np.bool_]) -> NDArray[np.float32]:
    """Values [b, …] in the rows of a mask [B] with b of them set, and 0 in the others."""
    found: NDArray[np.float32] = values.cpu().numpy()
    if mask.all():
        return found
    spread = np.zeros((len(mask), *found.shape[1:]), found.dtype)
    spread[mask] = found
    return spread


def _rows(obs: ObservationHistory, mask: Tensor) -> dict[str, Tensor]:
    return {key: value[mask] for key, value in obs.items()}
