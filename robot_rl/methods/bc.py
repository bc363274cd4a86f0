"""Behaviour cloning: a base policy from demonstrations."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from robot_rl.data.dataset import Windows, make_windows
from robot_rl.data.episode_notes import exemplary_steps
from robot_rl.envs.instruction import INSTRUCTION
from robot_rl.envs.observation import IMAGE_PREFIX
from robot_rl.learning.augmentation import augment_images
from robot_rl.methods.method import DatasetContext, OfflineMethod
from robot_rl.policies.bases.imitation import ImitationPolicy
from robot_rl.policies.nets.ema import EMA
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
    """Windows per batch."""
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
    """Minimises a policy's behaviour-cloning loss; the moving average of its weights is the result."""

    def __init__(
        self, config: BCConfig, policy: ImitationPolicy, windows: Windows, device: torch.device, seed: int
    ) -> None:
        self.config, self.device = config, device
        self.policy = policy.to(device)
        self.ema = EMA(self.policy)
        self.optimizer = torch.optim.AdamW(
            self.policy.parameters(), config.lr, weight_decay=config.weight_decay, fused=True
        )
        self.updates = 0
        self._data = {
            name: torch.from_numpy(getattr(windows, name)).to(device) for name in ("state", "actions", "mask")
        }
        self._rows = torch.from_numpy(windows.rows).to(device)
        # What windows share: images, and instructions for a policy that reads them.
        self._shared = {
            IMAGE_PREFIX + camera: torch.from_numpy(images).to(device)
            for camera, images in windows.images.items()
        }
        if policy.takes_instruction:
            assert windows.instruction is not None
            self._shared[INSTRUCTION] = torch.from_numpy(windows.instruction).to(device)
        self._rng = np.random.default_rng([seed, 2])
        self._generator = torch.Generator().manual_seed(seed)

    def update(self) -> dict[str, Tensor]:
        """One gradient step on a batch of windows drawn uniformly."""
        config = self.config
        drawn = self._rng.integers(len(self._rows), size=config.batch_size)
        index = torch.from_numpy(drawn).to(self.device)
        batch = {name: values[index] for name, values in self._data.items()}
        rows = self._rows[index]
        batch.update({name: values[rows] for name, values in self._shared.items()})
        batch = augment_images(batch, self._generator)
        self.updates += 1
        for group in self.optimizer.param_groups:
            group["lr"] = config.lr * min(1.0, self.updates / max(1, config.lr_warmup))
        loss = self.policy.loss(batch, self._generator)
        self.optimizer.zero_grad(set_to_none=True)
        loss.backward()
        norm = nn.utils.clip_grad_norm_(self.policy.parameters(), config.max_grad_norm, foreach=True)
        self.optimizer.step()
        self.ema.update(self.policy)
        return {"loss": loss.detach(), "grad": norm}

    def save_policy(self, directory: Path, environment: Mapping[str, Any]) -> None:
        save_policy(self.ema.average, directory, {"environment": environment, "method": "bc"})

    def finish(self) -> None:
        """No result here: `robot-rl eval` measures the policy."""

    def state_dict(self) -> dict[str, Any]:
        return {
            "policy": self.policy.state_dict(),
            "ema": self.ema.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "updates": self.updates,
            "rng": self._rng.bit_generator.state,
            "generator": self._generator.get_state(),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.policy.load_state_dict(state["policy"])
        self.ema.load_state_dict(state["ema"])
        self.optimizer.load_state_dict(state["optimizer"])
        self.updates = state["updates"]
        self._rng.bit_generator.state = state["rng"]
        self._generator.set_state(state["generator"])


class BCMethod(OfflineMethod):
    """Behaviour cloning of a dataset's episodes."""

    name = "bc"
    config_type = BCConfig

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
        windows = make_windows(dataset, base.obs_steps, base.horizon, keep, steps)
        torch.manual_seed(context.seed)
        observed = dataset.observation_spec
        policy = kind(
            base, observed.state_size, len(dataset.action_spec), observed.cameras, observed.image_size
        )
        policy.fit_normalizers(windows.state[:, -1], windows.actions[:, 0])
        return BCLearner(self.config, policy, windows, context.device, context.seed)
