"""Policies that act step by step: a base policy, and what RL adds to it."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from robot_rl.policies.bases.base_policy import BasePolicy, Chunk, ObservationHistory
from robot_rl.policies.chunk_runner import (
    ChunkRunner,
    Frames,
    PolicyOutput,
    SelectedChunk,
    sample_base,
    select_first,
)
from robot_rl.policies.nets.encoder import FEATURES, EncoderSpec


class ActingPolicy:
    """Acts in `num_envs` environments with a frozen base policy; subclasses add what RL trained around it.

    A subclass overrides `_select_chunk` (whole chunks) or `_correct_action` (every step). With `active` False
    and without exploration it acts exactly as its base. This class alone is the base policy.
    """

    steers_base: bool = False
    """Whether what the base computes depends on a choice by the newest observation: of its noise or seed."""
    corrects_steps: ClassVar[bool] = False
    """Whether `_correct_action` reads the observation of every step."""

    def __init__(
        self,
        base: BasePolicy,
        num_envs: int,
        *,
        base_samples: int = 0,
        execute: int | None = None,
        encoder: EncoderSpec | None = None,
        seed: int = 0,
    ) -> None:
        """Build the acting policy.

        Args:
            base: the frozen base policy.
            num_envs: environments that it acts in.
            base_samples: as in `ChunkRunner`.
            execute: executed steps of a selected chunk when not exploring; as many as the base executes if
                None.
            encoder: what the networks around the base read of an observation; None if there are none.
            seed: seed of the policy's own generator (exploration noise).
        """
        self.base, self.execute = base, execute
        self.sees_every_step = self.corrects_steps and (encoder is None or encoder.sees)
        """Whether `_correct_action` reads images, or features of them."""
        feature_copies = encoder.feature_copies if encoder else 0
        self.runner = ChunkRunner(base, num_envs, base_samples, feature_copies, self.sees_every_step)
        self._generator = torch.Generator().manual_seed(seed)
        self.active = True
        """False: the base acts (warm-up), with exploration noise if `explore` is set."""

    def reset(self, env_ids: Sequence[int], seeds: Sequence[int]) -> None:
        """Begin new episodes in some environments, each with its own seed."""
        self.runner.reset(env_ids, seeds)

    def replan(self, env_id: int) -> None:
        """Start a new chunk at the next step, for example after a person has moved the arm."""
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
        """Choose the actions of one control step.

        Args:
            frames: the latest observation of the given environments.
            explore: add exploration noise, as in training.
            with_base_samples: also return samples of the base and all versions of its features, if the policy
                learns from them.
            env_ids: indices [B] of the environments that the frames belong to; all if None.
        """
        if env_ids is None:
            env_ids = np.arange(self.runner.num_envs)
        select = partial(self._select_chunk, explore=explore) if self.active else None
        execute = self._executed_steps(explore=explore)
        step = self.runner.step(frames, env_ids, select, execute=execute, with_base_samples=with_base_samples)
        if step.features is not None:
            frames = {**frames, FEATURES: step.features[:, 0]}
        action = self._correct_action(frames, step.action, explore=explore)
        return replace(step, action=self.runner.executed(env_ids, action))

    @torch.no_grad()
    def observe_end(self, frames: Frames, env_ids: NDArray[np.int64]) -> PolicyOutput:
        """Samples of the base at the last observations of episodes, as where a chunk starts.

        Nothing is executed there, so what RL trained does not choose among them. The next call for these
        environments is `reset`.
        """
        for env_id in env_ids:
            self.replan(int(env_id))
        return self.runner.step(frames, env_ids, with_base_samples=True)

    def reads_next_frame(self, *, explore: bool = False) -> NDArray[np.bool_]:
        """Whether `act` will read images of the next step, for each environment [B].

        It does not say so of samples of the base at every step (`with_base_samples`).
        """
        if self.sees_every_step:
            return np.ones(self.runner.num_envs, bool)
        return self.runner.reads_next_frame(self._executed_steps(explore=explore))

    def _executed_steps(self, *, explore: bool) -> int | None:
        """Steps of a chunk that are executed; None for those of the base."""
        return self.execute if self.active and not explore else None

    @torch.no_grad()
    def choose_chunks(self, obs: ObservationHistory, generators: Sequence[torch.Generator]) -> Tensor:
        """Choose whole chunks outside of episodes, as a policy server does.

        Args:
            obs: B observations with their histories [B, To, …].
            generators: draw the noise of each.

        Returns:
            Actions to execute [B, h, A], without the correction of each step.
        """
        count, noise = max(self.runner.base_samples, 1), None
        if self.base.spec.noise_shape is not None:
            noise = torch.cat([self.base.draw_noise(1, count, generator) for generator in generators])
        if self.runner.feature_copies:
            obs = {**obs, FEATURES: self.base.features(obs)}
        chunk = sample_base(self.base, obs, noise, count)
        samples = chunk.executed(self.base.spec.execute)
        return self._select_chunk(obs, samples, explore=False).actions

    def act_single(self, frame: Frames) -> NDArray[np.float32]:
        """Action [A] in a single environment, for its latest observation without the leading axis."""
        return self.act({key: value[None] for key, value in frame.items()}).action[0]

    def _select_chunk(self, obs: ObservationHistory, base_samples: Chunk, *, explore: bool) -> SelectedChunk:
        """Choose the chunks [b, h, A] to execute.

        Args:
            obs: observations [b, To, …] of the environments that start a chunk now.
            base_samples: samples of the base, [b, N, h, A] and [b, N, Hn, Dn]; N is at least 1.
            explore: see `act`.
        """
        return select_first(base_samples)

    def _correct_action(
        self, frames: Frames, planned: NDArray[np.float32], *, explore: bool
    ) -> NDArray[np.float32]:
        """Action to execute [B, A] in [-1, 1], given the action of the selected chunk [B, A]."""
        return planned

    def state_dict(self) -> dict[str, Any]:
        """State that changes while acting: histories, chunks and generators, without weights."""
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
        """N(0, I) noise from the policy's generator, on the base's device."""
        return torch.randn(shape, generator=self._generator).to(self.base.device)

    def _tensors(self, frames: Frames) -> dict[str, Tensor]:
        """Frames as tensors on the base's device."""
        return {key: torch.from_numpy(value).to(self.base.device) for key, value in frames.items()}
