"""Interface of offline methods, which learn from a dataset and do not act in an environment."""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import ClassVar

import torch

from robot_rl.data.dataset import Dataset
from robot_rl.learning.learner import OfflineLearner
from robot_rl.policies.bases.imitation import ImitationConfig


@dataclass(frozen=True)
class DatasetContext:
    """Inputs from which an offline learner is built."""

    dataset: Dataset
    base: ImitationConfig | None
    """Configuration of the base policy to train; None for a method that trains none."""
    seed: int
    device: torch.device


class OfflineMethod(ABC):
    """Base class of methods that learn from a dataset."""

    name: ClassVar[str]
    config_type: ClassVar[type]
    acts: ClassVar[bool] = True
    """Whether the result is a policy, so that it must match the task's environment."""
    next_step: ClassVar[str] = "Measure it with `robot-rl eval policy={run}`"
    """Printed advice on what to do with the result."""

    @abstractmethod
    def build_learner(self, context: DatasetContext) -> OfflineLearner:
        """Build the learner.

        Raises:
            ValueError: if the dataset does not suit the method.
        """
