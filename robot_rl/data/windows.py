"""Training windows of a dataset: To observations, then the H actions that follow."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from robot_rl.data.dataset import Dataset


@dataclass(frozen=True)
class Windows:
    """Every step of every episode as the start of a chunk.

    `state` [M, To, S] repeats the first observation before an episode's start; `actions`
    [M, H, A] repeats the last action past its end, where `mask` [M, H] is 0.
    """

    state: NDArray[np.float32]
    actions: NDArray[np.float32]
    mask: NDArray[np.float32]

    def __len__(self) -> int:
        return len(self.state)


def make_windows(dataset: Dataset, obs_steps: int, horizon: int, keep: NDArray[np.bool_]) -> Windows:
    """Cut the episodes to `keep` [N] into windows; an action belongs to its window's newest observation."""
    state = dataset.observations()["state"]
    actions = dataset["applied_action"].astype(np.float32)
    past = np.arange(1 - obs_steps, 1)
    ahead = np.arange(horizon)
    state_index, action_index, mask = [], [], []
    for rows in (rows for rows, kept in zip(dataset.episodes, keep, strict=True) if kept):
        t = np.arange(rows.start, rows.stop)[:, None]
        state_index.append(np.maximum(t + past, rows.start))
        action_index.append(np.minimum(t + ahead, rows.stop - 1))
        mask.append(t + ahead < rows.stop)
    return Windows(
        state[np.concatenate(state_index)],
        actions[np.concatenate(action_index)],
        np.concatenate(mask).astype(np.float32),
    )
