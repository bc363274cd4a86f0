"""Images of one moment, of cameras that look at different times and are late by different amounts."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from robot_rl.hardware.cameras.reader import FrameReader, StaleFrame, newest_aligned
from robot_rl.hardware.clock import MS
from tests.hardware.cameras.stage import START, Stage

LATE = {"wrist": 0, "front": 60 * MS}
"""Their time stamps."""
PERIOD = 30 * MS


@pytest.fixture
def stage(tmp_path: Path) -> Iterator[Stage]:
    os.chmod(tmp_path, 0o700)
    stage = Stage(tmp_path)
    yield stage
    stage.close()


@pytest.fixture
def reader(stage: Stage) -> FrameReader:
    """Both cameras have taken images 1 to 6, a period apart and the front camera 10 ms after the other."""
    reader = stage.reader("wrist", "front", max_age_ms=200)
    for camera in LATE:
        stage.show(reader, 0, camera)
    for number in range(1, 7):
        stage.clock.sleep_until(START + number * PERIOD)
        stage.show_once(reader, number, "wrist")
        stage.clock.advance(10 * MS)
        stage.show_once(reader, number, "front", late=LATE["front"])
    return reader


def test_the_moment_is_the_newest_that_all_have_seen_by_what_they_show(reader: FrameReader) -> None:
    moment = newest_aligned(reader, LATE)
    # The front camera captured a later time than its time stamps say.
    assert moment.t == START + 6 * PERIOD
    assert {camera: seen.number for camera, seen in moment.images.items()} == {"wrist": 6, "front": 6}
    assert moment.offset_ns == {"wrist": 0, "front": 10 * MS}
    # Whoever believed the time stamps would take images of different moments for one.
    believed = newest_aligned(reader, dict.fromkeys(LATE, 0))
    assert {camera: seen.number for camera, seen in believed.images.items()} == {"wrist": 6, "front": 4}


def test_of_a_camera_that_is_ahead_an_earlier_image_is_taken(stage: Stage, reader: FrameReader) -> None:
    for number in (7, 8):
        stage.clock.sleep_until(START + number * PERIOD)
        stage.show_once(reader, number, "wrist")
    moment = newest_aligned(reader, LATE)
    assert moment.t == START + 6 * PERIOD + 10 * MS
    assert {camera: seen.number for camera, seen in moment.images.items()} == {"wrist": 6, "front": 6}


def test_an_image_that_was_lost_shows_in_how_far_the_next_is_off(stage: Stage, reader: FrameReader) -> None:
    for number in (9, 10, 11, 12):
        stage.clock.sleep_until(START + number * PERIOD)
        stage.show_once(reader, number, "wrist")
    assert newest_aligned(reader, LATE).offset_ns == {"wrist": 80 * MS, "front": 0}


def test_all_cameras_have_to_have_seen_what_came_after_the_beginning(reader: FrameReader) -> None:
    begun = START + 6 * PERIOD
    assert newest_aligned(reader, LATE, since=begun).t == begun
    with pytest.raises(StaleFrame, match="camera wrist"):
        newest_aligned(reader, LATE, since=begun + 1)
    # By its time stamps the front camera would have; by what it shows it has not.
    with pytest.raises(StaleFrame, match="camera front"):
        newest_aligned(reader, {"front": LATE["front"]}, since=begun + 10 * MS + 1)
