from robot_rl.hardware.clock import SteppedClock
from robot_rl.hardware.core.events import CAPACITY, EventLog
from robot_rl.hardware.protocol.codec import MAX_CONTROL, Stamper, encode
from robot_rl.hardware.protocol.messages import Event, Events


def log_with(count: int) -> EventLog:
    log = EventLog(Stamper("session", SteppedClock()))
    for number in range(1, count + 1):
        log.append("mode", f"event {number}")
    return log


def numbers(events: tuple[Event, ...]) -> list[int]:
    return [event.seq for event in events]


def test_events_are_numbered_from_one() -> None:
    log = log_with(0)
    assert (log.newest, log.oldest, log.since(0)) == (0, 1, ())
    log = log_with(3)
    assert (log.newest, log.oldest) == (3, 1)
    assert numbers(log.since(0)) == [1, 2, 3]
    assert numbers(log.since(2)) == [3]
    assert log.since(3) == log.since(99) == ()


def test_the_oldest_go_first() -> None:
    log = log_with(CAPACITY + 5)
    assert (log.newest, log.oldest) == (CAPACITY + 5, 6)
    assert numbers(log.since(0)) == list(range(6, CAPACITY + 6))
    assert numbers(log.since(CAPACITY + 3)) == [CAPACITY + 4, CAPACITY + 5]


def test_a_flood_of_one_kind_leaves_the_events_of_the_others() -> None:
    log = log_with(3)
    log.append("stop", "somebody pressed it")
    for _ in range(2 * CAPACITY):
        log.append("refused", "not now")
    log.append("fault", "driver")
    others = [event for event in log.since(0) if event.what != "refused"]
    assert [event.what for event in others] == ["mode", "mode", "mode", "stop", "fault"]
    assert (log.oldest, log.newest) == (1, 2 * CAPACITY + 5)
    assert numbers(log.since(0)) == sorted(numbers(log.since(0)))
    assert numbers(log.since(2)[:2]) == [3, 4]
    assert len(log.since(0)) == CAPACITY + 5


def test_any_number_of_events_can_be_fetched_in_frames_that_fit() -> None:
    stamp = Stamper("session", SteppedClock())
    log = EventLog(stamp)
    for _ in range(200):
        log.append("refused", "ü" * 2000, "ö" * 300)
    after = 0
    while events := log.since_within(after, 48_000):
        frame = encode(stamp(Events, events=events, oldest=log.oldest))
        assert len(frame) <= MAX_CONTROL
        assert events[0].seq == after + 1
        after = events[-1].seq
    assert after == 200


def test_an_event_is_one_printable_line() -> None:
    event = log_with(0).append("stop", "a\nforged: line\x1b[2J", "some\rbody")
    assert event.text == "a forged: line?[2J"
    assert event.who == "some body"
