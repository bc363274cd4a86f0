"""Samples batches from online and prior data, in fixed parts as in RLPD (arXiv 2302.02948) or on a schedule.

Prior data are demonstrations and, as in HIL-SERL (arXiv 2410.21845), human interventions.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from robot_rl.data.replay_buffer import Batch, ReplayBuffer
from robot_rl.learning.config import OffPolicyConfig


@dataclass(frozen=True)
class Window:
    """Windows that a method learns from; see `ReplayBuffer.sample`."""

    chunk: int = 0
    """Steps of the action chunk in a window; 0 for none."""
    chunk_starts_only: bool = False
    """Whether windows begin only where a chunk was chosen."""
    steps: int = 0
    """Length without the option `n_step`; 0 for that of the chunk."""


class MixedSampler:
    """Samples the batches of one run from online and prior data; `state_dict` holds its generator."""

    def __init__(
        self,
        config: OffPolicyConfig,
        online: ReplayBuffer,
        demos: ReplayBuffer | None,
        window: Window,
        seed: int,
    ) -> None:
        """Raises ValueError if `n_step` is shorter than the window's chunk."""
        self.n_step = config.n_step or window.steps or window.chunk
        least = max(window.chunk, 1)
        if self.n_step < least:
            raise ValueError(
                f"method.n_step={config.n_step} is less than the {least} steps that method={config.name} "
                f"learns from at once: set method.n_step={least} or more"
            )
        self.config, self.online, self.demos, self.window = config, online, demos, window
        self._rng = np.random.default_rng([seed, 1])

    def demo_fraction(self, step: int) -> float:
        """Fraction of a batch from prior data at an environment step."""
        return self.config.demo_fraction(step) if self.demos is not None else 0.0

    def sample(self, step: int, rows: int | None = None) -> Batch:
        """One batch of `rows` windows (None: `batch_size`); prior data come last, demonstrations last."""
        config = self.config
        size = config.batch_size if rows is None else rows
        n_demo = round(size * self.demo_fraction(step))
        parts = []
        n_human = self._human_part(n_demo)
        for replay, count, humans_only in (
            (self.online, size - n_demo, False),
            (self.online, n_human, True),
            (self.demos, n_demo - n_human, False),
        ):
            if replay is not None and count:
                part = replay.sample(
                    count,
                    humans_only=humans_only,
                    n_step=self.n_step,
                    gamma=config.gamma,
                    rng=self._rng,
                    chunk=self.window.chunk,
                    chunk_starts_only=self.window.chunk_starts_only,
                    bootstrap_truncation=config.bootstrap_truncation,
                )
                parts.append(part)
        batch = {name: torch.cat([part[name] for part in parts]) for name in parts[0]}
        if config.reward_offset:
            batch["reward"] = batch["reward"] + config.reward_offset * batch["steps"]
        return batch

    def _human_part(self, prior: int) -> int:
        """Number of `prior` rows to sample from interventions, so that all prior steps are equally likely."""
        only = self.window.chunk_starts_only
        humans = self.online.humans(chunk_starts_only=only)
        if not prior or self.demos is None or not humans:
            return 0
        return int(
            self._rng.binomial(prior, humans / (humans + self.demos.beginnings(chunk_starts_only=only)))
        )

    def state_dict(self) -> dict[str, Any]:
        return {"rng": self._rng.bit_generator.state}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self._rng.bit_generator.state = state["rng"]
