"""OpenCV's cameras, with a film in place of a device."""

from pathlib import Path

import cv2
import numpy as np
import pytest

from robot_rl.hardware.cameras.device import CameraError, RawFrame
from robot_rl.hardware.cameras.opencv import OpenCVCamera
from robot_rl.hardware.cameras.settings import OpenCV
from robot_rl.hardware.clock import MS
from robot_rl.hardware.spec import CameraSpec

SPEC = CameraSpec(name="front", serial="film.avi", width=64, height=48, rate=20.0)
LENGTH = 12


def color(index: int) -> tuple[int, int, int]:
    """Red rises, green falls, there is no blue."""
    return 10 + 20 * index, 250 - 20 * index, 0


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("by-id")
    writer = cv2.VideoWriter(str(folder / SPEC.serial), cv2.VideoWriter.fourcc(*"MJPG"), SPEC.rate, (64, 48))
    assert writer.isOpened()
    for index in range(LENGTH):
        writer.write(np.full((48, 64, 3), color(index)[::-1], np.uint8))
    writer.release()
    return folder


def play(camera: OpenCVCamera) -> list[RawFrame]:
    frames: list[RawFrame] = []

    def to_the_end() -> None:
        while frame := camera.next_frame(1.0):
            frames.append(frame)

    with pytest.raises(CameraError, match="gives no more images"):
        to_the_end()
    return frames


def test_images_come_in_rgb_with_numbers_and_times(folder: Path) -> None:
    camera = OpenCVCamera(SPEC, OpenCV(folder=str(folder)))
    camera.open()
    assert camera.serial == SPEC.serial
    frames = play(camera)
    assert [frame.number for frame in frames] == list(range(LENGTH))
    assert np.diff([frame.t_device for frame in frames]) == pytest.approx(1000 / SPEC.rate * MS)
    for index, frame in enumerate(frames):
        assert frame.image.shape == (48, 64, 3)
        assert frame.image.mean(axis=(0, 1)) == pytest.approx(color(index), abs=6)
    camera.close()
    camera.close()


def test_time_stamps_show_what_the_driver_lost(folder: Path) -> None:
    # A camera that should give twice as many images as it does.
    spec = CameraSpec(name="front", serial="film.avi", width=64, height=48, rate=2 * SPEC.rate)
    camera = OpenCVCamera(spec, OpenCV(folder=str(folder)))
    camera.open()
    assert [frame.number for frame in play(camera)] == list(range(0, 2 * LENGTH, 2))
    camera.close()


def test_a_camera_of_another_name_is_not_taken_instead(folder: Path) -> None:
    spec = CameraSpec(name="front", serial="usb-other", width=64, height=48, rate=20.0)
    with pytest.raises(CameraError, match=r"no .*usb-other \(found: film\.avi\)"):
        OpenCVCamera(spec, OpenCV(folder=str(folder))).open()


def test_what_is_no_camera_is_refused(tmp_path: Path) -> None:
    (tmp_path / "film.avi").write_text("not a film")
    camera = OpenCVCamera(SPEC, OpenCV(folder=str(tmp_path)))
    with pytest.raises(CameraError, match="cannot be opened"):
        camera.open()
    camera.close()
