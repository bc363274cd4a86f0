"""What acts in an environment: a frozen base policy and, around it, what RL trains."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from robot_rl.policies.bases.base_policy import BasePolicy, Batch, Chunk

Frames = Mapping[str, NDArray[Any]]
"""One frame of observation per env_id: `state` float32 [B, S], `images.<camera>` uint8 [B, H, W, 3]."""


@dataclass(frozen=True)
class SelectedChunk:
    """The chunks to execute next in B env_ids."""

    actions: Tensor
    """What will be executed, unless it is corrected step by step [B, h, A]."""
    base: Tensor
    """What the base alone would do [B, h, A]."""
    noise: Tensor | None
    """Latent noise that made the chunk [B, Hn, Dn]."""


@dataclass(frozen=True)
class BaseSamples:
    """Samples of the base in B situations; what a replay keeps of them needs no base to learn from."""

    noise: NDArray[np.float32] | None
    """[B, N, Hn, Dn]."""
    chunks: NDArray[np.float32]
    """Their executed parts [B, N, h, A]."""


@dataclass(frozen=True)
class PolicyOutput:
    """What a policy decided for one control step in B env_ids."""

    action: NDArray[np.float32]
    """Requested action [B, A] in [-1, 1]."""
    base: NDArray[np.float32]
    """What the base alone would have done [B, A]."""
    noise: NDArray[np.float32] | None
    """Latent noise [B, Hn, Dn] of the chunk that this step belongs to."""
    chunk_step: NDArray[np.int64]
    """Position [B] of this step in its chunk; 0 where a new chunk was sampled."""
    base_samples: BaseSamples | None = None
    """Samples of the base here, if the wrapper learns from them."""

    @property
    def correction(self) -> NDArray[np.float32]:
        """What the wrapper added to the base, after clipping [B, A]."""
        return self.action - self.base

    def replay_fields(self) -> dict[str, NDArray[Any]]:
        """What a replay may keep, by the names of its fields."""
        kept: dict[str, NDArray[Any]] = {"base": self.base, "chunk_step": self.chunk_step}
        if self.noise is not None:
            kept["noise"] = self.noise
        if self.base_samples is not None:
            kept["base_samples"] = self.base_samples.chunks
            if self.base_samples.noise is not None:
                kept["base_sample_noise"] = self.base_samples.noise
        return kept


@dataclass(frozen=True)
class RunnerStep:
    """One step of the chunks in execution; fields as in `PolicyOutput`."""

    action: NDArray[np.float32]
    base: NDArray[np.float32]
    noise: NDArray[np.float32] | None
    chunk_step: NDArray[np.int64]
    base_samples: BaseSamples | None


class ChunkRunner:
    """Executes a base policy step by step in B env_ids.

    Each env_id has its own observation history, its own chunk in execution and its own noise
    generators, seeded when an episode begins: an episode does not depend on its neighbours, and
    no chunk leaks from one episode into the next. `base_samples` is the number of samples of the base
    that a decision has to choose from. They come from a generator of their own but for the first one:
    that is the one that the base alone would execute.
    """

    def __init__(self, base: BasePolicy, num_envs: int, base_samples: int = 0) -> None:
        spec = base.spec
        if not spec.deterministic:
            raise ValueError(
                f"{type(base).__name__} draws noise of its own: its episodes could not be repeated or resumed"
            )
        self.base, self.num_envs = base, num_envs
        self.base_samples = min(base_samples, 1) if spec.noise_shape is None else base_samples
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

    def reset(self, env_ids: Sequence[int], seeds: Sequence[int]) -> None:
        """Begin new episodes in some env_ids, each with its own seed."""
        for env_id, seed in zip(env_ids, seeds, strict=True):
            self._generators[env_id].manual_seed(seed)
            self._extra_generators[env_id].manual_seed(seed + 1)
            self._fresh[env_id] = True
            self._cursor[env_id] = self.base.spec.execute

    def replan(self, env_id: int) -> None:
        """Leave what is left of a chunk: the next step decides anew."""
        self._cursor[env_id] = self.base.spec.execute

    @torch.no_grad()
    def step(
        self,
        frames: Frames,
        env_ids: NDArray[np.int64],
        plan: Callable[[Batch, Chunk], SelectedChunk] | None = None,
        *,
        execute: int | None = None,
        with_base_samples: bool = False,
    ) -> RunnerStep:
        """The next step of the given env_ids.

        Args:
            frames: their newest observations.
            env_ids: which env_ids the frames belong to.
            plan: makes the chunks of env_ids that decide now, from their observations [b, To, …] and
                the base's samples; without it the base's first sample is executed.
            execute: steps of a chunk after which the next one is decided; `base.spec.execute` if None.
            with_base_samples: draw base_samples at every step, also where a chunk goes on, and return them.
        """
        self._remember(frames, env_ids)
        deciding = self._cursor[env_ids] >= (execute or self.base.spec.execute)
        base_samples = None
        with_base_samples = with_base_samples and self.base_samples > 0
        if with_base_samples or deciding.any():
            sampled = np.ones(len(env_ids), bool) if with_base_samples else deciding
            obs, chunk = self._sample(env_ids[sampled], deciding[sampled])
            if deciding.any():
                mask = torch.from_numpy(deciding[sampled])
                self._begin(env_ids[deciding], *_rows(obs, chunk, mask), plan)
            if with_base_samples:
                base_samples = BaseSamples(
                    None if chunk.noise is None else chunk.noise.cpu().numpy(), chunk.actions.cpu().numpy()
                )
        position = self._cursor[env_ids].copy()
        self._cursor[env_ids] += 1
        noise = None if self._noise is None else self._noise[env_ids]
        return RunnerStep(
            self._chunk[env_ids, position], self._base_chunk[env_ids, position], noise, position, base_samples
        )

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
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self._history = {key: value.copy() for key, value in state["history"].items()}
        self._fresh[:] = state["fresh"]
        self._chunk[:] = state["chunk"]
        self._base_chunk[:] = state["base_chunk"]
        self._cursor[:] = state["cursor"]
        if self._noise is not None:
            self._noise[:] = state["noise"]
        for name in ("generators", "extra_generators"):
            for generator, value in zip(getattr(self, f"_{name}"), state[name], strict=True):
                generator.set_state(value)

    def _remember(self, frames: Frames, env_ids: NDArray[np.int64]) -> None:
        spec = self.base.spec
        # All that is observed: a wrapper may look at what its base does not.
        for key, frame in frames.items():
            if key not in self._history:
                self._history[key] = np.zeros((self.num_envs, spec.obs_steps, *frame.shape[1:]), frame.dtype)
            history = self._history[key]
            fresh = self._fresh[env_ids].reshape(-1, *[1] * frame.ndim)
            shifted = np.concatenate([history[env_ids, 1:], frame[:, None]], axis=1)
            history[env_ids] = np.where(fresh, frame[:, None], shifted)
        self._fresh[env_ids] = False

    def _sample(self, env_ids: NDArray[np.int64], deciding: NDArray[np.bool_]) -> tuple[Batch, Chunk]:
        base, count = self.base, max(self.base_samples, 1)
        obs = {key: torch.from_numpy(value[env_ids]).to(base.device) for key, value in self._history.items()}
        if self._noise is None:
            return obs, _executed_part(base.sample(obs), base.spec.execute)
        noise = []
        for env_id, decides in zip(env_ids, deciding, strict=True):
            first = [base.draw_noise(1, generator=self._generators[env_id])] if decides else []
            if extra := count - len(first):
                first.append(base.draw_noise(1, extra, generator=self._extra_generators[env_id]))
            noise.append(torch.cat(first, 1))
        chunk = base.sample(obs, noise=torch.cat(noise), num_samples=count)
        return obs, _executed_part(chunk, base.spec.execute)

    def _begin(
        self,
        env_ids: NDArray[np.int64],
        obs: Batch,
        chunk: Chunk,
        plan: Callable[[Batch, Chunk], SelectedChunk] | None,
    ) -> None:
        made = plan(obs, chunk) if plan else select_first(chunk)
        self._chunk[env_ids] = made.actions.cpu().numpy()
        self._base_chunk[env_ids] = made.base.cpu().numpy()
        if self._noise is not None and made.noise is not None:
            self._noise[env_ids] = made.noise.cpu().numpy()
        self._cursor[env_ids] = 0


def select_first(chunk: Chunk) -> SelectedChunk:
    """The plan of the base alone."""
    noise = None if chunk.noise is None else chunk.noise[:, 0]
    return SelectedChunk(chunk.actions[:, 0], chunk.actions[:, 0], noise)


def latest_frame(obs: Batch) -> dict[str, Tensor]:
    """The last frame [B, …] of observations [B, To, …]."""
    return {key: value[:, -1] for key, value in obs.items()}


def _executed_part(chunk: Chunk, execute: int) -> Chunk:
    return Chunk(chunk.actions[:, :, :execute], chunk.noise)


def _rows(obs: Batch, chunk: Chunk, mask: Tensor) -> tuple[Batch, Chunk]:
    noise = None if chunk.noise is None else chunk.noise[mask]
    return {key: value[mask] for key, value in obs.items()}, Chunk(chunk.actions[mask], noise)


class ActingPolicy:
    """Acts in `num_envs` environments with a frozen base policy; subclasses add what RL trained around it.

    A subclass overrides `_select_chunk` (whole chunks) or `_correct_action` (every step). With `active` False
    it acts exactly as its base. This class alone is the base policy.
    """

    def __init__(
        self,
        base: BasePolicy,
        num_envs: int,
        *,
        base_samples: int = 0,
        execute: int | None = None,
        seed: int = 0,
    ) -> None:
        """Something that acts.

        Args:
            base: the frozen base.
            num_envs: environments that it acts in.
            base_samples: as in `ChunkRunner`.
            execute: steps of a chunk of the wrapper after which it decides anew, when it does not explore;
                as many as the base executes if None.
            seed: of what the wrapper itself draws.
        """
        self.base, self.execute = base, execute
        self.runner = ChunkRunner(base, num_envs, base_samples)
        self._generator = torch.Generator().manual_seed(seed)
        self.active = True
        """False switches the wrapper off (warm-up): the base acts, with exploration if asked for."""

    def reset(self, env_ids: Sequence[int], seeds: Sequence[int]) -> None:
        """Begin new episodes in some env_ids, each with its own seed."""
        self.runner.reset(env_ids, seeds)

    def replan(self, env_id: int) -> None:
        """Somebody else has moved the arm: the next step of a env_id decides anew."""
        self.runner.replan(env_id)

    @torch.no_grad()
    def act(
        self,
        frames: Frames,
        *,
        explore: bool = False,
        with_base_samples: bool = False,
        env_ids: NDArray[np.int64] | None = None,
    ) -> PolicyOutput:
        """Decide one control step.

        Args:
            frames: the newest observation of the given env_ids.
            explore: add what training needs to find better actions.
            with_base_samples: also return the base's base_samples, if the wrapper learns from them.
            env_ids: which env_ids the frames belong to; all if None.
        """
        if env_ids is None:
            env_ids = np.arange(self.runner.num_envs)
        plan = partial(self._select_chunk, explore=explore) if self.active else None
        execute = self.execute if self.active and not explore else None
        step = self.runner.step(frames, env_ids, plan, execute=execute, with_base_samples=with_base_samples)
        action = self._correct_action(frames, step.action, explore=explore)
        return PolicyOutput(action, step.base, step.noise, step.chunk_step, step.base_samples)

    def _select_chunk(self, obs: Batch, base_samples: Chunk, *, explore: bool) -> SelectedChunk:
        """The chunks [b, h, A] to execute.

        Args:
            obs: observations [b, To, …] of the env_ids that decide now.
            base_samples: samples of the base there, [b, N, h, A] and [b, N, Hn, Dn]; N is at least 1.
            explore: see `act`.
        """
        return select_first(base_samples)

    def _correct_action(
        self, frames: Frames, planned: NDArray[np.float32], *, explore: bool
    ) -> NDArray[np.float32]:
        """The action [B, A] in [-1, 1] to request instead of the planned one [B, A]."""
        return planned

    def state_dict(self) -> dict[str, Any]:
        """What changes while acting: histories, chunks and generators, not weights."""
        return {
            "runner": self.runner.state_dict(),
            "active": self.active,
            "generator": self._generator.get_state(),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.runner.load_state_dict(state["runner"])
        self.active = state["active"]
        self._generator.set_state(state["generator"])

    def _noise(self, *shape: int) -> Tensor:
        """N(0, I) of the wrapper's own generator, on the base's device."""
        return torch.randn(shape, generator=self._generator).to(self.base.device)

    def _tensors(self, frames: Frames) -> dict[str, Tensor]:
        """Frames on the base's device."""
        return {key: torch.from_numpy(value).to(self.base.device) for key, value in frames.items()}
