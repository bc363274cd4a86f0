"""Milliseconds of things that take turns."""

import time
from collections.abc import Callable, Mapping
from statistics import median
from typing import Any

Action = Callable[[], Any]


def milliseconds(action: Action) -> float:
    """How long one call takes."""
    start = time.perf_counter_ns()
    action()
    return (time.perf_counter_ns() - start) / 1e6


def take_turns(
    contestants: Mapping[str, Action],
    seconds: float,
    *,
    before: Mapping[str, Action] | None = None,
    block: int = 1,
    least: int = 3,
) -> dict[str, float]:
    """The median milliseconds of each contestant's calls.

    Args:
        contestants: what to call, by name.
        seconds: after which no new turn begins.
        before: what to call, untimed, before a contestant's turn.
        block: calls in one turn.
        least: turns of each, however long they take.
    """
    times: dict[str, list[float]] = {name: [] for name in contestants}
    end = time.monotonic() + seconds
    turn = 0
    while turn < least or time.monotonic() < end:
        for name, action in contestants.items():
            if before and name in before:
                before[name]()
            times[name] += [milliseconds(action) for _ in range(block)]
        turn += 1
    return {name: median(values) for name, values in times.items()}
