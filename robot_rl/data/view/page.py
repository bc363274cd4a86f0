"""Writes the page of a dataset: one HTML file without external resources."""

import base64
import io
import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict
from fractions import Fraction
from pathlib import Path
from typing import Any, Final

import av
import cv2
import numpy as np
from numpy.typing import NDArray

from robot_rl.data.dataset import Dataset
from robot_rl.data.episode_notes import SOURCE, notes_of, outcome_of, source_names, steps_by_source
from robot_rl.data.episode_stream import arrays_of, cameras_of, images_of, videos_of
from robot_rl.data.frames import REPEATABLE
from robot_rl.data.playback import playback_env
from robot_rl.data.summary import Line
from robot_rl.data.video import render_states
from robot_rl.data.view.measures import find_anomalies, measure
from robot_rl.data.writer import Streamed
from robot_rl.envs.renderer import overview
from robot_rl.files.durable import make_folder, write_file

POINTS: Final = 250
"""Most points of a curve."""
VIDEOS: Final = 400
"""Most videos on a page."""
_BINS: Final = 40
_DRAWINGS: Final = 40
"""Most rendered images of an episode; rendering is slow."""
_DRAWN: Final = "drawn from states"
"""Camera name of images that are rendered for the page."""
_TEMPLATE: Final = Path(__file__).with_name("page.html")
_MARK: Final = "/*DATA*/"
FRAMES: Final = 100
"""Most frames of a video."""
SIDE: Final = 160
"""Largest length of the longer side of a video, pixels."""
_VIDEO_OPTIONS: Final = REPEATABLE | {"crf": "27", "g": "10", "bf": "0", "preset": "veryfast"}
_NOISE: Final = 20
"""Largest pixel difference that video compression makes between two equal images."""

Images = NDArray[np.uint8]


def write_page(
    dataset: Dataset,
    out: Path,
    lines: Sequence[Line],
    *,
    render: bool = False,
    remarks: Sequence[str] = (),
    show: Callable[[int], None] = lambda done: None,
) -> None:
    """Write the page of a dataset; it appears complete or not at all.

    Args:
        dataset: dataset with at least one episode.
        out: path of the HTML file.
        lines: summary at the top of the page.
        render: whether to render the saved states, for a dataset without cameras.
        remarks: additional remarks to show.
        show: called with the number of episodes done.

    Raises:
        ValueError: if it has no episode, is damaged, or has no states to render.
    """
    if not dataset.num_episodes:
        raise ValueError(f"{dataset.path} has no episode to look at")
    data = _Collector(dataset, render).collect(show)
    data |= {"title": dataset.path.name, "facts": [[line.name, line.text] for line in lines]}
    data["remarks"] = [*remarks, *data["remarks"]]
    # Inside a script element, only "<" could end it.
    text = json.dumps(data, separators=(",", ":")).replace("<", "\\u003c")
    make_folder(out.parent)
    write_file(out, _TEMPLATE.read_text(encoding="utf-8").replace(_MARK, text).encode())


class _Collector:
    def __init__(self, dataset: Dataset, render: bool) -> None:
        self._dataset = dataset
        self._rate = float(dataset.environment.get("control_freq", 20))
        self._cameras = (_DRAWN,) if render else cameras_of(dataset)
        self._env = playback_env(dataset) if render else None
        self._shown = VIDEOS // max(1, len(self._cameras))
        self._counts: NDArray[np.int64] = np.zeros((len(dataset.action_spec), _BINS), np.int64)

    def collect(self, show: Callable[[int], None]) -> dict[str, Any]:
        dataset = self._dataset
        notes, acted = notes_of(dataset), steps_by_source(dataset)
        episodes, measures = [], []
        for number, note in enumerate(notes):
            arrays = arrays_of(dataset, number)
            same, videos = self._videos(number, arrays)
            one = measure(dataset, arrays, same, note)
            measures.append(one)
            episodes.append(
                {
                    "outcome": outcome_of(dataset, number, note),
                    "labels": note.get("labels", {}),
                    "seed": int(dataset.seeds[number]),
                    "from": _origin(note),
                    "by": dict(acted[number]),
                    "events": note.get("events", []),
                    "measures": {key: value for key, value in asdict(one).items() if key != "content"},
                    "videos": videos,
                    **self._curves(arrays),
                }
            )
            show(number + 1)
        if self._env is not None:
            self._env.close()
        return {
            "rate": self._rate,
            "dims": [{"name": dim.name, "kind": dim.kind} for dim in dataset.action_spec],
            "cameras": list(self._cameras),
            "sources": source_names(dataset),
            "counts": self._counts.tolist(),
            "suspicions": find_anomalies(measures, self._rate),
            "remarks": self._remarks(),
            "episodes": episodes,
        }

    def _videos(
        self, number: int, arrays: Mapping[str, NDArray[Any]]
    ) -> tuple[dict[str, NDArray[np.bool_]], dict[str, str]]:
        steps = len(arrays["action"])
        if self._env is not None:
            if number >= self._shown:
                return {}, {}
            stride = stride_of(steps, _DRAWINGS)
            frames = render_states(self._env, list(arrays["sim_state"][::stride]), overview(), SIDE, SIDE)
            return {}, {_DRAWN: to_data_uri(map(shrink, frames), self._rate / stride)}
        same, videos = {}, {}
        kept = videos_of(self._dataset, number)
        for camera, images in images_of(self._dataset, number).items():
            same[camera], shown = scan_images(images, exact=camera not in kept)
            if number < self._shown:
                videos[camera] = to_data_uri(shown, self._rate / stride_of(steps))
        return same, videos

    def _curves(self, arrays: Mapping[str, NDArray[Any]]) -> dict[str, Any]:
        """Curves of an episode, subsampled every `stride` steps."""
        asked, applied = arrays["action"], arrays["applied_action"]
        for i in range(asked.shape[1]):
            self._counts[i] += np.histogram(np.clip(asked[:, i], -1, 1), _BINS, (-1, 1))[0]
        steps = len(asked)
        stride = -(-steps // POINTS)
        different = bool((np.abs(asked - applied) > 1e-3).any())
        rewards = arrays["reward"]
        rewarded = np.flatnonzero(rewards)[:POINTS]
        curves = {
            "stride": stride,
            "asked": _rounded(asked[::stride].T),
            "applied": _rounded(applied[::stride].T) if different else None,
            "rewards": [[int(step), round(float(rewards[step]), 4)] for step in rewarded],
            "who": [],
            "opening": None,
        }
        if SOURCE in arrays:
            numbers = arrays[SOURCE].astype(int)
            begins = np.flatnonzero(np.diff(numbers, prepend=-1))
            curves["who"] = [[int(step), int(numbers[step])] for step in begins]
        if "robot0_gripper_qpos" in arrays:
            fingers = arrays["robot0_gripper_qpos"].reshape(steps, -1)
            curves["opening"] = _rounded(np.abs(np.ptp(fingers, axis=1))[None, ::stride] * 1e3)[0]
        return curves

    def _remarks(self) -> list[str]:
        found = [
            f"Every image is looked at; at most {POINTS} points of a curve and {FRAMES} images of an "
            f"episode are shown, at most {SIDE} pixels long."
        ]
        if self._cameras and self._dataset.num_episodes > self._shown:
            found.append(f"Only the first {self._shown} episodes are shown with images.")
        return found


def _origin(note: Mapping[str, Any]) -> str:
    if "dataset" in note:
        return f"{note['dataset']}, episode {note['index']}"
    if "number" in note:
        return f"recording {note['number']}"
    return str(note.get("demo", ""))


def _rounded(values: NDArray[Any]) -> list[list[float]]:
    found: list[list[float]] = np.round(values.astype(np.float64), 3).tolist()
    return found


def stride_of(steps: int, frames: int = FRAMES) -> int:
    """Interval in steps between shown images."""
    return -(-steps // frames)


def scan_images(images: Streamed, *, exact: bool) -> tuple[NDArray[np.bool_], list[Images]]:
    """Compare successive images of an episode and sample some to show.

    Args:
        images: all images of the episode.
        exact: whether the images are stored losslessly.

    Returns:
        Whether each step's image equals the previous one [T], and the downscaled images to show.
    """
    stride = stride_of(len(images))
    same = np.zeros(len(images), bool)
    shown: list[Images] = []
    before: Images | None = None
    for number, image in enumerate(_single(images.blocks())):
        if before is not None:
            same[number] = cv2.norm(image, before, cv2.NORM_INF) <= (0 if exact else _NOISE)
        if number % stride == 0:
            shown.append(shrink(image))
        before = image
    return same, shown


def shrink(image: Images) -> Images:
    """Downscale to at most `SIDE` pixels, with even sides as a video needs."""
    height, width = image.shape[:2]
    part = min(1.0, SIDE / max(height, width))
    size = (max(2, round(width * part / 2) * 2), max(2, round(height * part / 2) * 2))
    if size == (width, height):
        return image
    return np.asarray(cv2.resize(image, size, interpolation=cv2.INTER_AREA), np.uint8)


def to_data_uri(images: Iterable[Images], rate: float) -> str:
    """Encode images as an H.264 mp4 in a data URI.

    Args:
        images: uint8 [H, W, 3] of one size with even sides; at least one.
        rate: images per second.
    """
    out = io.BytesIO()
    with av.open(out, "w", format="mp4") as container:
        fps = Fraction(rate).limit_denominator(1000)
        stream = None
        for number, image in enumerate(images):
            if stream is None:
                stream = container.add_stream("libx264", rate=fps, options=_VIDEO_OPTIONS)
                stream.pix_fmt = "yuv420p"
                stream.height, stream.width = image.shape[:2]
            frame = av.VideoFrame.from_ndarray(np.ascontiguousarray(image), format="rgb24")
            frame.pts, frame.time_base = number, 1 / fps
            container.mux(stream.encode(frame))
        assert stream is not None
        container.mux(stream.encode())
    return "data:video/mp4;base64," + base64.b64encode(out.getvalue()).decode()


def _single(blocks: Iterator[Images]) -> Iterator[Images]:
    for block in blocks:
        yield from block
