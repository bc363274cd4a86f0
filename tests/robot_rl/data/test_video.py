import io
from collections.abc import Iterator
from pathlib import Path

import av
import numpy as np
import pytest
from PIL import Image

from robot_rl.data.video import contact_sheet, render_states, write_video
from robot_rl.envs.robosuite_env import RobosuiteEnv
from robot_rl.envs.task import TaskConfig


def frames(n: int, height: int = 48, width: int = 64) -> Iterator[np.ndarray]:
    for t in range(n):
        image = np.zeros((height, width, 3), np.uint8)
        image[:, : width // 2] = (20 * t % 255, 60, 200)
        yield image


def test_the_video_decodes_to_what_was_written(tmp_path: Path) -> None:
    path = tmp_path / "videos" / "a.mp4"
    write_video(path, frames(11), fps=20)
    with av.open(str(path)) as container:
        stream = container.streams.video[0]
        decoded = [frame.to_ndarray(format="rgb24") for frame in container.decode(stream)]
        assert (stream.codec_context.name, stream.pix_fmt, stream.average_rate) == ("h264", "yuv420p", 20)
    assert len(decoded) == 11
    for got, wrote in zip(decoded, frames(11), strict=True):
        assert got.shape == wrote.shape
        assert np.abs(got.astype(int) - wrote).mean() < 8  # H.264 is lossy
    assert path.read_bytes().index(b"moov") < path.read_bytes().index(b"mdat")  # plays while it loads
    assert [file.name for file in path.parent.iterdir()] == ["a.mp4"]


@pytest.mark.parametrize(
    ("bad", "message"),
    [
        ([], "no frames"),
        ([np.zeros((5, 4, 3), np.uint8)], "even"),
        ([np.zeros((4, 4, 3), np.uint8), np.zeros((4, 6, 3), np.uint8)], "the first one"),
        ([np.zeros((4, 4, 3), np.float32)], "float32"),
    ],
)
def test_frames_that_make_no_video_are_refused(tmp_path: Path, bad: list[np.ndarray], message: str) -> None:
    path = tmp_path / "a.mp4"
    path.write_bytes(b"the one before")
    with pytest.raises(ValueError, match=message):
        write_video(path, bad, fps=20)
    assert [file.read_bytes() for file in tmp_path.iterdir()] == [b"the one before"]


def test_contact_sheet_is_row_by_row() -> None:
    tiles = [np.full((4, 6, 3), 10 * i, np.uint8) for i in range(5)]
    sheet = np.asarray(Image.open(io.BytesIO(contact_sheet(tiles, 3))))
    assert sheet.shape == (8, 18, 3)
    assert [int(sheet[r * 4, c * 6, 0]) for r in range(2) for c in range(3)] == [0, 10, 20, 30, 40, 255]


def test_contact_sheet_needs_frames() -> None:
    with pytest.raises(ValueError, match="frames"):
        contact_sheet([], 3)


def test_saved_states_become_a_video(tmp_path: Path) -> None:
    env = RobosuiteEnv(TaskConfig(name="lift", env="Lift", state_keys=["cube_pos"]))
    env.reset(seed=0)
    states = [env.get_state()]
    for _ in range(2):
        env.step(np.array([0, 0, -1, 0, 0, 0, 0], np.float32))
        states.append(env.get_state())
    images = list(render_states(env, states, "frontview", 64, 64))
    assert [image.shape for image in images] == [(64, 64, 3)] * 3
    assert not np.array_equal(images[0], images[2])
    np.testing.assert_array_equal(env.get_state(), states[-1])
    env.close()
