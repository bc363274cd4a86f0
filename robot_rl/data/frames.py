"""Reads and writes the images of a dataset, stored as arrays or as videos.

Videos are H.264 with a keyframe at every second frame and no frame that depends on a later one, so any frame
is read quickly. They are lossy. Rendered images of Lift take 1/19 of the size of compressed arrays at 84x84
and 1/64 at 256x256.
"""

from collections import OrderedDict
from collections.abc import Iterable, Iterator, Sequence
from fractions import Fraction
from pathlib import Path
from typing import Any, Final

import av
import numpy as np
from av.error import FFmpegError
from av.video.reformatter import VideoReformatter
from numpy.typing import NDArray

from robot_rl.data.zarr_store import decoded
from robot_rl.envs.observation import check_name

_TIME: Final = Fraction(1, 1000)
"""Time base: frame n is at n · `_TIME` in the file, independent of the dataset's rate."""
_RATE: Final = 1000
REPEATABLE: Final = {"threads": "1", "mbtree": "0"}
"""Options of libx264 for reproducible files: one thread, so that the number of processors does not matter,
and no `mbtree`. With `mbtree`, one clip gave a different file in about one of fifty runs under one kind of
load; how often it happens otherwise was not measured.
"""
_OPTIONS: Final = REPEATABLE | {"crf": "20", "g": "2", "bf": "0", "preset": "veryfast", "sc_threshold": "0"}
_OPEN: Final = 64
"""Most files kept open."""

Images = NDArray[np.uint8]


def video_path(dataset: Path, camera: str, episode: int) -> Path:
    """Path of an episode's video.

    Raises:
        ValueError: if the camera's name is invalid.
    """
    return dataset / "videos" / check_name(camera) / f"{episode:06d}.mp4"


def write_frames(path: Path, blocks: Iterable[Images]) -> None:
    """Write blocks of images [b, H, W, 3] as one video.

    Raises:
        ValueError: if height or width is odd: colours are stored for squares of two by two pixels.
    """
    number = 0
    with av.open(str(path), "w", format="mp4", options={"fflags": "+bitexact"}) as container:
        stream = container.add_stream("libx264", rate=_RATE, options=_OPTIONS)
        stream.pix_fmt = "yuv420p"
        for block in blocks:
            height, width = block.shape[1:3]
            if height % 2 or width % 2:
                raise ValueError(f"images of {width}x{height}: a video needs an even width and height")
            if number == 0:
                stream.height, stream.width = height, width
            for image in block:
                frame = av.VideoFrame.from_ndarray(np.ascontiguousarray(image), format="rgb24")
                frame.pts, frame.time_base = number, _TIME
                container.mux(stream.encode(frame))
                number += 1
        container.mux(stream.encode())


class ArrayFrames:
    """All images of one camera, uint8 [T, H, W, 3], in a chunked array."""

    def __init__(self, array: Any) -> None:
        self._array = array
        self.shape: tuple[int, ...] = array.shape

    def __getitem__(self, rows: NDArray[np.int64]) -> Images:
        """Images of some rows, [n, H, W, 3], in any order; each chunk is read once.

        Raises:
            ValueError: if a chunk is damaged.
        """
        found = np.empty((len(rows), *self.shape[1:]), np.uint8)
        size = self._array.chunks[0]
        chunks = rows // size
        for chunk in np.unique(chunks):
            here = chunks == chunk
            found[here] = decoded(self._array, slice(chunk * size, (chunk + 1) * size))[
                rows[here] - chunk * size
            ]
        return found


class VideoFrames:
    """All images of one camera in videos, one per episode. Not thread-safe."""

    def __init__(self, dataset: Path, camera: str, ends: Sequence[int], size: tuple[int, int]) -> None:
        """Check that the files exist.

        Args:
            dataset: folder of the dataset.
            camera: name of the camera.
            ends: one past each episode's last row.
            size: height and width of the images.

        Raises:
            ValueError: if a file is missing.
        """
        self._paths = [video_path(dataset, camera, episode) for episode in range(len(ends))]
        self._ends = np.array(ends, np.int64)
        self._starts = np.concatenate([np.zeros(1, np.int64), self._ends[:-1]])
        self.shape = (int(self._ends[-1]) if len(ends) else 0, *size, 3)
        self._open: OrderedDict[int, Any] = OrderedDict()
        # One converter for all frames: setting it up takes longer than converting a small image.
        self._colours = VideoReformatter()
        for path in self._paths:
            if not path.is_file():
                raise ValueError(f"dataset {dataset} is torn: {path.relative_to(dataset)} is missing")

    def __len__(self) -> int:
        return self.shape[0]

    def __getitem__(self, rows: NDArray[np.int64]) -> Images:
        """Images of some rows, [n, H, W, 3], in any order.

        Raises:
            ValueError: if a file is damaged.
        """
        found = np.empty((len(rows), *self.shape[1:]), np.uint8)
        episodes = np.searchsorted(self._ends, rows, side="right")
        for place, (row, episode) in enumerate(zip(rows.tolist(), episodes.tolist(), strict=True)):
            found[place] = self._frame(episode, row - int(self._starts[episode]))
        return found

    def read(self) -> Images:
        """All images, [T, H, W, 3].

        Raises:
            ValueError: if a file is damaged.
        """
        found = np.empty(self.shape, np.uint8)
        for episode, (start, end) in enumerate(zip(self._starts, self._ends, strict=True)):
            row = int(start)
            for image in self._frames(episode):
                if row == end:
                    break
                found[row] = image
                row += 1
            if row < end:
                raise self._damaged(episode, f"it has {row - start} of {end - start} images")
        return found

    def close(self) -> None:
        """Close the files. Safe to call twice."""
        while self._open:
            self._open.popitem()[1].close()

    def _frame(self, episode: int, number: int) -> Images:
        try:
            container = self._container(episode)
            stream = container.streams.video[0]
            wanted = round(number * _TIME / stream.time_base)
            container.seek(wanted, stream=stream, backward=True)
            for frame in container.decode(stream):
                if frame.pts >= wanted:
                    return self._image(episode, frame)
        # A file without a video stream gives an IndexError.
        except (FFmpegError, IndexError) as error:
            raise self._damaged(episode, str(error)) from error
        raise self._damaged(episode, f"it has no image {number}")

    def _frames(self, episode: int) -> Iterator[Images]:
        try:
            with av.open(str(self._paths[episode])) as container:
                for frame in container.decode(container.streams.video[0]):
                    yield self._image(episode, frame)
        # A file without a video stream gives an IndexError.
        except (FFmpegError, IndexError) as error:
            raise self._damaged(episode, str(error)) from error

    def _image(self, episode: int, frame: av.VideoFrame) -> Images:
        if (frame.height, frame.width) != self.shape[1:3]:
            raise self._damaged(episode, f"its images are {frame.width}x{frame.height}")
        return np.asarray(self._colours.reformat(frame, format="rgb24").to_ndarray(), np.uint8)

    def _container(self, episode: int) -> Any:
        container = self._open.pop(episode, None)
        if container is None:
            container = av.open(str(self._paths[episode]))
            # Threads do not speed up decoding a single frame, and starting them costs time.
            container.streams.video[0].thread_type = "NONE"
        self._open[episode] = container
        if len(self._open) > _OPEN:
            self._open.popitem(last=False)[1].close()
        return container

    def _damaged(self, episode: int, why: str) -> ValueError:
        return ValueError(f"{self._paths[episode]} is damaged: {why}; copy or derive it again")


class JoinedFrames:
    """The images of one camera in several datasets, as if they were one dataset after another.

    Args:
        parts: the images of each dataset.
        starts: the row at which each begins.
    """

    def __init__(self, parts: "Sequence[FrameFiles]", starts: Sequence[int]) -> None:
        self._parts, self._starts = parts, np.array(starts, np.int64)
        self.shape: tuple[int, ...] = (int(starts[-1]) + parts[-1].shape[0], *parts[-1].shape[1:])

    def __getitem__(self, rows: NDArray[np.int64]) -> Images:
        """Images of some rows, [n, H, W, 3], in any order."""
        found = np.empty((len(rows), *self.shape[1:]), np.uint8)
        owners = np.searchsorted(self._starts, rows, side="right") - 1
        for number in np.unique(owners).tolist():
            here = owners == number
            found[here] = self._parts[number][rows[here] - self._starts[number]]
        return found


FrameFiles = ArrayFrames | VideoFrames | JoinedFrames
"""Images that are read from files when they are indexed."""
