"""A SpaceMouse by its raw reports, through a real pipe in place of hidraw."""

import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from robot_rl.hardware.clock import MS, SteppedClock
from robot_rl.hardware.teleop.device import LAPSE_S, STALE_HOLD_MS, DeviceError, Sample
from robot_rl.hardware.teleop.reader import FileDevice
from robot_rl.hardware.teleop.spacemouse import (
    FULL,
    UDEV,
    SpaceMouseDecoder,
    SpaceMouseSettings,
    find,
    spacemouse,
)
from tests.hardware.processes import ROOT, eventually
from tests.hardware.teleop.feeding import Feed, buttons, cap

REST = (0.0,) * 6


@pytest.fixture
def feed(tmp_path: Path) -> Iterator[Feed]:
    with Feed(tmp_path / "hidraw0") as feed:
        yield feed


@pytest.fixture
def device(feed: Feed, tmp_path: Path) -> Iterator[FileDevice]:
    unhurried = spacemouse(SpaceMouseSettings(str(tmp_path / "hidraw0")))
    # On a busy machine nothing that a test writes is forgotten.
    unhurried._late = 10**12
    with unhurried as device:
        yield device


def until(device: FileDevice, test: Callable[[Sample], bool], what: str) -> Sample:
    def look() -> Sample | None:
        sample = device.read()
        return sample if sample is not None and test(sample) else None

    found = eventually(look, what)
    assert isinstance(found, Sample)
    return found


@pytest.mark.parametrize(
    ("translation", "rotation", "axis", "sign"),
    [
        ((0, -FULL, 0), (0, 0, 0), 0, 1),  # pushed away: forward
        ((FULL, 0, 0), (0, 0, 0), 1, -1),  # to the right
        ((0, 0, -FULL), (0, 0, 0), 2, 1),  # lifted
        ((0, 0, 0), (0, -FULL, 0), 3, 1),
        ((0, 0, 0), (FULL, 0, 0), 4, -1),
        ((0, 0, 0), (0, 0, -FULL), 5, 1),
    ],
)
def test_the_tool_moves_as_the_cap(
    translation: tuple[int, ...], rotation: tuple[int, ...], axis: int, sign: int
) -> None:
    decoder = SpaceMouseDecoder()
    for report in cap(translation, rotation):
        decoder.feed(report, MS)
    assert decoder.sample(MS).motion == tuple(float(sign) if i == axis else 0.0 for i in range(6))


def test_models_that_report_all_in_one_are_read_too() -> None:
    decoder = SpaceMouseDecoder()
    both = cap((0, -FULL, 0), (0, 0, -FULL))
    decoder.feed(both[0] + both[1][1:], MS)
    assert decoder.sample(MS).motion == (1.0, 0, 0, 0, 0, 1.0)


def test_a_hand_that_rests_on_the_cap_moves_nothing() -> None:
    decoder = SpaceMouseDecoder()
    for report in cap((15, -15, 15), (-15, 15, 0)):
        decoder.feed(report, MS)
    assert decoder.sample(MS).motion == REST


def test_a_sample_has_the_time_of_its_report_and_ages_when_reports_stop(
    device: FileDevice, feed: Feed
) -> None:
    before = time.monotonic_ns()
    feed.write(cap((0, -FULL, 0))[0])
    first = until(device, lambda sample: sample.motion[0] == 1.0, "the report")
    assert before <= first.t <= time.monotonic_ns()
    time.sleep(2 * STALE_HOLD_MS * 1e-3)
    later = device.read()
    assert later is not None
    assert later.t == first.t
    assert time.monotonic_ns() - later.t > STALE_HOLD_MS * MS


def test_a_cap_that_rests_is_silent_and_fresh_while_it_is_there(device: FileDevice, feed: Feed) -> None:
    feed.write(cap((0, -FULL, 0))[0])
    until(device, lambda sample: any(sample.motion), "the push")
    feed.write(cap()[0])
    rested = until(device, lambda sample: not any(sample.motion), "the rest")
    time.sleep(2 * STALE_HOLD_MS * 1e-3)
    until(device, lambda sample: sample.t > rested.t + STALE_HOLD_MS * MS, "a look at it")
    feed.unplug()
    eventually(lambda: gone(device), "the device is gone")


def gone(device: FileDevice) -> bool:
    try:
        device.read()
    except DeviceError as error:
        return str(error) == "the SpaceMouse is disconnected: plug it in and start again"
    return False


def test_the_left_button_is_the_clutch_and_the_right_one_grasps(device: FileDevice, feed: Feed) -> None:
    assert not until(device, lambda sample: True, "it is there").enable
    feed.write(buttons(0))
    feed.write(buttons())
    assert until(device, lambda sample: sample.enable, "the clutch").gripper is None
    for opening in (0.0, 1.0, 0.0):
        feed.write(buttons(1))
        feed.write(buttons())
        until(device, lambda sample, wanted=opening: sample.gripper == wanted, "the gripper")
    feed.write(buttons(0))
    until(device, lambda sample: not sample.enable, "the clutch is open")


def test_the_clutch_lapses_when_nobody_touches_the_cap_and_when_the_program_lets_go() -> None:
    decoder = SpaceMouseDecoder()
    decoder.feed(buttons(0), MS)
    decoder.feed(cap((0, -FULL, 0))[0], 5_000 * MS)
    decoder.feed(cap()[0], 6_000 * MS)
    last = 5_000 + LAPSE_S * 1000
    assert decoder.sample(last * MS).enable
    assert not decoder.sample((last + 1) * MS).enable
    decoder.feed(buttons(), 20_000 * MS)
    decoder.feed(buttons(0), 20_001 * MS)
    assert decoder.sample(20_002 * MS).enable
    decoder.feed(buttons(1), 20_002 * MS)
    assert decoder.sample(20_003 * MS).gripper == 0.0
    decoder.release_clutch()
    released = decoder.sample(20_004 * MS)
    assert (released.enable, released.gripper) == (False, None)
    decoder.feed(buttons(), 20_005 * MS)
    decoder.feed(buttons(0), 20_006 * MS)
    again = decoder.sample(20_007 * MS)
    assert (again.enable, again.gripper) == (True, None)


def test_what_waited_while_the_program_was_stopped_moves_nothing() -> None:
    decoder = SpaceMouseDecoder()
    decoder.feed(buttons(0), MS)
    decoder.feed(cap((0, -FULL, 0))[0], 2 * MS)
    decoder.forget(cap((0, -FULL, 0))[0], 900 * MS)
    sample = decoder.sample(900 * MS)
    assert sample.motion == REST
    assert not sample.enable


def test_a_button_that_was_released_unseen_counts_when_it_is_pressed_again() -> None:
    decoder = SpaceMouseDecoder()
    decoder.feed(buttons(0), 0)
    decoder.forget(buttons(), 900 * MS)
    assert not decoder.sample(900 * MS).enable
    decoder.feed(buttons(0), 1000 * MS)
    assert decoder.sample(1000 * MS).enable


def test_only_what_is_a_spacemouse_is_found(tmp_path: Path) -> None:
    devices = {
        "hidraw0": ("0003:0000046D:0000C077", b"\x05\x01\x09\x02\xa1\x01"),  # a mouse of the same maker
        "hidraw1": ("0003:0000256F:0000C635", b"\x05\x01\x09\x08\xa1\x01"),
        "hidraw2": ("0003:0000256F:0000C652", b"\x06\x00\xff\x09\x01\xa1"),  # its receiver's other half
        "hidraw3": ("0003:00000001:00000002", b"\x05\x01\x09\x08\xa1\x01"),
    }
    for name, (identity, descriptor) in devices.items():
        (tmp_path / name / "device").mkdir(parents=True)
        (tmp_path / name / "device/uevent").write_text(f"DRIVER=hid-generic\nHID_ID={identity}\n")
        (tmp_path / name / "device/report_descriptor").write_bytes(descriptor)
    assert find(tmp_path) == [Path("/dev/hidraw1")]


def test_what_is_missing_is_named_with_its_mend(tmp_path: Path) -> None:
    with pytest.raises(DeviceError, match="hidraw7: no such file or directory; is it plugged in"):
        spacemouse(SpaceMouseSettings(str(tmp_path / "hidraw7"))).__enter__()
    if not find():
        with pytest.raises(DeviceError, match="no SpaceMouse is plugged in"):
            spacemouse(SpaceMouseSettings()).__enter__()


def test_a_device_that_may_not_be_read_is_named_with_the_udev_rule(tmp_path: Path) -> None:
    closed = tmp_path / "hidraw0"
    closed.touch(mode=0o000)
    script = (
        "import os\n"
        "from robot_rl.hardware.teleop.spacemouse import opened\n"
        # Root may read everything.
        "os.geteuid() or os.setuid(65534)\n"
        f"opened({str(closed)!r}).__enter__()"
    )
    done = subprocess.run([sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True)
    assert f"SpaceMouse: {closed}: permission denied; {UDEV}" in done.stderr


def test_all_that_waited_for_a_process_that_was_stopped_is_forgotten(feed: Feed, tmp_path: Path) -> None:
    clock = SteppedClock()
    device = spacemouse(SpaceMouseSettings(str(tmp_path / "hidraw0")), clock)
    device._open()
    for _ in range(5):
        feed.write(cap((0, -FULL, 0))[0])
    clock.advance((STALE_HOLD_MS + 1) * MS)
    for _ in range(3):
        sample = device._poll_device()
        assert sample is not None
        assert sample.motion == REST
    feed.write(cap((0, -FULL, 0))[0])
    sample = device._poll_device()
    assert sample is not None
    assert sample.motion[0] == 1.0
    device._close()
