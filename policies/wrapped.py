"""What acts in an environment: a frozen base policy and, around it, what RL trains."""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from policies.base import BasePolicy

Frames = Mapping[str, NDArray[Any]]
"""One frame of observation per slot: `state` float32 [B, S], `images.<camera>` uint8 [B, H, W, 3]."""


@dataclass(frozen=True)
class Decision:
    """What a policy decided for one control step in B slots."""

    action: NDArray[np.float32]
    """Requested action [B, A] in [-1, 1]."""
    base: NDArray[np.float32]
    """What the base alone would have done [B, A]."""
    noise: NDArray[np.float32] | None
    """Latent noise [B, Hn, Dn] of the chunk that this step belongs to."""
    chunk_step: NDArray[np.int64]
    """Position [B] of this step in its chunk; 0 where a new chunk was sampled."""

    @property
    def correction(self) -> NDArray[np.float32]:
        """What the wrapper added to the base, after clipping [B, A]."""
        return self.action - self.base


class ChunkRunner:
    """Executes a base policy step by step in B slots.

    Each slot has its own observation history, its own chunk in execution and its own noise
    generator, seeded when an episode begins: an episode does not depend on its neighbours, and
    no chunk leaks from one episode into the next.
    """

    def __init__(self, base: BasePolicy, slots: int) -> None:
        spec = base.spec
        if not spec.deterministic:
            raise ValueError(
                f"{type(base).__name__} draws noise of its own: its episodes could not be repeated or resumed"
            )
        self.base, self.slots = base, slots
        self._history = np.zeros((slots, spec.obs_steps, spec.state_size), np.float32)
        self._fresh = np.ones(slots, bool)
        self._chunk = np.zeros((slots, spec.execute, spec.action_size), np.float32)
        self._cursor = np.full(slots, spec.execute)
        self._noise = None if spec.noise_shape is None else np.zeros((slots, *spec.noise_shape), np.float32)
        self._generators = [torch.Generator() for _ in range(slots)]

    def reset(self, slots: Sequence[int], seeds: Sequence[int]) -> None:
        """Begin new episodes in some slots, each with its own seed."""
        for slot, seed in zip(slots, seeds, strict=True):
            self._generators[slot].manual_seed(seed)
            self._fresh[slot] = True
            self._cursor[slot] = self.base.spec.execute

    @torch.no_grad()
    def step(
        self, frames: Frames, slots: NDArray[np.int64]
    ) -> tuple[NDArray[np.float32], NDArray[np.float32] | None, NDArray[np.int64]]:
        """Base action [B, A], noise [B, Hn, Dn] and chunk position [B] for the given slots."""
        state = frames["state"]
        self._history[slots] = np.where(
            self._fresh[slots, None, None],
            state[:, None],
            np.concatenate([self._history[slots, 1:], state[:, None]], axis=1),
        )
        self._fresh[slots] = False
        spent = slots[self._cursor[slots] >= self.base.spec.execute]
        if len(spent):
            self._sample(spent)
        position = self._cursor[slots].copy()
        self._cursor[slots] += 1
        noise = None if self._noise is None else self._noise[slots]
        return self._chunk[slots, position], noise, position

    def state_dict(self) -> dict[str, Any]:
        return {
            "history": self._history.copy(),
            "fresh": self._fresh.copy(),
            "chunk": self._chunk.copy(),
            "cursor": self._cursor.copy(),
            "noise": None if self._noise is None else self._noise.copy(),
            "generators": [generator.get_state() for generator in self._generators],
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self._history[:] = state["history"]
        self._fresh[:] = state["fresh"]
        self._chunk[:] = state["chunk"]
        self._cursor[:] = state["cursor"]
        if self._noise is not None:
            self._noise[:] = state["noise"]
        for generator, value in zip(self._generators, state["generators"], strict=True):
            generator.set_state(value)

    def _sample(self, slots: NDArray[np.int64]) -> None:
        base = self.base
        state = torch.from_numpy(self._history[slots]).to(base.device)
        if self._noise is None:
            chunk = base.sample({"state": state})
        else:
            noise = torch.cat([base.draw_noise(1, generator=self._generators[slot]) for slot in slots])
            self._noise[slots] = noise[:, 0].cpu().numpy()
            chunk = base.sample({"state": state}, noise=noise)
        self._chunk[slots] = chunk.actions[:, 0, : base.spec.execute].cpu().numpy()
        self._cursor[slots] = 0


class WrappedPolicy(ABC):
    """A base policy and what was trained around it, acting in `slots` environments.

    A wrapper that is switched off acts exactly as its base.
    """

    def __init__(self, base: BasePolicy, slots: int) -> None:
        self.base = base
        self.runner = ChunkRunner(base, slots)
        self.active = True
        """False switches the wrapper off (warm-up): the base acts, with exploration if asked for."""

    def reset(self, slots: Sequence[int], seeds: Sequence[int]) -> None:
        """Begin new episodes in some slots, each with its own seed."""
        self.runner.reset(slots, seeds)

    def act(
        self, frames: Frames, *, explore: bool = False, slots: NDArray[np.int64] | None = None
    ) -> Decision:
        """Decide one control step.

        Args:
            frames: the newest observation of the given slots.
            explore: add what training needs to find better actions.
            slots: which slots the frames belong to; all if None.
        """
        if slots is None:
            slots = np.arange(self.runner.slots)
        base, noise, position = self.runner.step(frames, slots)
        action = self._correct(frames, base, explore=explore)
        return Decision(action, base, noise, position)

    @abstractmethod
    def _correct(self, frames: Frames, base: NDArray[np.float32], *, explore: bool) -> NDArray[np.float32]:
        """The action [B, A] in [-1, 1] to request instead of the base action [B, A]."""

    def state_dict(self) -> dict[str, Any]:
        """What changes while acting: histories, chunks and generators, not weights."""
        return {"runner": self.runner.state_dict(), "active": self.active}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.runner.load_state_dict(state["runner"])
        self.active = state["active"]


class BaseOnly(WrappedPolicy):
    """The base policy with nothing around it."""

    def _correct(self, frames: Frames, base: NDArray[np.float32], *, explore: bool) -> NDArray[np.float32]:
        return base
