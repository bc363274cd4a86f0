"""Joins the windows of several datasets, of which batches take fixed shares."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from robot_rl.data.dataset import Windows
from robot_rl.data.frames import FrameFiles, JoinedFrames


def join_windows(parts: Sequence[Windows]) -> Windows:
    """The windows of datasets with equal observations and actions, one dataset after another.

    Images in memory are copied; those in files stay there.
    """
    starts = np.cumsum([0, *map(_steps, parts[:-1])]).tolist()
    told = [part.instruction for part in parts if part.instruction is not None]
    return Windows(
        state=np.concatenate([part.state for part in parts]),
        actions=np.concatenate([part.actions for part in parts]),
        mask=np.concatenate([part.mask for part in parts]),
        rows=np.concatenate([part.rows + start for part, start in zip(parts, starts, strict=True)]),
        images={camera: _join_images(parts, camera, starts) for camera in parts[0].images},
        instruction=np.concatenate(told) if told else None,
        groups=tuple(map(len, parts)),
    )


def _steps(windows: Windows) -> int:
    """Number of rows that images and instructions of a dataset have, at least."""
    if windows.instruction is not None:
        return len(windows.instruction)
    return max([int(windows.rows.max()) + 1, *(images.shape[0] for images in windows.images.values())])


def _join_images(
    parts: Sequence[Windows], camera: str, starts: Sequence[int]
) -> NDArray[np.uint8] | FrameFiles:
    files: list[FrameFiles] = []
    arrays: list[NDArray[np.uint8]] = []
    for part in parts:
        images = part.images[camera]
        if isinstance(images, np.ndarray):
            arrays.append(images)
        else:
            files.append(images)
    return JoinedFrames(files, starts) if files else np.concatenate(arrays)
