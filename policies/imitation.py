"""A base policy that is trained here, by behaviour cloning."""

from abc import abstractmethod
from typing import Any

import torch
from numpy.typing import ArrayLike
from torch import Tensor

from policies.base import BasePolicy, Batch


class ImitationPolicy(BasePolicy):
    """Built as `Policy(config, state_size, action_size)`, then fitted, trained and saved.

    What a training loop needs of it, on top of what RL needs of every base.
    """

    config: Any
    """The dataclass it was built from."""

    @abstractmethod
    def fit_normalizers(self, states: ArrayLike | Tensor, actions: ArrayLike | Tensor) -> None:
        """Take the ranges of every step's state [T, S] and action [T, A] in the demonstrations.

        Raises:
            ValueError: sizes other than the policy's; data that is empty or not finite.
        """

    @abstractmethod
    def loss(self, batch: Batch, generator: torch.Generator | None = None) -> Tensor:
        """Behaviour-cloning loss, a scalar.

        Args:
            batch: `state` [B, To, S]; `actions` [B, H, A] in [-1, 1]; `mask` [B, H], 1 where the
                action is real and 0 past the episode's end (what stands there is never looked at).
            generator: CPU generator of whatever is drawn.
        """
