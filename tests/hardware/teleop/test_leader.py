"""A leader arm by the maker's own library, on a bus of simulated motors."""

import math
import time
from collections.abc import Callable, Iterator

import pytest

from robot_rl.hardware.clock import MS
from robot_rl.hardware.teleop import leader as leader_module
from robot_rl.hardware.teleop.device import DeviceError, Sample
from robot_rl.hardware.teleop.leader import Leader, LeaderSettings
from tests.hardware.processes import PATIENCE, eventually
from tests.hardware.teleop.dynamixel_bus import Bus

ANGLES = {1: 0.1, 2: -0.8, 3: 0.0, 4: -2.3, 5: 0.5, 6: 1.6, 7: 3.5, 9: 0.25}
RESOLUTION = math.tau / 4096


@pytest.fixture
def bus() -> Iterator[Bus]:
    with Bus(dict(ANGLES)) as bus:
        yield bus


@pytest.fixture
def leader(bus: Bus, monkeypatch: pytest.MonkeyPatch) -> Iterator[Leader]:
    # A busy machine may keep the motors from answering for a while.
    monkeypatch.setattr(leader_module, "_SILENCE_LIMIT", PATIENCE)
    settings = LeaderSettings(
        path=bus.path,
        signs=[1, -1, 1, 1, 1, 1, 1],
        offsets=[0.0, 0.0, 0.5, 0.0, 0.0, 0.0, -math.pi],
        gripper_id=9,
        gripper_open=0.0,
        gripper_closed=1.0,
    )
    with Leader(settings) as leader:
        yield leader


def until(leader: Leader, test: Callable[[Sample], bool], what: str) -> Sample:
    def look() -> Sample | None:
        sample = leader.read()
        return sample if sample is not None and test(sample) else None

    found = eventually(look, what)
    assert isinstance(found, Sample)
    return found


def told(leader: Leader, text: str) -> bool:
    try:
        leader.read()
    except DeviceError as error:
        if text not in str(error):
            raise
        return True
    return False


def test_joints_are_the_motors_angles_by_sign_and_offset(leader: Leader, bus: Bus) -> None:
    before = time.monotonic_ns()
    sample = until(leader, lambda _: True, "a reading")
    expected = (0.1, 0.8, 0.5, -2.3, 0.5, 1.6, 3.5 - math.pi)
    assert sample.joints == pytest.approx(expected, abs=RESOLUTION)
    assert sample.gripper == pytest.approx(0.75, abs=RESOLUTION)
    assert sample.motion == ()
    assert sample.t <= time.monotonic_ns()
    bus.angles[1] = -0.3
    moved = until(leader, lambda s: abs(s.joints[0] + 0.3) < 2 * RESOLUTION, "the move")
    assert moved.t > before


def test_a_motor_that_does_not_answer_ages_the_sample_and_is_named(
    leader: Leader, bus: Bus, monkeypatch: pytest.MonkeyPatch
) -> None:
    until(leader, lambda _: True, "a reading")
    bus.silent.add(4)
    monkeypatch.setattr(leader_module, "_SILENCE_LIMIT", 1.0)
    eventually(lambda: told(leader, "the leader does not answer: motor 4: [TxRxResult]"), "its name")


def test_a_damaged_answer_is_no_reading_and_the_next_good_one_is(leader: Leader, bus: Bus) -> None:
    last = until(leader, lambda _: True, "a reading")
    bus.damaged.add(1)
    bus.angles[1] = 2.0
    seen = bus.reads
    eventually(lambda: bus.reads > seen + 1, "it is read in vain")
    sample = leader.read()
    assert sample is not None
    assert sample.joints == last.joints
    bus.damaged.clear()
    until(leader, lambda s: abs(s.joints[0] - 2.0) < 2 * RESOLUTION, "a reading")


def test_a_hardware_error_is_named(leader: Leader, bus: Bus) -> None:
    until(leader, lambda _: True, "a reading")
    bus.error = 0x80  # of all motors; a reading that is under way may begin with any of them
    eventually(lambda: told(leader, "reports error 0x80"), "its error")


def test_a_leader_that_is_unplugged_in_the_middle_is_named(leader: Leader, bus: Bus) -> None:
    last = until(leader, lambda _: True, "a reading")
    assert last.t <= time.monotonic_ns()
    bus.unplug()
    eventually(lambda: told(leader, f"the leader is gone from {bus.path}: plug it in"), "it is gone")


def test_reading_leaves_the_processor_alone(leader: Leader, bus: Bus) -> None:
    until(leader, lambda _: True, "a reading")
    bus.silent.add(1)
    cpu, wall = time.process_time(), time.monotonic()
    time.sleep(0.5)
    # The library alone asks the line again and again, all the time.
    assert time.process_time() - cpu < 0.6 * (time.monotonic() - wall)


def test_a_line_that_cannot_be_had_is_named() -> None:
    with pytest.raises(DeviceError, match=r"/dev/ttyUSB99: .*is the leader plugged in"):
        Leader(LeaderSettings(path="/dev/ttyUSB99")).__enter__()


def test_a_rate_that_no_motor_has_is_named(bus: Bus) -> None:
    with pytest.raises(DeviceError, match=r"device\.baudrate=1234"):
        Leader(LeaderSettings(path=bus.path, baudrate=1234)).__enter__()


@pytest.mark.parametrize(
    ("settings", "why"),
    [
        ({"signs": [1, 1]}, "same length"),
        ({"ids": [1, 1, 2, 3, 4, 5, 6]}, "list each motor once"),
        ({"gripper_id": 3}, "list each motor once"),
        ({"signs": [2, 1, 1, 1, 1, 1, 1]}, "1 or -1"),
        ({"offsets": [math.nan, 0, 0, 0, 0, 0, 0]}, "finite"),
        ({"gripper_open": 1.0}, "must differ"),
    ],
)
def test_settings_that_cannot_be_are_refused(settings: dict[str, object], why: str) -> None:
    with pytest.raises(ValueError, match=why):
        LeaderSettings(**settings)  # type: ignore[arg-type]


def test_a_sample_has_the_time_before_it_was_asked_for(leader: Leader) -> None:
    first = until(leader, lambda _: True, "a reading")
    later = until(leader, lambda s: s.t > first.t, "the next")
    assert later.t - first.t >= 5 * MS
