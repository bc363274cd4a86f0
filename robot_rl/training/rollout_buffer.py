"""The rollout buffer of on-policy methods."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor


class RolloutBuffer:
    """The last T control steps of B environments.

    Observations and policy outputs have rows [T + 1, B, …]: row T is of the state after the last step, and
    becomes row 0 of the next rollout. Where an episode ended with a step, the next row is of a new episode,
    and `final.<name>` of that step [T, B, …] holds the last observation and the policy's outputs there.
    """

    def __init__(self, steps: int, num_envs: int, kept: Sequence[str]) -> None:
        """Create an empty buffer; `kept` are the names of stored observations and policy outputs."""
        self.steps, self.num_envs, self._kept = steps, num_envs, kept
        self.data: dict[str, NDArray[Any]] = {
            "reward": np.zeros((steps, num_envs), np.float32),
            "terminated": np.zeros((steps, num_envs), bool),
            "done": np.zeros((steps, num_envs), bool),
        }
        self._row = 0

    @property
    def full(self) -> bool:
        """Whether it holds T steps."""
        return self._row == self.steps

    def add_decision(self, values: Mapping[str, NDArray[Any]]) -> None:
        """Add the observations and policy outputs of the current step; values are [B, …]."""
        for name in self._kept:
            value = values[name]
            if name not in self.data:
                self.data[name] = np.zeros((self.steps + 1, *value.shape), value.dtype)
            self.data[name][self._row] = value

    def add_outcome(
        self,
        reward: NDArray[np.float32],
        terminated: NDArray[np.bool_],
        done: NDArray[np.bool_],
        final: Mapping[str, NDArray[Any]],
    ) -> None:
        """Add the result of the current step.

        Args:
            reward: reward of every environment [B].
            terminated: whether its episode was terminated [B].
            done: whether its episode was terminated or truncated [B].
            final: last observations and the policy's outputs there, a row for each environment that is done.
        """
        self.data["reward"][self._row] = reward
        self.data["terminated"][self._row] = terminated
        self.data["done"][self._row] = done
        for name in final.keys() & set(self._kept):
            value, key = final[name], f"final.{name}"
            if key not in self.data:
                self.data[key] = np.zeros((self.steps, self.num_envs, *value.shape[1:]), value.dtype)
            self.data[key][self._row, done] = value
        self._row += 1

    def tensors(self, device: torch.device) -> dict[str, Tensor]:
        """Copies of all arrays, [T, B, …] or [T + 1, B, …]."""
        return {name: torch.from_numpy(value.copy()).to(device) for name, value in self.data.items()}

    def restart(self) -> None:
        """Begin the next rollout with the last row of this one."""
        for value in self.data.values():
            if len(value) > self.steps:
                value[0] = value[self.steps]
        self._row = 0

    def state_dict(self) -> dict[str, Any]:
        return {"row": self._row, "data": {name: value.copy() for name, value in self.data.items()}}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self._row, self.data = state["row"], dict(state["data"])
