"""RealSense cameras: librealsense itself, with its software device."""

import time

import numpy as np
import pyrealsense2 as rs
import pytest

from robot_rl.hardware.cameras.capture_clock import CaptureClock, wall_offset
from robot_rl.hardware.cameras.device import CameraError, WrongCamera
from robot_rl.hardware.cameras.realsense import RealSenseCamera
from robot_rl.hardware.cameras.settings import RealSense
from robot_rl.hardware.clock import MS
from robot_rl.hardware.spec import CameraSpec
from tests.hardware.cameras.soft_realsense import SoftRealSense

SPEC = CameraSpec(name="wrist", serial="817612070", width=64, height=48, rate=30.0)
OWN, GLOBAL = rs.timestamp_domain.hardware_clock, rs.timestamp_domain.global_time
WAIT = 60.0


def image(value: int) -> np.ndarray:
    return np.full((SPEC.height, SPEC.width, 3), (value, 2, 3), np.uint8)


def opened(soft: SoftRealSense, source: RealSense | None = None) -> RealSenseCamera:
    camera = RealSenseCamera(SPEC, source or RealSense(), soft.context)
    camera.open()
    return camera


def test_images_come_with_the_devices_own_numbers_and_times() -> None:
    soft = SoftRealSense(SPEC)
    camera = opened(soft)
    assert camera.serial == SPEC.serial
    for number, stamp in ((100, 5000.0), (101, 5033.25), (104, 5133.5)):
        before = time.monotonic_ns()
        soft.inject(image(number), number, stamp, OWN)
        frame = camera.next_frame(WAIT)
        assert frame is not None
        assert (frame.number, frame.t_device, frame.clock) == (number, round(stamp * MS), "own")
        assert before <= frame.t_recv <= time.monotonic_ns()
        assert np.array_equal(frame.image, image(number))
    camera.close()
    camera.close()


def test_without_an_image_it_says_so() -> None:
    camera = opened(SoftRealSense(SPEC))
    assert camera.next_frame(0.01) is None
    camera.close()


def test_an_image_is_not_overwritten_by_the_next() -> None:
    soft = SoftRealSense(SPEC)
    camera = opened(soft)
    frames = []
    for number in range(30):
        soft.inject(image(number), number, 33.0 * number, OWN)
        frames.append(camera.next_frame(WAIT))
    assert [frame.image[0, 0, 0] for frame in frames] == list(range(30))
    camera.close()


def test_a_slow_reader_loses_the_oldest_and_sees_it_in_the_numbers() -> None:
    soft = SoftRealSense(SPEC)
    camera = opened(soft)
    for number in range(50):
        soft.inject(image(number), number, 33.0 * number, OWN)
    numbers = []
    while frame := camera.next_frame(0.1):
        numbers.append(frame.number)
    assert numbers[-1] == 49
    assert len(numbers) < 10
    camera.close()


def test_global_time_gives_the_age_that_an_estimate_cannot() -> None:
    soft = SoftRealSense(SPEC)
    camera = opened(soft)
    # Taken 40 ms before it arrives, always: the least delay is 40 ms.
    taken = time.monotonic_ns() - 40 * MS
    soft.inject(image(1), 1, (taken + wall_offset()) / MS, GLOBAL)
    frame = camera.next_frame(WAIT)
    assert frame is not None
    assert frame.clock == "wall"
    assert abs(CaptureClock().captured(frame) - taken) < 10 * MS
    camera.close()


def test_a_time_stamp_is_moved_to_the_middle_of_the_exposure() -> None:
    soft = SoftRealSense(SPEC)
    camera = opened(soft)
    soft.inject(image(1), 1, 5000.0, OWN, lag_us=4500)
    frame = camera.next_frame(WAIT)
    assert frame is not None
    assert frame.t_device == round(4995.5 * MS)
    camera.close()


def test_depth_is_in_millimetres_whatever_the_device_counts_in() -> None:
    soft = SoftRealSense(SPEC, "depth")
    camera = opened(soft, RealSense(stream="depth"))
    # Tenths of a millimetre.
    soft.inject(np.full((SPEC.height, SPEC.width), 12_345, np.uint16), 1, 1.0, OWN)
    frame = camera.next_frame(WAIT)
    assert frame is not None
    assert frame.image.dtype == np.uint16
    assert (frame.image == 1234).all() or (frame.image == 1235).all()
    camera.close()


def test_a_camera_with_another_serial_is_not_taken_instead() -> None:
    soft = SoftRealSense(SPEC)
    other = CameraSpec(name="wrist", serial="999", width=64, height=48, rate=30.0)
    camera = RealSenseCamera(other, RealSense(), soft.context)
    with pytest.raises(CameraError, match=rf"serial '999'.*found: {SPEC.serial}"):
        camera.open()
    camera.close()


def test_a_mode_that_the_camera_has_not_is_refused_with_those_that_it_has() -> None:
    soft = SoftRealSense(SPEC)
    other = CameraSpec(name="wrist", serial=SPEC.serial, width=640, height=480, rate=30.0)
    with pytest.raises(WrongCamera, match=r"640x480@30; it has 64x48@30"):
        RealSenseCamera(other, RealSense(), soft.context).open()
