"""One browser controls, and nothing that is old moves the arm: the logic, in stepped time."""

import pytest

from robot_rl.hardware.clock import MS
from robot_rl.hardware.teleop.device import LATE_MS, STALE_HOLD_MS, PressedMarks, Sample
from robot_rl.hardware.teleop.engagement import ClutchInput, clutch_input
from robot_rl.hardware.teleop.web.browser import BrowserClock
from robot_rl.hardware.teleop.web.browser_control import BrowserControl
from robot_rl.hardware.teleop.web.messages import Move

START = 10_000 * MS
FORWARD = (1.0, 0.0, 0.0, 0.0, 0.0, 0.0)
STILL = (0.0,) * 6


def move(n: int, *, on: bool, gripper: float | None = None) -> Move:
    return Move(n=n, at=0.0, on=on, motion=FORWARD, gripper=gripper)


def newest(control: BrowserControl) -> Sample:
    control.read(START)
    sample = control.read(START)
    assert sample is not None
    return sample


@pytest.fixture
def control() -> BrowserControl:
    """Taken by `me`, who has let go of everything."""
    control = BrowserControl()
    assert control.take("me", START, over=False)
    control.move("me", move(1, on=False), START, START)
    return control


def test_nobody_controls_before_somebody_takes_the_seat() -> None:
    control = BrowserControl()
    control.move("me", move(1, on=True), START, START)
    assert control.read(START) is None
    assert control.press("me", "arm", START, START) == "arm: take control first"


def test_a_sample_has_the_time_at_which_it_was_made(control: BrowserControl) -> None:
    control.move("me", move(2, on=True, gripper=0.0), START + 30 * MS, START + 90 * MS)
    assert newest(control) == Sample(t=START + 30 * MS, enable=True, motion=FORWARD, gripper=0.0)


def test_what_was_held_before_the_seat_was_taken_moves_nothing() -> None:
    control = BrowserControl()
    control.take("me", START, over=False)
    control.move("me", move(1, on=True), START + MS, START + MS)
    assert newest(control) == Sample(t=START + MS, enable=False, motion=STILL)
    control.move("me", move(2, on=False), START + 2 * MS, START + 2 * MS)
    control.move("me", move(3, on=True), START + 3 * MS, START + 3 * MS)
    assert newest(control).enable


def test_what_was_made_before_the_seat_was_taken_says_nothing() -> None:
    """A line that was stuck brings the taking and all that was pressed since at once."""
    control = BrowserControl()
    control.take("me", START, over=False)
    control.move("me", move(1, on=False), START - 3000 * MS, START + MS)
    control.move("me", move(2, on=True), START - 2000 * MS, START + MS)
    control.move("me", move(3, on=True), START + MS, START + MS)
    assert not newest(control).enable


def test_a_burst_after_a_stall_is_its_newest_and_that_is_old(control: BrowserControl) -> None:
    for n in range(2, 12):
        control.move("me", move(n, on=True), START + n * 30 * MS, START + 2000 * MS)
    assert newest(control).t == START + 330 * MS
    assert clutch_input(newest(control), START + 2000 * MS) is ClutchInput.SILENT
    assert clutch_input(newest(control), START + 330 * MS + STALE_HOLD_MS * MS + 1) is ClutchInput.LATE


def test_an_earlier_move_after_a_later_one_changes_nothing(control: BrowserControl) -> None:
    control.move("me", move(3, on=False), START + 20 * MS, START + 20 * MS)
    control.move("me", move(2, on=True), START + 10 * MS, START + 30 * MS)
    control.move("me", move(3, on=True), START + 40 * MS, START + 40 * MS)
    assert not newest(control).enable


def test_a_better_known_clock_does_not_bring_samples_back_in_time(control: BrowserControl) -> None:
    control.move("me", move(2, on=True), START + 30 * MS, START + 40 * MS)
    control.move("me", move(3, on=True), START + 25 * MS, START + 70 * MS)
    assert newest(control).t == START + 30 * MS


def test_without_a_known_clock_one_can_only_let_go(control: BrowserControl) -> None:
    control.move("me", move(2, on=True), None, START + MS)
    assert not newest(control).enable
    control.move("me", move(3, on=True), START + 2 * MS, START + 2 * MS)
    assert newest(control).enable
    control.move("me", move(4, on=False), None, START + 3 * MS)
    assert newest(control) == Sample(t=START + 3 * MS, enable=False, motion=STILL)


@pytest.mark.parametrize("how", ["leave", "over"])
def test_whoever_loses_the_seat_lets_go_at_once(control: BrowserControl, how: str) -> None:
    control.move("me", move(2, on=True), START + MS, START + MS)
    assert newest(control).enable
    if how == "leave":
        control.leave("me", START + 2 * MS)
    else:
        assert control.take("you", START + 2 * MS, over=True)
    assert newest(control) == Sample(t=START + 2 * MS, enable=False, motion=STILL)
    control.move("me", move(3, on=True), START + 3 * MS, START + 3 * MS)
    assert not newest(control).enable


def test_a_taken_seat_is_kept_unless_it_is_taken_over(control: BrowserControl) -> None:
    assert not control.take("you", START, over=False)
    assert control.holder == "me"
    control.leave("you", START)
    assert control.holder == "me"
    assert control.take("you", START, over=True)
    assert control.holder == "you"
    assert control.press("me", "arm", START, START) == "arm: take control first"


def test_taking_ones_own_seat_again_changes_nothing(control: BrowserControl) -> None:
    control.move("me", move(2, on=True), START + MS, START + MS)
    assert control.take("me", START + 2 * MS, over=False)
    assert newest(control).enable


def test_letting_go_is_seen_however_short_it_is(control: BrowserControl) -> None:
    control.move("me", move(2, on=True), START + MS, START + MS)
    assert newest(control).enable
    control.move("me", move(3, on=False), START + 2 * MS, START + 4 * MS)
    control.move("me", move(4, on=True), START + 3 * MS, START + 4 * MS)
    assert [
        sample.enable for sample in (control.read(START), control.read(START), control.read(START)) if sample
    ] == [
        False,
        True,
        True,
    ]


def test_a_button_counts_once(control: BrowserControl) -> None:
    assert control.press("me", "arm", START, START + MS) == ""
    assert control.press("me", "begin", START, START + MS) == ""
    read = control.read(START), control.read(START)
    assert [sample.marks for sample in read if sample] == [("arm", "begin"), ()]


def test_a_button_that_was_pressed_long_ago_is_refused_but_for_disarm(control: BrowserControl) -> None:
    late = START + LATE_MS * MS + 1
    assert control.press("me", "success", START, late) == "success was pressed 1.0 s ago: press it again"
    assert control.press("me", "arm", None, late) == "arm was pressed at an unknown time: press it again"
    assert control.press("me", "disarm", START, late) == ""
    sample = control.read(START)
    assert sample is not None
    assert sample.marks == ("disarm",)


def test_a_button_that_waited_too_long_to_be_read_starts_nothing(control: BrowserControl) -> None:
    for mark in ("arm", "success", "disarm"):
        assert control.press("me", mark, START, START) == ""
    sample = control.read(START + LATE_MS * MS + 1)
    assert sample is not None
    assert sample.marks == ("success", "disarm")


def test_marks_of_a_device_are_given_once_and_those_that_start_something_only_in_time() -> None:
    pressed = PressedMarks()
    pressed.add(("arm", "begin"), START)
    pressed.add(("home", "stop"), START + MS)
    assert pressed.take(START + LATE_MS * MS + 1) == ("home", "stop")
    assert not pressed
    assert pressed.take(START) == ()


def test_buttons_of_the_browser_before_are_not_those_of_the_next(control: BrowserControl) -> None:
    for mark in ("arm", "disarm"):
        assert control.press("me", mark, START, START) == ""
    control.leave("me", START + MS)
    assert control.take("other", START + 2 * MS, over=False)
    sample = control.read(START + 3 * MS)
    assert sample is not None
    assert sample.marks == ("disarm",)


# ---- the browser's clock -----------------------------------------------------------------------------


def answered(clock: BrowserClock, sent: int, up: int, down: int, ahead: int) -> None:
    """A ping that took `up` and `down` [ns], to a browser whose clock is `ahead` [ns]."""
    clock.add_ping(sent, (sent + up + ahead) / MS, sent + up + down)


@pytest.mark.parametrize(("up", "down"), [(1, 1), (1, 60), (60, 1), (300, 300)])
@pytest.mark.parametrize("ahead", [-9_000, 0, 86_400_000])
def test_a_sample_is_never_taken_for_younger_than_it_is(up: int, down: int, ahead: int) -> None:
    clock = BrowserClock()
    for n in range(5):
        answered(clock, START + n * 1000 * MS, up * MS, down * MS, ahead * MS)
    made = START + 5000 * MS
    told = clock.to_local((made + ahead * MS) / MS, made + down * MS)
    assert told is not None
    assert made - (up + down + 3) * MS <= told <= made


def test_a_clock_that_nobody_has_asked_tells_nothing() -> None:
    assert BrowserClock().to_local(1.0, START) is None


def test_a_clock_that_jumps_ahead_is_not_believed_until_it_is_asked_anew() -> None:
    clock = BrowserClock()
    answered(clock, START, MS, MS, 0)
    later = START + 100 * MS
    assert clock.to_local((later + 5000 * MS) / MS, later) is None
    answered(clock, later, MS, MS, 5000 * MS)
    told = clock.to_local((later + 3 * MS + 5000 * MS) / MS, later + 4 * MS)
    assert told is not None
    assert later - 3 * MS <= told <= later + 4 * MS


def test_a_clock_that_stood_still_makes_samples_old() -> None:
    """As that of a phone that slept."""
    clock = BrowserClock()
    answered(clock, START, MS, MS, 0)
    now = START + 5000 * MS
    told = clock.to_local((START + 100 * MS) / MS, now)
    assert told is not None
    assert now - told > 4000 * MS
