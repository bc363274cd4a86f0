"""The gripper's mailbox, with a gripper whose calls last as long as a test wants."""

import threading
import time
from collections.abc import Callable, Iterator

import pytest

from robot_rl.hardware.clock import MS, MonotonicClock, SteppedClock
from robot_rl.hardware.drivers.driver import DriverError
from robot_rl.hardware.gripper import GripperMailbox

BOUND = 60.0
"""Longest wait for what comes within milliseconds on an idle machine, s."""


class SlowGripper:
    """Moves until it is let go on, or stopped."""

    def __init__(self) -> None:
        self.moves: list[float] = []
        self.stops = 0
        self.opening = 0.25
        self.breaks: dict[str, Exception] = {}
        self.go_on = threading.Semaphore(0)
        self.begun = threading.Semaphore(0)
        self.deaf = 0
        """How many stops it misses, as one does that comes before the movement."""

    def move(self, opening: float) -> None:
        if "move" in self.breaks:
            raise self.breaks["move"]
        self.moves.append(opening)
        stops = self.stops
        self.begun.release()
        while not self.go_on.acquire(timeout=0.002):
            if self.stops > stops + self.deaf:
                return
        self.opening = opening

    def read(self) -> float:
        if "read" in self.breaks:
            raise self.breaks["read"]
        return self.opening

    def stop(self) -> None:
        self.stops += 1
        if "stop" in self.breaks:
            raise self.breaks["stop"]


@pytest.fixture
def gripper() -> SlowGripper:
    return SlowGripper()


@pytest.fixture
def mailbox(gripper: SlowGripper) -> Iterator[GripperMailbox]:
    mailbox = GripperMailbox(gripper, MonotonicClock(), BOUND)
    mailbox.start()
    yield mailbox
    gripper.go_on.release(1000)
    mailbox.close()
    assert not any(thread.name == "gripper" for thread in threading.enumerate())


def _wait(until: Callable[[], object]) -> None:
    end = time.monotonic() + BOUND
    while not until():
        assert time.monotonic() < end
        time.sleep(0.002)


def _begin(mailbox: GripperMailbox, gripper: SlowGripper, opening: float) -> None:
    """Be in the middle of a movement."""
    mailbox.put(opening)
    assert gripper.begun.acquire(timeout=BOUND)


def test_only_the_newest_of_the_goals_that_waited_is_carried_out(
    mailbox: GripperMailbox, gripper: SlowGripper
) -> None:
    _begin(mailbox, gripper, 0.0)
    for goal in (0.2, 0.4, 0.6, 0.8):
        mailbox.put(goal)
    gripper.go_on.release(5)
    _wait(lambda: gripper.opening == 0.8)
    assert gripper.moves == [0.0, 0.8]


def test_nobody_waits_for_a_gripper_that_moves(mailbox: GripperMailbox, gripper: SlowGripper) -> None:
    _wait(mailbox.latest)
    _begin(mailbox, gripper, 0.0)
    # None of these could return if it waited: the movement ends only below.
    for goal in (0.1, 0.2, 0.3):
        mailbox.put(goal)
        assert mailbox.latest() is not None
        assert mailbox.fault == ""
    gripper.go_on.release(5)
    _wait(lambda: gripper.opening == 0.3)


def test_a_goal_that_it_has_already_is_not_carried_out_again(
    mailbox: GripperMailbox, gripper: SlowGripper
) -> None:
    gripper.go_on.release(100)
    for _ in range(50):
        mailbox.put(1.0)
    _wait(lambda: gripper.opening == 1.0)
    mailbox.put(1.0)
    mailbox.put(0.0)
    _wait(lambda: gripper.opening == 0.0)
    assert gripper.moves == [1.0, 0.0]


def test_a_reading_says_from_when_it_is_and_ages_while_the_gripper_moves(
    mailbox: GripperMailbox, gripper: SlowGripper
) -> None:
    begun = time.monotonic_ns()
    _wait(lambda: (latest := mailbox.latest()) and latest.t > begun)
    first = mailbox.latest()
    assert first is not None
    assert (first.opening, first.goal) == (0.25, 0.25)
    _wait(lambda: (latest := mailbox.latest()) and latest.t > first.t)
    _begin(mailbox, gripper, 1.0)
    old = mailbox.latest()
    time.sleep(0.2)
    assert mailbox.latest() == old
    assert old is not None
    # What it was told is known at once.
    assert (old.opening, old.goal) == (0.25, 1.0)
    assert time.monotonic_ns() - old.t > 200 * MS
    gripper.go_on.release()
    _wait(lambda: (latest := mailbox.latest()) and latest.opening == 1.0)
    latest = mailbox.latest()
    assert latest is not None
    assert latest.goal == 1.0


def test_a_stop_ends_the_movement_and_forgets_what_waits(
    mailbox: GripperMailbox, gripper: SlowGripper
) -> None:
    _begin(mailbox, gripper, 0.0)
    mailbox.put(0.7)
    mailbox.stop()
    # The movement was ended, for nobody let it go on, and a reading is taken again.
    began = time.monotonic_ns()
    _wait(lambda: (latest := mailbox.latest()) and latest.t > began)
    assert gripper.stops >= 1
    assert gripper.moves == [0.0]
    gripper.go_on.release()
    mailbox.put(0.7)
    _wait(lambda: gripper.opening == 0.7)
    assert gripper.moves == [0.0, 0.7]


def test_a_stop_that_comes_just_before_the_movement_is_repeated(
    mailbox: GripperMailbox, gripper: SlowGripper
) -> None:
    gripper.deaf = 2
    _begin(mailbox, gripper, 0.0)
    mailbox.stop()
    began = time.monotonic_ns()
    _wait(lambda: (latest := mailbox.latest()) and latest.t > began)
    assert gripper.stops >= 3


def test_a_stop_that_comes_too_late_does_not_end_the_next_movement(
    mailbox: GripperMailbox, gripper: SlowGripper, monkeypatch: pytest.MonkeyPatch
) -> None:
    stop, under_way, late = gripper.stop, threading.Event(), threading.Event()

    def slow_stop() -> None:
        if not under_way.is_set():
            under_way.set()
            assert late.wait(BOUND)
        stop()

    monkeypatch.setattr(gripper, "stop", slow_stop)
    _begin(mailbox, gripper, 0.0)
    mailbox.stop()
    assert under_way.wait(BOUND)
    # The movement ends by itself, and the next one is asked for.
    gripper.go_on.release()
    mailbox.put(0.7)
    assert not gripper.begun.acquire(timeout=0.3)
    late.set()
    assert gripper.begun.acquire(timeout=BOUND)
    gripper.go_on.release()
    _wait(lambda: gripper.opening == 0.7)


def test_a_stop_at_rest_reaches_the_gripper_before_the_next_goal(
    mailbox: GripperMailbox, gripper: SlowGripper
) -> None:
    mailbox.stop()
    _wait(lambda: gripper.stops == 1)
    gripper.go_on.release()
    mailbox.put(0.9)
    _wait(lambda: gripper.opening == 0.9)
    assert gripper.stops == 1


@pytest.mark.parametrize("error", [DriverError("no air"), ZeroDivisionError()], ids=["DriverError", "bug"])
def test_what_goes_wrong_is_a_fault_until_it_is_acknowledged(
    mailbox: GripperMailbox, gripper: SlowGripper, error: Exception
) -> None:
    gripper.breaks["move"] = error
    mailbox.put(0.5)
    _wait(lambda: mailbox.fault)
    assert mailbox.fault == f"move to 0.500: {str(error) or 'ZeroDivisionError'}"
    del gripper.breaks["move"]
    gripper.go_on.release(100)
    mailbox.put(0.6)
    began = time.monotonic_ns()
    _wait(lambda: (latest := mailbox.latest()) and latest.t > began)  # it still reads
    assert gripper.moves == []
    assert mailbox.fault
    mailbox.acknowledge()
    assert mailbox.fault == ""
    mailbox.put(0.6)
    _wait(lambda: gripper.opening == 0.6)
    assert gripper.moves == [0.6]


def test_a_gripper_that_cannot_be_read_is_a_fault(mailbox: GripperMailbox, gripper: SlowGripper) -> None:
    gripper.breaks["read"] = DriverError("unplugged")
    _wait(lambda: mailbox.fault == "read: unplugged")
    mailbox.acknowledge()
    _wait(lambda: mailbox.fault == "read: unplugged")


@pytest.mark.parametrize("opening", [float("nan"), 7.0])
def test_a_reading_that_is_no_opening_is_a_fault(
    mailbox: GripperMailbox, gripper: SlowGripper, opening: float
) -> None:
    _wait(mailbox.latest)
    gripper.opening = opening
    _wait(lambda: mailbox.fault == f"read: the opening is {opening}: it must be in 0 … 1")
    latest = mailbox.latest()
    assert latest is not None
    assert latest.opening == 0.25


def test_a_gripper_that_hangs_is_a_fault(gripper: SlowGripper) -> None:
    clock = SteppedClock()
    mailbox = GripperMailbox(gripper, clock)
    mailbox.start()
    _begin(mailbox, gripper, 0.5)
    clock.advance(5000 * MS)
    assert mailbox.fault == ""
    clock.advance(1)
    assert mailbox.fault == "move to 0.500: no answer for 5 s"
    # Acknowledging does not help while it hangs.
    mailbox.acknowledge()
    assert mailbox.fault == "move to 0.500: no answer for 5 s"
    gripper.go_on.release()
    _wait(lambda: (latest := mailbox.latest()) and latest.opening == 0.5)
    mailbox.acknowledge()
    assert mailbox.fault == ""
    mailbox.close()


def test_a_stop_that_hangs_is_a_fault(gripper: SlowGripper, monkeypatch: pytest.MonkeyPatch) -> None:
    clock, go_on, begun = SteppedClock(), threading.Event(), threading.Event()

    def stop() -> None:
        begun.set()
        go_on.wait(BOUND)

    monkeypatch.setattr(gripper, "stop", stop)
    mailbox = GripperMailbox(gripper, clock)
    mailbox.start()
    mailbox.stop()
    assert begun.wait(BOUND)
    clock.advance(5000 * MS + 1)
    assert mailbox.fault == "stop: no answer for 5 s"
    go_on.set()
    mailbox.close()


def test_a_stop_that_fails_is_a_fault(mailbox: GripperMailbox, gripper: SlowGripper) -> None:
    gripper.breaks["stop"] = DriverError("jammed")
    mailbox.stop()
    _wait(lambda: mailbox.fault == "stop: jammed")


@pytest.mark.parametrize("opening", [-0.1, 1.1, float("nan")])
def test_what_is_no_opening_is_refused(mailbox: GripperMailbox, opening: float) -> None:
    with pytest.raises(ValueError, match="0 … 1"):
        mailbox.put(opening)


def test_closing_stops_what_moves_and_ends_the_thread(gripper: SlowGripper) -> None:
    mailbox = GripperMailbox(gripper, MonotonicClock(), BOUND)
    mailbox.start()
    _begin(mailbox, gripper, 0.0)
    mailbox.close()
    mailbox.close()
    assert gripper.stops >= 1
    assert not any(thread.name == "gripper" for thread in threading.enumerate())


def test_a_gripper_that_does_not_answer_does_not_keep_the_server_from_closing(gripper: SlowGripper) -> None:
    gripper.deaf = 10**6
    mailbox = GripperMailbox(gripper, MonotonicClock(), 0.05)
    mailbox.start()
    _begin(mailbox, gripper, 0.0)
    with pytest.raises(TimeoutError, match="not answered"):
        mailbox.close()
    gripper.go_on.release()
    _wait(lambda: not any(thread.name == "gripper" for thread in threading.enumerate()))


def test_one_that_was_never_started_closes(gripper: SlowGripper) -> None:
    GripperMailbox(gripper, MonotonicClock(), BOUND).close()
    assert gripper.moves == []
