"""Reads and writes LeRobotDataset's videos, which hold many episodes separated by time stamps."""

from collections.abc import Callable, Iterator, Mapping
from fractions import Fraction
from pathlib import Path
from typing import Any, Final

import av
import numpy as np
from av.error import FFmpegError
from av.video.reformatter import VideoReformatter
from numpy.typing import NDArray

from robot_rl.data.episode_stream import BLOCK
from robot_rl.data.formats.lerobot.layout import VIDEO, VIDEO_MB, Place
from robot_rl.data.frames import REPEATABLE
from robot_rl.data.writer import Streamed

_OPTIONS: Final = REPEATABLE | {"crf": "18", "g": "2", "bf": "0", "preset": "veryfast"}
"""A keyframe at every second frame, as in LeRobot's videos, so that any frame is found quickly."""

Images = NDArray[np.uint8]


class VideoFiles:
    """Writes the videos of one camera episode by episode; call `close` at the end."""

    def __init__(self, root: Path, key: str, fps: int) -> None:
        self._root, self._key, self._fps = root, key, fps
        self._place = Place()
        self._container: Any = None
        self._stream: Any = None
        self._frames = 0

    def add(self, images: Streamed, inspect: Callable[[Images], None]) -> dict[str, int | float]:
        """Append an episode; returns its location as columns of the episode table.

        Args:
            images: uint8 [T, H, W, 3].
            inspect: called with every block.
        """
        path = self._root / self._place.path(VIDEO, video_key=self._key)
        if self._container is not None and path.stat().st_size >= VIDEO_MB << 20:
            self.close()
            self._place = self._place.next()
        if self._container is None:
            self._begin(images.shape[1], images.shape[2])
        begun = self._frames
        for block in images.blocks():
            inspect(block)
            for image in block:
                frame = av.VideoFrame.from_ndarray(np.ascontiguousarray(image), format="rgb24")
                frame.pts, frame.time_base = self._frames, Fraction(1, self._fps)
                self._container.mux(self._stream.encode(frame))
                self._frames += 1
        prefix = f"videos/{self._key}/"
        return {
            f"{prefix}chunk_index": self._place.chunk,
            f"{prefix}file_index": self._place.file,
            f"{prefix}from_timestamp": begun / self._fps,
            f"{prefix}to_timestamp": self._frames / self._fps,
        }

    def close(self) -> None:
        """Finish the current file. Safe to call twice."""
        if self._container is not None:
            self._container.mux(self._stream.encode())
            self._container.close()
            self._container = None

    def _begin(self, height: int, width: int) -> None:
        if height % 2 or width % 2:
            raise ValueError(
                f"images of {self._key} are {width}x{height}: a video needs an even width and height; "
                "images=image keeps them"
            )
        path = self._root / self._place.path(VIDEO, video_key=self._key)
        path.parent.mkdir(parents=True, exist_ok=True)
        self._container = av.open(str(path), "w", format="mp4", options={"movflags": "faststart"})
        self._stream = self._container.add_stream("libx264", rate=self._fps, options=_OPTIONS)
        self._stream.pix_fmt = "yuv420p"
        self._stream.height, self._stream.width = height, width
        self._frames = 0


def read_video(path: Path, begin: float, number: int, fps: float, size: tuple[int, int]) -> Iterator[Images]:
    """Read `number` images from the time `begin` [s] on, in blocks [b, H, W, 3].

    Raises:
        ValueError: if images are missing or of another size, or the file is damaged.
    """
    colours = VideoReformatter()
    block: list[Images] = []
    wanted = 0
    try:
        with av.open(str(path)) as container:
            stream: Any = container.streams.video[0]
            container.seek(int(begin / stream.time_base), stream=stream, backward=True)
            frame: Any
            for frame in container.decode(stream):
                if wanted == number:
                    break
                late = float(frame.pts * stream.time_base) - (begin + wanted / fps)
                if late < -0.5 / fps:
                    continue
                if late > 0.5 / fps:
                    raise ValueError(f"{path}: the image at {begin + wanted / fps:.3f} s is missing")
                if (frame.height, frame.width) != size:
                    told = f"{frame.width}x{frame.height}, info.json says {size[1]}x{size[0]}"
                    raise ValueError(f"{path}: its images are {told}")
                block.append(np.asarray(colours.reformat(frame, format="rgb24").to_ndarray(), np.uint8))
                wanted += 1
                if len(block) == BLOCK:
                    yield np.stack(block)
                    block = []
    except (FFmpegError, IndexError) as error:
        raise ValueError(f"{path} is damaged: {error}; copy the dataset again") from error
    if wanted < number:
        raise ValueError(f"{path} has {wanted} of {number} images from {begin:.3f} s on; copy it again")
    if block:
        yield np.stack(block)


def video_at(row: Mapping[str, Any], key: str, template: str) -> tuple[str, float]:
    """Path of an episode's video, and the time at which the episode begins in it, s."""
    prefix = f"videos/{key}/"
    place = Place(int(row[f"{prefix}chunk_index"]), int(row[f"{prefix}file_index"]))
    return place.path(template, video_key=key), float(row[f"{prefix}from_timestamp"])
