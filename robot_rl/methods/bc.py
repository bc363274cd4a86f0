"""Behaviour cloning: a base policy from demonstrations, or from episodes of a tuned policy (distillation)."""

import copy
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from robot_rl.data.dataset import TARGET, Dataset, Windows, make_windows
from robot_rl.data.episode_notes import imitated
from robot_rl.data.joined_windows import join_windows
from robot_rl.data.window_batches import WindowBatches
from robot_rl.envs.observation import IMAGE_PREFIX
from robot_rl.learning.augmentation import draw_shifts
from robot_rl.learning.config import check_counts, check_max_grad_norm, check_not_negative
from robot_rl.learning.distributed import (
    Processes,
    gathered,
    scattered,
    scattered_moments,
    whole_tensor,
)
from robot_rl.machine import memory_bytes
from robot_rl.methods.method import DatasetContext, OfflineMethod
from robot_rl.policies.bases.generative import GenerativeConfig
from robot_rl.policies.bases.imitation import ImitationConfig, ImitationPolicy
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
    replay: str | None = None
    """Second dataset, mixed into every batch so that what it shows is not forgotten: the base's
    demonstrations, or those of other instructions."""
    replay_ratio: float = 0.5
    """Fraction of each batch from `replay`."""

    def __post_init__(self) -> None:
        check_counts(self, "steps", "batch_size")
        check_max_grad_norm(self.max_grad_norm)
        check_not_negative(self, "lr")
        if self.replay is None and self.replay_ratio != BCConfig.replay_ratio:
            raise ValueError(
                f"method.replay_ratio={self.replay_ratio:g} is for method.replay=…, a second dataset"
            )
        if self.replay is not None and not 0 < self.replayed < self.batch_size:
            raise ValueError(
                f"method.replay_ratio={self.replay_ratio:g} of method.batch_size={self.batch_size} is "
                f"{self.replayed} windows of replay: choose 1 to {self.batch_size - 1}"
            )

    @property
    def replayed(self) -> int:
        """Windows of each batch from `replay`."""
        return round(self.replay_ratio * self.batch_size) if self.replay else 0


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
        counts = (config.batch_size - config.replayed, config.replayed)
        self._batches = WindowBatches(
            windows, counts, self._parts, device, seed, instructed=policy.takes_instruction
        )
        self._generator = torch.Generator().manual_seed(seed)

    def update(self) -> dict[str, Tensor]:
        """One gradient step on a batch of windows, drawn uniformly from each dataset."""
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
    """Behaviour cloning of a dataset's episodes, by a new policy or by one that was trained before."""

    config_type = BCConfig
    config: BCConfig
    distributes = True
    continues = True

    def __init__(self, config: BCConfig) -> None:
        self.config = config

    @property
    def replay(self) -> str | None:
        return self.config.replay

    def build_learner(self, context: DatasetContext) -> BCLearner:
        """Build the learner of a policy: with fitted normalisers, or of a trained one that keeps its own."""
        datasets = [context.dataset, *([context.replay] if context.replay else [])]
        used = [imitated(dataset, successes_only=self.config.successes_only) for dataset in datasets]
        shown = [
            text
            for dataset, (keep, _) in zip(datasets, used, strict=True)
            for text, kept in zip(dataset.instructions, keep, strict=True)
            if kept
        ]
        config = self._policy_config(context, datasets, shown)
        from_files = context.processes.reads_dataset or _exceed_memory(datasets)
        parts = [
            make_windows(dataset, config.obs_steps, config.horizon, keep, steps, from_files=from_files)
            for dataset, (keep, steps) in zip(datasets, used, strict=True)
        ]
        windows = join_windows(parts) if context.replay else parts[0]
        torch.manual_seed(context.seed)
        policy = context.trained or _new_policy(config, context.dataset, windows)
        return BCLearner(self.config, policy, windows, context.device, context.seed, context.processes)

    def _policy_config(
        self, context: DatasetContext, datasets: Sequence[Dataset], instructions: Sequence[str]
    ) -> ImitationConfig:
        """The configuration of the policy to train, with these instructions of the episodes to imitate.

        Raises:
            ValueError: if the datasets cannot train it.
        """
        config = context.trained.config if context.trained else context.base
        assert config is not None
        kind = BASES[config.name].policy
        for dataset in datasets:
            if kind.takes_instruction and not dataset.observation_spec.instruction:
                raise ValueError(
                    f"dataset {dataset.path} has no instructions, which base={config.name} needs: collect it "
                    "in a task with task.instructions=[…]"
                )
            if isinstance(config, GenerativeConfig) and config.max_prefix and TARGET in dataset.keys:
                raise ValueError(
                    f"base.max_prefix={config.max_prefix} goes on from executed actions, and those in "
                    f"{dataset.path} were relabelled: leave max_prefix out, or use data as it was executed"
                )
        if context.trained:
            for text in sorted(set(instructions)):
                context.trained.check_instruction(text)
            return config
        return kind.for_instructions(config, instructions)


def _exceed_memory(datasets: Sequence[Dataset]) -> bool:
    """Whether the images would take more than half of the main memory; tells the user so."""
    images = 0
    for dataset in datasets:
        height, width = dataset.observation_spec.image_size
        images += dataset.num_steps * len(dataset.observation_spec.cameras) * height * width * 3
    memory = memory_bytes(torch.device("cpu"))
    if 2 * images <= memory:
        return False
    print(
        f"the images take {images / 1e9:.1f} GB of {memory / 1e9:.1f} GB of memory: each batch reads its own "
        "from the dataset's files, which takes longer",
        file=sys.stderr,
    )
    return True


def _new_policy(config: ImitationConfig, dataset: Dataset, windows: Windows) -> ImitationPolicy:
    """An untrained policy with normalisers that are fitted to all windows."""
    observed = dataset.observation_spec
    policy = BASES[config.name].policy(
        config, observed.state_size, len(dataset.action_spec), observed.cameras, observed.image_size
    )
    policy.load_pretrained()
    policy.fit_normalizers(windows.state[:, -1], windows.actions[:, 0])
    return policy
