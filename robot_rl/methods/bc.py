"""Behaviour cloning: a base policy from demonstrations."""

import copy
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from robot_rl.data.dataset import Windows, make_windows
from robot_rl.data.episode_notes import exemplary_steps
from robot_rl.data.window_batches import WindowBatches
from robot_rl.envs.observation import IMAGE_PREFIX
from robot_rl.learning.augmentation import draw_shifts
from robot_rl.learning.processes import (
    Processes,
    gathered,
    scattered,
    scattered_moments,
    whole_tensor,
)
from robot_rl.methods.method import DatasetContext, OfflineMethod
from robot_rl.policies.bases.imitation import ImitationPolicy
from robot_rl.policies.nets.ema import AVERAGE, EMA
from robot_rl.policies.nets.vision import shift_images
from robot_rl.policies.registry import BASES
from robot_rl.policies.store import save_policy


@dataclass
class BCConfig:
    """Behaviour cloning."""

    name: str = "bc"
    """Name of the method."""
    steps: int = 10_000
    """Gradient steps."""
    batch_size: int = 256
    """Windows per batch, that is per gradient step; with accelerate=on, of all processes together."""
    lr: float = 1e-3
    """Learning rate after the warm-up."""
    lr_warmup: int = 200
    """Gradient steps of linear learning-rate warm-up."""
    weight_decay: float = 1e-4
    """Weight decay of AdamW."""
    max_grad_norm: float = 1.0
    """Gradient norm above which gradients are clipped."""
    successes_only: bool = True
    """Whether to use successful episodes only."""


class BCLearner:
    """Minimises a policy's behaviour-cloning loss; the moving average of its weights is the result.

    One of several processes computes parts of each batch, and all of them make the same gradient step.
    """

    def __init__(
        self,
        config: BCConfig,
        policy: ImitationPolicy,
        windows: Windows,
        device: torch.device,
        seed: int,
        processes: Processes | None = None,
    ) -> None:
        self.config = config
        self._processes = processes or Processes()
        self._parts = self._processes.parts(config.batch_size)
        self.policy = policy if self._processes.shards else policy.to(device)
        self.ema = EMA(self.policy)
        self.result: ImitationPolicy = self.ema.average
        """The policy to save. Where the average is sharded, a copy that `state_dict` brings up to date."""
        if self._processes.shards and self._processes.is_main:
            self.result = copy.deepcopy(self.ema.average)
        self._loss = self._processes.prepare(self.policy, self.ema.average)
        self.optimizer = torch.optim.AdamW(
            self.policy.parameters(), config.lr, weight_decay=config.weight_decay, fused=True
        )
        self.updates = 0
        self._batches = WindowBatches(
            windows, config.batch_size, self._parts, device, seed, instructed=policy.takes_instruction
        )
        self._generator = torch.Generator().manual_seed(seed)

    def update(self) -> dict[str, Tensor]:
        """One gradient step on a batch of windows drawn uniformly."""
        config, generator = self.config, self._generator
        numbers, mask = self._batches.draw()
        # Everything random of the whole batch, also where other processes compute parts of it.
        shifts = {IMAGE_PREFIX + name: draw_shifts(len(mask), generator) for name in self._batches.cameras}
        drawn = self.policy.draw(len(mask), generator)
        totals = self.policy.totals({"mask": mask, **drawn})
        self.updates += 1
        for group in self.optimizer.param_groups:
            group["lr"] = config.lr * min(1.0, self.updates / max(1, config.lr_warmup))
        self.optimizer.zero_grad(set_to_none=True)
        parts = (self._part(numbers, shifts, drawn, part) for part in self._parts)
        loss = self._processes.backward(self._loss, parts, totals)
        norm = nn.utils.clip_grad_norm_(self.policy.parameters(), config.max_grad_norm, foreach=True)
        self.optimizer.step()
        self.ema.update(self.policy)
        return {"loss": loss, "grad": whole_tensor(norm) if self._processes.shards else norm}

    def _part(
        self, numbers: Tensor, shifts: Mapping[str, Tensor], drawn: Mapping[str, Tensor], part: slice
    ) -> dict[str, Tensor]:
        batch = self._batches.part(numbers[part])
        for name, shift in shifts.items():
            batch[name] = shift_images(batch[name], shift[:, part])
        return batch | {name: values[part] for name, values in drawn.items()}

    def save_policy(self, directory: Path, environment: Mapping[str, Any]) -> None:
        save_policy(self.result, directory, {"environment": environment, "method": "bc"})

    def finish(self) -> None:
        """No result here: `robot-rl eval` measures the policy."""

    def state_dict(self) -> dict[str, Any]:
        """State of all processes together: each has to call it, and the main one gets it."""
        state = {
            "policy": self.policy.state_dict(),
            "ema": self.ema.state_dict(),
            "optimizer": self.optimizer.state_dict(),
        }
        if self._processes.shards:
            state = gathered(state, keep=self._processes.is_main)
            if self._processes.is_main:
                average = {name: state["ema"][AVERAGE + name] for name in self.result.state_dict()}
                self.result.load_state_dict(average)
        return {
            **state,
            "updates": self.updates,
            "rng": self._batches.state_dict(),
            "generator": self._generator.get_state(),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        weights, average, moments = state["policy"], state["ema"], state["optimizer"]
        if self._processes.shards:
            weights = scattered(weights, self.policy.state_dict())
            average = scattered(average, self.ema.state_dict())
            moments = scattered_moments(moments, self.policy.parameters())
        self.policy.load_state_dict(weights)
        self.ema.load_state_dict(average)
        self.optimizer.load_state_dict(moments)
        self.updates = state["updates"]
        self._batches.load_state_dict(state["rng"])
        self._generator.set_state(state["generator"])


class BCMethod(OfflineMethod):
    """Behaviour cloning of a dataset's episodes."""

    name = "bc"
    config_type = BCConfig
    distributes = True

    def __init__(self, config: BCConfig) -> None:
        self.config = config

    def build_learner(self, context: DatasetContext) -> BCLearner:
        """Build the learner of the policy that `base=` names, with fitted normalisers."""
        dataset, base = context.dataset, context.base
        assert base is not None
        keep = dataset.success if self.config.successes_only else np.ones_like(dataset.success)
        if not keep.any():
            raise ValueError(f"dataset {dataset.path} has no successful episode among {dataset.num_episodes}")
        kind = BASES[base.name].policy
        if kind.takes_instruction and not dataset.observation_spec.instruction:
            raise ValueError(
                f"dataset {dataset.path} has no instructions, which base={base.name} needs: collect it in a "
                "task with task.instructions=[…]"
            )
        base = kind.for_instructions(base, dataset.instructions)
        steps = exemplary_steps(dataset)
        from_files = context.processes.reads_dataset
        windows = make_windows(dataset, base.obs_steps, base.horizon, keep, steps, from_files=from_files)
        torch.manual_seed(context.seed)
        observed = dataset.observation_spec
        policy = kind(
            base, observed.state_size, len(dataset.action_spec), observed.cameras, observed.image_size
        )
        policy.fit_normalizers(windows.state[:, -1], windows.actions[:, 0])
        return BCLearner(self.config, policy, windows, context.device, context.seed, context.processes)
