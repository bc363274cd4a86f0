"""Batches of the windows of one dataset or several, drawn uniformly from each."""

from collections import deque
from collections.abc import Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from itertools import accumulate
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from robot_rl.data.dataset import Windows
from robot_rl.data.frames import FrameFiles
from robot_rl.envs.instruction import INSTRUCTION
from robot_rl.envs.observation import IMAGE_PREFIX
from robot_rl.errors import as_user_errors


class WindowBatches:
    """Draws batches of windows with a generator, and gives the parts of them that this process computes.

    Images are on the device or, if the windows have those of the dataset's files, read for each batch: those
    of this process's parts alone, in a thread, one batch ahead. All else is on the device.

    Args:
        windows: all windows.
        counts: of how many windows of each dataset a batch consists, one dataset after another; B together.
        parts: rows of a batch that this process computes.
        device: device of the batches.
        seed: seed of the draws.
        instructed: whether batches have instructions.
    """

    def __init__(
        self,
        windows: Windows,
        counts: Sequence[int],
        parts: Sequence[slice],
        device: torch.device,
        seed: int,
        *,
        instructed: bool,
    ) -> None:
        self._counts, self._parts, self._device = counts, parts, device
        self._groups = windows.groups or (len(windows),)
        self.cameras = tuple(windows.images)
        self._windows = {
            name: torch.from_numpy(getattr(windows, name)).to(device) for name in ("state", "actions", "mask")
        }
        self._rows = torch.from_numpy(windows.rows).to(device)
        self._shared: dict[str, Tensor] = {}
        """What windows share: images, and instructions."""
        files: dict[str, FrameFiles] = {}
        for camera, images in windows.images.items():
            if isinstance(images, np.ndarray):
                self._shared[IMAGE_PREFIX + camera] = torch.from_numpy(images).to(device)
            else:
                files[IMAGE_PREFIX + camera] = images
        if instructed:
            assert windows.instruction is not None
            self._shared[INSTRUCTION] = torch.from_numpy(windows.instruction).to(device)
        self._reader = _ImageReader(files) if files else None
        self._rng = np.random.default_rng([seed, 2])
        self._ahead: tuple[NDArray[np.int64], dict[str, Any]] | None = None
        """With a reader: the next batch, and the generator's state before it was drawn."""

    def draw(self) -> tuple[Tensor, Tensor]:
        """Draw a batch: numbers of its windows [B], and their masks [B, H]."""
        if self._reader is None:
            drawn = self._draw()
        else:
            drawn, _ = self._ahead or self._draw_ahead(self._reader)
            self._ahead = self._draw_ahead(self._reader)
        numbers = torch.from_numpy(drawn).to(self._device)
        return numbers, self._windows["mask"][numbers]

    def part(self, numbers: Tensor) -> dict[str, Tensor]:
        """The next of this process's parts of the batch: `state`, `actions`, `mask`, images, instruction.

        Args:
            numbers: numbers of its windows [b].

        Raises:
            UserError: if a file of images is damaged.
        """
        batch = {name: values[numbers] for name, values in self._windows.items()}
        rows = self._rows[numbers]
        batch.update({name: values[rows] for name, values in self._shared.items()})
        if self._reader:
            batch.update({name: images.to(self._device) for name, images in self._reader.next().items()})
        return batch

    def state_dict(self) -> dict[str, Any]:
        """State of the generator, from which the next batch is drawn again."""
        return self._ahead[1] if self._ahead else dict(self._rng.bit_generator.state)

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from a saved state; call it before the first `draw`."""
        assert self._ahead is None, "state loaded after the first batch"
        self._rng.bit_generator.state = state

    def _draw(self) -> NDArray[np.int64]:
        """Numbers of a batch's windows [B]."""
        starts = accumulate(self._groups, initial=0)
        groups = zip(starts, self._groups, self._counts, strict=False)
        return np.concatenate([start + self._rng.integers(size, size=count) for start, size, count in groups])

    def _draw_ahead(self, reader: "_ImageReader") -> tuple[NDArray[np.int64], dict[str, Any]]:
        before = self._rng.bit_generator.state
        drawn = self._draw()
        for part in self._parts:
            numbers = torch.from_numpy(drawn[part]).to(self._device)
            reader.request(self._rows[numbers].cpu().numpy())
        return drawn, dict(before)


class _ImageReader:
    """Reads images from a dataset's files in a thread, in the order of the requests."""

    def __init__(self, files: Mapping[str, FrameFiles]) -> None:
        self._files = files
        # One thread, since videos are not thread-safe.
        self._thread = ThreadPoolExecutor(1, "image-reader")
        self._requests: deque[Future[dict[str, Tensor]]] = deque()

    def request(self, rows: NDArray[np.int64]) -> None:
        """Begin to read the images of these rows [b, To]."""
        self._requests.append(self._thread.submit(self._read, rows))

    def next(self) -> dict[str, Tensor]:
        """Images [b, To, H, W, 3] of the oldest request. Raises UserError if a file is damaged."""
        with as_user_errors():
            return self._requests.popleft().result()

    def _read(self, rows: NDArray[np.int64]) -> dict[str, Tensor]:
        found = {name: file[rows.ravel()] for name, file in self._files.items()}
        return {name: torch.from_numpy(images).unflatten(0, rows.shape) for name, images in found.items()}
