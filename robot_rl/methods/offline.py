"""The interface of methods that learn from a dataset and do not act."""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import ClassVar

import torch

from robot_rl.data.dataset import Dataset
from robot_rl.learning.learner import OfflineLearner
from robot_rl.policies.bases.imitation import ImitationConfig


@dataclass(frozen=True)
class DatasetContext:
    """What an offline method learns from."""

    dataset: Dataset
    base: ImitationConfig | None
    """Which base policy to train; None for a method that trains none."""
    seed: int
    device: torch.device


class OfflineMethod(ABC):
    """Learns from a dataset."""

    name: ClassVar[str]
    config_type: ClassVar[type]
    acts: ClassVar[bool] = True
    """Whether the result is a policy, which must fit the task's environment."""
    next_step: ClassVar[str] = "Measure it with `robot-rl eval policy={run}`"
    """What to do with the result."""

    @abstractmethod
    def build_learner(self, context: DatasetContext) -> OfflineLearner:
        """Raises ValueError where the dataset does not suit the method."""
