"""The true offset is never farther from the estimate than the bound, whatever the network does."""

import random
from dataclasses import dataclass

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from robot_rl.hardware.clock import MS
from robot_rl.hardware.protocol.clock_sync import MAX_DRIFT, WINDOW, ClockSync, boot_id

SECOND = 1000 * MS


@dataclass
class Server:
    """A clock that is not ours."""

    ahead: int
    """ns at our time 0"""
    ppm: float = 0.0

    def now(self, t: int) -> int:
        """Its time at ours."""
        return t + self.offset(t)

    def offset(self, t: int) -> int:
        return self.ahead + round(self.ppm * 1e-6 * t)


def probe(sync: ClockSync, server: Server, t: int, there: int, busy: int, back: int) -> int:
    """Ask at `t`; returns when the answer is back."""
    t1, t2, t3 = t + there, t + there + busy, t + there + busy + back
    sync.add(t, server.now(t1), server.now(t2), t3)
    return t3


def check(sync: ClockSync, server: Server, t: int) -> int:
    """Returns the bound."""
    offset, bound, _ = sync.estimate(t)
    assert abs(offset - server.offset(t)) <= bound
    assert sync.to_server(t) == t + offset
    return bound


delay = st.one_of(st.integers(0, 2 * MS), st.integers(0, 500 * MS))
probes = st.lists(
    st.tuples(delay, st.integers(0, 5 * MS), delay, st.integers(0, 20 * SECOND)), min_size=1, max_size=40
)


@settings(max_examples=60)
@given(
    probes=probes,
    ahead=st.integers(-(2**61), 2**61),
    ppm=st.floats(-MAX_DRIFT, MAX_DRIFT),
    after=st.integers(0, 100 * SECOND),
)
def test_the_true_offset_is_within_the_bound_for_any_delays(
    probes: list[tuple[int, int, int, int]], ahead: int, ppm: float, after: int
) -> None:
    sync, server, t = ClockSync(), Server(ahead, ppm), 10 * SECOND
    for there, busy, back, pause in probes:
        t = probe(sync, server, t, there, busy, back)
        # A fresh answer alone bounds the error by half of its round trip.
        assert check(sync, server, t) <= (there + back) / 2 + (there + busy + back) * 1e-3 + 10_000
        check(sync, server, t + pause)
        check(sync, server, t + after)
        t += pause


@pytest.mark.parametrize("ppm", [-80.0, 0.0, 35.0])
def test_on_a_quiet_network_the_error_is_small_and_the_drift_is_found(ppm: float) -> None:
    rng = random.Random(1)
    sync, server, t = ClockSync(), Server(7 * SECOND, ppm), SECOND
    while t < 90 * SECOND:
        sent = t
        there, back = 100_000 + int(rng.expovariate(1e-5)), 100_000 + int(rng.expovariate(1e-5))
        t3 = probe(sync, server, sent, there, 20_000, back)
        t = sent + sync.interval
        if sent > 5 * SECOND:
            assert check(sync, server, t3) < 500_000
            assert check(sync, server, t) < MS
    assert check(sync, server, t) < 200_000
    assert abs(sync.estimate(t).drift - ppm) < 10
    # A minute without an answer costs less than a fast clock could run away.
    assert check(sync, server, t + 60 * SECOND) < 3 * MS


def test_the_split_of_the_delay_is_not_believed() -> None:
    """All of it on one way: the estimate is wrong by all that the bound allows, and no more."""
    for there, back in ((10 * MS, 0), (0, 10 * MS)):
        sync, server = ClockSync(), Server(123_456)
        for number in range(20):
            probe(sync, server, number * SECOND, there, 0, back)
        bound = check(sync, server, 19 * SECOND + 10 * MS)
        error = abs(sync.estimate(19 * SECOND).offset - server.offset(0))
        assert 4.9 * MS < error <= bound < 5.1 * MS


def test_one_quick_answer_among_slow_ones_is_what_counts() -> None:
    sync, server = ClockSync(), Server(-5 * SECOND)
    for number in range(30):
        quick = number == 15
        probe(sync, server, number * SECOND, 50_000 if quick else 40 * MS, 0, 50_000 if quick else 90 * MS)
    assert check(sync, server, 30 * SECOND) < 10 * MS


def test_probes_are_forgotten_after_a_minute_and_take_no_room() -> None:
    sync, server = ClockSync(), Server(0)
    probe(sync, server, 0, 1000, 0, 1000)
    for number in range(1, 600):
        probe(sync, server, number * SECOND // 4, 3 * MS, 0, 3 * MS)
    assert check(sync, server, 150 * SECOND) > MS, "the quick answer was long ago"
    assert len(sync._probes) <= WINDOW // (5 * SECOND) + 1


def test_a_clock_that_was_set_is_followed() -> None:
    """As after a machine was suspended, which stops its monotonic clock."""
    sync, before, after = ClockSync(), Server(0, 20.0), Server(300 * SECOND, 20.0)
    for number in range(20):
        probe(sync, before, number * SECOND, 100_000, 0, 200_000)
    check(sync, before, 20 * SECOND)
    for number in range(20, 45):
        t = probe(sync, after, number * SECOND, 100_000, 0, 200_000)
        assert check(sync, after, t) <= 170_000
    # What was before is forgotten, not tried again with each answer: the drift is known once more.
    assert check(sync, after, 55 * SECOND) < MS


def test_one_machine_has_one_clock() -> None:
    sync = ClockSync(same_clock=True)
    assert sync.ready
    assert sync.estimate(5) == (0, 0, 0.0)
    probe(sync, Server(0), SECOND, 5 * MS, 0, MS)
    assert sync.estimate(2 * SECOND) == (0, 0, 0.0)
    assert sync.to_server(7) == sync.to_local(7) == 7


@pytest.mark.parametrize("ahead", [-3 * SECOND, 3 * SECOND])
def test_one_boot_with_two_clocks_is_noticed(ahead: int) -> None:
    """As in a time namespace."""
    sync, server = ClockSync(same_clock=True), Server(ahead)
    t = probe(sync, server, 10 * SECOND, MS, 0, MS)
    assert check(sync, server, t) == pytest.approx(MS, rel=0.1)


@settings(max_examples=30)
@given(t=st.integers(0, 2**61), ahead=st.integers(-(2**61), 2**61), ppm=st.floats(-200, 200))
def test_there_and_back_is_the_same_time(t: int, ahead: int, ppm: float) -> None:
    sync, server = ClockSync(), Server(ahead, ppm)
    for number in range(12):
        probe(sync, server, t + number * SECOND, MS, 0, MS)
    later = t + 20 * SECOND
    assert abs(sync.to_local(sync.to_server(later)) - later) < 1000


def test_nothing_is_known_before_the_first_answer() -> None:
    sync = ClockSync()
    assert not sync.ready
    with pytest.raises(ValueError, match="wait for its answer"):
        sync.estimate(0)
    probe(sync, Server(0), 0, 0, 0, 0)
    assert sync.ready


@pytest.mark.parametrize("times", [(10, 0, 0, 9), (10, 5, 4, 20), (0, 0, 100, 50), (0, 2**62, 2**63, 10)])
def test_times_that_cannot_be_are_refused(times: tuple[int, int, int, int]) -> None:
    sync = ClockSync()
    with pytest.raises(ValueError, match="no probe"):
        sync.add(*times)
    assert not sync.ready


def test_probes_come_quickly_at_first_and_once_a_second_then() -> None:
    sync = ClockSync()
    intervals = []
    for number in range(12):
        intervals.append(sync.interval)
        probe(sync, Server(0), number * SECOND, 0, 0, 0)
    assert intervals == [100 * MS] * 8 + [SECOND] * 4


def test_a_boot_has_an_id() -> None:
    assert len(boot_id()) == 36
    assert boot_id() == boot_id()
