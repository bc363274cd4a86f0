"""Training windows of a dataset: To observations and the H actions from the newest one on."""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from robot_rl.data.dataset import Dataset
from robot_rl.envs.observation import IMAGE_PREFIX


@dataclass(frozen=True)
class Windows:
    """Training windows, one per step of each episode.

    `state` [M, To, S] repeats the first observation before an episode's start; `actions`
    [M, H, A] repeats the last action past its end, where `mask` [M, H] is 0. Windows share images:
    `images[camera]` uint8 [T, H, W, 3] holds those of the whole dataset, and `rows` [M, To] are the
    images of each window.
    """

    state: NDArray[np.float32]
    actions: NDArray[np.float32]
    mask: NDArray[np.float32]
    rows: NDArray[np.int64]
    images: Mapping[str, NDArray[np.uint8]]

    def __len__(self) -> int:
        return len(self.state)


def make_windows(dataset: Dataset, obs_steps: int, horizon: int, keep: NDArray[np.bool_]) -> Windows:
    """Make the windows of the episodes in `keep` [N]; the first action follows the newest observation."""
    observations = dataset.observations()
    actions = dataset["applied_action"].astype(np.float32)
    past = np.arange(1 - obs_steps, 1)
    ahead = np.arange(horizon)
    rows_seen, action_index, mask = [], [], []
    for rows in (rows for rows, kept in zip(dataset.episodes, keep, strict=True) if kept):
        t = np.arange(rows.start, rows.stop)[:, None]
        rows_seen.append(np.maximum(t + past, rows.start))
        action_index.append(np.minimum(t + ahead, rows.stop - 1))
        mask.append(t + ahead < rows.stop)
    seen = np.concatenate(rows_seen)
    return Windows(
        observations["state"][seen],
        actions[np.concatenate(action_index)],
        np.concatenate(mask).astype(np.float32),
        seen,
        {camera: observations[IMAGE_PREFIX + camera] for camera in dataset.observation_spec.cameras},
    )
