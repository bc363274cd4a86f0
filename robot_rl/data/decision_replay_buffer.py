"""Replay buffer for policies of chunks: only where a chunk starts are images and base samples stored."""

from collections.abc import Mapping
from typing import Any, Final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from robot_rl.data.replay_buffer import FREE, Fields, ReplayBuffer, SwitchCost

NO_DECISION: Final = -1
"""`chunk_step` of a last observation for which the base was not asked."""
_NONE: Final = -1


class DecisionReplayBuffer(ReplayBuffer):
    """A replay buffer of which only some rows are decisions.

    A decision is a row whose `chunk_step` is 0: where a chunk starts, and the last observation of a
    truncated episode, for which the base is asked as well. Other rows have an action and a reward; what is
    missing there is stored as 0 and never read. A window begins at a decision whose chunk is over. It ends
    where its episode terminates, else at the last decision that its n steps reach, so that a chunk that is
    still executed, or was cut by the loss of a worker, is not learned from.
    """

    def __init__(
        self,
        capacity: int,
        streams: int,
        action_size: int,
        fields: Fields,
        device: torch.device | str = "cpu",
        switch: SwitchCost = FREE,
        features_of: str = "",
        failure_weight: float = 1.0,
    ) -> None:
        """See `ReplayBuffer`; `chunk_step` and `base_samples` are among the fields."""
        assert {"chunk_step", "base_samples"} <= fields.keys()
        super().__init__(capacity, streams, action_size, fields, device, switch, features_of, failure_weight)
        self._over = np.zeros(self.rows * self.streams, bool)
        """Decisions whose chunk ended, at another decision or by termination."""
        self._open = np.full(self.streams, _NONE)
        """Row of the decision whose chunk each stream executes."""

    def close_episode(self, streams: NDArray[np.integer[Any]], *, success: bool) -> None:
        super().close_episode(streams, success=success)
        self._open[streams] = _NONE

    def state_dict(self) -> dict[str, Any]:
        state = super().state_dict()
        used = state["weight"].shape[1]
        begun = np.where(self._open == _NONE, _NONE, self._open % self.rows)
        return {**state, "over": self._over.reshape(self.streams, -1)[:, :used].copy(), "open": begun}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from `state_dict`, also of a replay with fewer rows."""
        super().load_state_dict(state)
        self._over.reshape(self.streams, -1)[:, : state["over"].shape[1]] = state["over"]
        begun = state["open"]
        self._open[:] = np.where(begun == _NONE, _NONE, np.arange(self.streams) * self.rows + begun)

    def _write(
        self, streams: NDArray[np.integer[Any]], fields: Mapping[str, NDArray[Any]], *, is_last: bool
    ) -> NDArray[np.int64]:
        missing = {
            name: np.full((len(streams), *shape), NO_DECISION if name == "chunk_step" else 0)
            for name, (shape, _) in self.fields.items()
            if name not in fields
        }
        at = super()._write(streams, {**fields, **missing}, is_last=is_last)
        self._open[streams[self._open[streams] == at]] = _NONE
        self._over[at] = False
        decided = self._decision[at]
        self._end_chunks(streams[decided])
        if not is_last:
            self._open[streams[decided]] = at[decided]
        return at

    def _terminate(self, streams: NDArray[np.integer[Any]], rows: NDArray[np.int64]) -> None:
        super()._terminate(streams, rows)
        self._end_chunks(streams)

    def _end_chunks(self, streams: NDArray[np.integer[Any]]) -> None:
        """Note that the chunks that these streams execute have ended."""
        begun = self._open[streams]
        self._over[begun[begun != _NONE]] = True
        self._open[streams] = _NONE

    def _begins(self, chunk_starts_only: bool) -> NDArray[np.bool_]:
        del chunk_starts_only
        return self._over

    def _windows(self, row: Tensor, n_step: int) -> tuple[Tensor, Tensor, Tensor]:
        rows, inside, terminated = super()._windows(row, n_step)
        ahead = torch.arange(n_step + 1, device=self.device)
        length = inside.sum(1)
        reached = (self.data["chunk_step"][rows] == 0) & (ahead <= length[:, None])
        length = torch.where(terminated, length, (reached * ahead).amax(1))
        return rows, inside * (ahead[:-1] < length[:, None]), terminated

    def _following(self, rows: Tensor, length: Tensor, terminated: Tensor) -> Tensor:
        """The decisions [B] after windows; the windows' own where nothing follows."""
        return rows.gather(1, torch.where(terminated, 0, length)[:, None]).squeeze(1)

    def _executed(self, rows: Tensor, length: Tensor, chunk: int) -> Tensor:
        """Actions [B, h, A] of the first h steps, continued by the base's first sample at the decision."""
        planned = self.data["base_samples"][rows[:, 0], 0]
        step = torch.arange(chunk, device=self.device)
        instead = planned[:, step.clamp(max=planned.shape[1] - 1)]
        return torch.where((step < length[:, None])[:, :, None], self.data["action"][rows], instead)
