"""Renders episodes and writes videos and contact sheets."""

import io
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

import av
import mujoco
import numpy as np
from PIL import Image

from robot_rl.envs.renderer import EnvCameraRenderer
from robot_rl.envs.robosuite_env import RobosuiteEnv
from robot_rl.files.durable import make_folder, publish


def render_states(
    env: RobosuiteEnv, states: Sequence[np.ndarray], camera: str | mujoco.MjvCamera, height: int, width: int
) -> Iterator[np.ndarray]:
    """Render saved simulator states to images uint8 [H, W, 3], in order. `env` stays in the last state."""
    with EnvCameraRenderer(env, camera, height, width) as renderer:
        for state in states:
            env.set_state(state)
            yield renderer.frame()


def write_video(path: Path, frames: Iterable[np.ndarray], fps: int) -> None:
    """Write frames, uint8 [H, W, 3], as an H.264 mp4 that browsers play.

    The file appears whole or not at all.

    Raises:
        ValueError: if there are no frames, an odd height or width (yuv420p halves both for colour), or frames
            that are not uint8 of one size.
    """
    make_folder(path.parent)
    part = path.with_name(f".{path.name}.part")
    try:
        _encode(part, frames, fps)
        publish(part, path)
    finally:
        part.unlink(missing_ok=True)


def contact_sheet(frames: Sequence[np.ndarray], columns: int) -> bytes:
    """One PNG with all frames, uint8 [H, W, 3], row by row."""
    if not len(frames) or columns < 1:
        raise ValueError(f"a contact sheet needs frames and columns, not {len(frames)} and {columns}")
    rows = -(-len(frames) // columns)
    height, width = frames[0].shape[:2]
    sheet = np.full((rows * height, columns * width, 3), 255, np.uint8)
    for i, frame in enumerate(frames):
        top, left = i // columns * height, i % columns * width
        sheet[top : top + height, left : left + width] = frame
    out = io.BytesIO()
    Image.fromarray(sheet).save(out, "PNG")
    return out.getvalue()


def _encode(path: Path, frames: Iterable[np.ndarray], fps: int) -> None:
    shape: tuple[int, ...] | None = None
    # faststart puts the index first, so that a browser shows the video before it has all of it.
    with av.open(str(path), "w", format="mp4", options={"movflags": "faststart"}) as container:
        stream = container.add_stream("libx264", rate=fps, options={"crf": "20"})
        stream.pix_fmt = "yuv420p"
        for image in frames:
            if shape is None:
                shape = image.shape
                if len(shape) != 3 or shape[2] != 3 or shape[0] % 2 or shape[1] % 2:
                    raise ValueError(f"frames have shape {shape}: a video wants [H, W, 3] with even H and W")
                stream.height, stream.width = shape[:2]
            if image.shape != shape or image.dtype != np.uint8:
                raise ValueError(f"a frame is {image.dtype} {image.shape}, the first one uint8 {shape}")
            frame = av.VideoFrame.from_ndarray(np.ascontiguousarray(image), format="rgb24")
            container.mux(stream.encode(frame))
        if shape is None:
            raise ValueError("no frames to make a video of")
        container.mux(stream.encode())
