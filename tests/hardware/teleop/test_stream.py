"""A device's stream on disk: the same stream gives the same commands."""

import resource
import time
from pathlib import Path
from typing import Any

import pytest

from robot_rl.hardware.clock import MS, SteppedClock
from robot_rl.hardware.teleop.device import STALE_DISENGAGE_MS, DeviceError, Mark, Sample
from robot_rl.hardware.teleop.motion import Speed, Target
from robot_rl.hardware.teleop.stream import (
    RecordedDevice,
    ReplayDevice,
    ReplaySettings,
    StreamEnded,
    read_stream,
)
from robot_rl.hardware.teleop.teleoperator import Teleoperator
from tests.hardware.teleop.states import PANDA, state

STEP = 20 * MS


class Hands:
    """A device that plays a list, in stepped time."""

    name = "hands"
    controls = ()

    def __init__(self, samples: list[Sample], clock: SteppedClock) -> None:
        self._samples, self._clock = samples, clock

    def __enter__(self) -> "Hands":
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def read(self) -> Sample | None:
        there = [sample for sample in self._samples if sample.t <= self._clock.now()]
        return there[-1] if there else None


def a_stream(start: int) -> list[Sample]:
    """Half a second: the clutch is pressed, the tool goes forward, turns, grasps."""
    samples = []
    for step in range(25):
        motion = (0.5, 0.0, -0.2, 0.0, 0.0, 1.0 if step > 12 else 0.0)
        marks: tuple[Mark, ...] = ("begin",) if step == 2 else ()
        gripper = 0.0 if step > 20 else None
        samples.append(
            Sample(t=start + step * STEP, enable=step > 3, motion=motion, gripper=gripper, marks=marks)
        )
    return samples


def commands(
    device: Hands | RecordedDevice | ReplayDevice, clock: SteppedClock, steps: int = 30
) -> list[Target | None]:
    teleoperator, at = Teleoperator(PANDA, Speed()), state()
    aims = []
    for _ in range(steps):
        aims.append(teleoperator.update(device.read(), at, clock.now()))
        clock.advance(STEP)
    return aims


def record(path: Path) -> list[Target | None]:
    clock = SteppedClock()
    with RecordedDevice(Hands(a_stream(clock.now()), clock), path, print) as device:
        return commands(device, clock)


def test_a_recorded_stream_gives_the_commands_of_its_recording(tmp_path: Path) -> None:
    aims = record(tmp_path / "x.device")
    assert sum(target is not None for target in aims) >= 20
    for start in (1_000_000_000, 77_000_000_123):
        clock = SteppedClock(start)
        with ReplayDevice(ReplaySettings(str(tmp_path / "x.device")), clock) as device:
            assert commands(device, clock) == aims


def test_golden_commands(tmp_path: Path) -> None:
    aims = record(tmp_path / "x.device")
    assert aims[3] is None
    assert aims[4] == Target("cartesian_pose", (0.5, 0.0, 0.3, 1.0, 0.0, 0.0, 0.0), None)
    last = aims[24]
    assert last is not None
    x, y, z, *quaternion = last.data
    # 20 steps of 20 ms at 0.1 and -0.04 m/s.
    assert (x, y, z) == pytest.approx((0.54, 0.0, 0.284), abs=1e-9)
    # 12 steps about z at 0.8 rad/s: 0.192 rad.
    assert quaternion == pytest.approx([0.9953955, 0.0958527, 0.0, 0.0], abs=1e-6)
    assert last.gripper == 0.0


def test_marks_are_given_once_however_seldom_it_is_read(tmp_path: Path) -> None:
    record(tmp_path / "x.device")
    clock = SteppedClock()
    with ReplayDevice(ReplaySettings(str(tmp_path / "x.device")), clock) as device:
        device.read()
        clock.advance(10 * STEP)
        sample = device.read()
        assert sample is not None
        assert sample.marks == ("begin",)
        again = device.read()
        assert again is not None
        assert again.marks == ()


def test_its_end_is_said_when_the_arm_is_disengaged(tmp_path: Path) -> None:
    record(tmp_path / "x.device")
    clock = SteppedClock()
    with ReplayDevice(ReplaySettings(str(tmp_path / "x.device")), clock) as device:
        device.read()
        clock.advance(24 * STEP + STALE_DISENGAGE_MS * MS)
        assert device.read() is not None
        clock.advance(1)
        with pytest.raises(StreamEnded, match="has been replayed"):
            device.read()


def test_what_was_torn_off_is_not_played(tmp_path: Path) -> None:
    path = tmp_path / "x.device"
    record(path)
    whole = read_stream(path)
    path.write_bytes(path.read_bytes()[:-5])
    assert read_stream(path) == whole[:-1]


@pytest.mark.parametrize(
    ("content", "why"), [(b"", "not a recorded device"), (b"hello, world" * 9, "not a recorded")]
)
def test_what_is_no_stream_is_refused(tmp_path: Path, content: bytes, why: str) -> None:
    (tmp_path / "x").write_bytes(content)
    with pytest.raises(DeviceError, match=why):
        ReplayDevice(ReplaySettings(str(tmp_path / "x"))).__enter__()
    with pytest.raises(DeviceError, match="no such file"):
        ReplayDevice(ReplaySettings(str(tmp_path / "y"))).__enter__()


def test_a_recording_is_never_written_over(tmp_path: Path) -> None:
    record(tmp_path / "x.device")
    with pytest.raises(DeviceError, match="exists; choose another record_device="):
        RecordedDevice(Hands([], SteppedClock()), tmp_path / "x.device", print).__enter__()


def test_a_full_disk_ends_the_recording_and_not_the_teleoperation(tmp_path: Path) -> None:
    said: list[str] = []
    clock = SteppedClock()
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    try:
        with RecordedDevice(
            Hands(a_stream(clock.now()), clock), tmp_path / "x.device", said.append
        ) as device:
            # The kernel refuses to let the file grow.
            resource.setrlimit(resource.RLIMIT_FSIZE, (512, hard))
            assert len(commands(device, clock)) == 30
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert said == ["the device is no longer recorded: file too large"]
    samples = read_stream(tmp_path / "x.device")
    assert 0 < len(samples) < 25


def test_a_key_pressed_before_the_device_has_given_anything_is_replayed_at_its_time(tmp_path: Path) -> None:
    samples = [
        Sample(t=0, enable=False, motion=(0.0,) * 6, marks=("arm",)),
        Sample(t=time.monotonic_ns() + MS, enable=True, motion=(0.0,) * 6),
    ]
    device: Any = Hands(samples, SteppedClock())
    device.read = lambda: samples.pop(0)
    with RecordedDevice(device, tmp_path / "x.device", print) as recorded:
        recorded.read()
        recorded.read()
    found = read_stream(tmp_path / "x.device")
    assert [sample.marks for sample in found] == [("arm",), ()]
    assert abs(found[1].t - found[0].t) < 60_000 * MS
