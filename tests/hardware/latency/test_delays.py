"""Delays that were put in are found, each where it belongs: the tool is held to what is known."""

import datetime
import functools
import itertools
from dataclasses import replace

import numpy as np
import pytest
from numpy.typing import NDArray

from robot_rl.hardware.latency.delays import Figures, measure, table
from robot_rl.hardware.spec import Delay
from tests.hardware.core.small_arm import LAG
from tests.hardware.latency.rehearsal import Delays, picture, rehearse

TODAY = datetime.date(2026, 11, 21)
CLOSE = 2.0
"""ms"""


recording = functools.cache(rehearse)


@functools.cache
def figures(delays: Delays) -> Figures:
    return measure(recording(delays), TODAY)


def looking_at(*pictures: NDArray[np.float32]) -> Figures:
    """Of a camera that shows these in turn, whatever the arm does."""
    swung = recording(Delays())
    seen = zip(swung.images_seen["wrist"], itertools.cycle(pictures), strict=False)
    images_seen = [replace(sighting, picture=shown) for sighting, shown in seen]
    return measure(replace(swung, images_seen={"wrist": images_seen}), TODAY)


def ms(found: Delay | str) -> float:
    assert isinstance(found, Delay), found
    return found.ms


def test_an_arm_without_delays_is_as_late_as_its_lag() -> None:
    found = figures(Delays())
    assert ms(found.arm) == pytest.approx(LAG * 1e3, abs=CLOSE)
    assert ms(found.cameras["wrist"]) == pytest.approx(0, abs=CLOSE)
    assert found.network.ms == found.answer.ms == found.state.ms == found.images["wrist"].ms == 0
    assert ms(found.action) == pytest.approx(ms(found.planner) + ms(found.arm), abs=3 * CLOSE)


@pytest.mark.parametrize("late", [40, 80])
def test_a_later_arm_is_later_by_what_was_put_in(late: int) -> None:
    without, found = figures(Delays()), figures(Delays(arm=late))
    for name in ("arm", "action", "total"):
        assert ms(getattr(found, name)) - ms(getattr(without, name)) == pytest.approx(late, abs=CLOSE), name
    assert ms(found.planner) == pytest.approx(ms(without.planner), abs=CLOSE)
    # It is seen when it moves, and not when it was told to.
    assert ms(found.cameras["wrist"]) == pytest.approx(0, abs=CLOSE)


def test_a_slow_network_makes_no_slow_arm() -> None:
    without, found = figures(Delays()), figures(Delays(up=30, down=10, stamp=25))
    assert found.network.ms == 30
    assert found.answer.ms == 40
    assert found.state.ms == found.images["wrist"].ms == 10
    assert ms(found.action) == pytest.approx(ms(without.action), abs=CLOSE)
    assert ms(found.total) - ms(without.total) == pytest.approx(30, abs=CLOSE)
    assert ms(found.cameras["wrist"]) == pytest.approx(25, abs=CLOSE)


def test_time_stamps_may_be_early() -> None:
    assert ms(figures(Delays(stamp=-20)).cameras["wrist"]) == pytest.approx(-20, abs=CLOSE)


def test_what_is_known_is_the_robots_latency() -> None:
    found = figures(Delays(stamp=-20))
    latency = found.latency()
    assert found.refused() == {}
    assert latency.action == found.action
    assert latency.cameras == found.cameras
    assert latency.action is not None
    assert (latency.action.measured, latency.action.correlation is not None) == (TODAY, True)
    assert latency.state is not None
    assert latency.state.correlation is None


def test_a_camera_that_does_not_see_the_arm_is_refused_and_nothing_else() -> None:
    rng = np.random.default_rng(0)
    found = looking_at(*(picture(0.0, rng) for _ in range(50)))
    assert "correlation" in found.refused()["camera wrist"]
    assert found.refused().keys() == {"camera wrist"}
    latency = found.latency()
    assert latency.action is not None
    assert latency.cameras == {}
    assert "refused: the correlation" in table(found)


@pytest.mark.parametrize("shown", [picture(0.0, np.random.default_rng(0)), np.zeros((60, 80), np.float32)])
def test_a_picture_that_stands_still_or_is_blank_is_refused(shown: NDArray[np.float32]) -> None:
    assert "correlation is 0.00" in looking_at(shown).refused()["camera wrist"]


def test_a_camera_that_has_shown_hardly_anything_is_refused() -> None:
    swung = recording(Delays())
    for count in (1, 2, 30):
        found = measure(replace(swung, images_seen={"wrist": swung.images_seen["wrist"][:count]}), TODAY)
        assert "samples" in found.refused()["camera wrist"]


def test_every_delay_has_its_line() -> None:
    lines = table(figures(Delays())).splitlines()
    assert len(lines) == 1 + 7 + 2
    assert all(len(line) <= 110 for line in lines)
