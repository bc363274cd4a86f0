"""Times functions that take turns."""

import time
from collections.abc import Callable, Mapping
from statistics import median
from typing import Any

Action = Callable[[], Any]


def milliseconds(action: Action) -> float:
    """Duration of one call in ms."""
    start = time.perf_counter_ns()
    action()
    return (time.perf_counter_ns() - start) / 1e6


def take_turns(
    candidates: Mapping[str, Action],
    seconds: float,
    *,
    before: Mapping[str, Action] | None = None,
    block: int = 1,
    least: int = 3,
) -> dict[str, float]:
    """Median duration in ms of each candidate's calls.

    Args:
        candidates: functions to call, by name.
        seconds: s after which no new turn begins.
        before: functions to call, untimed, before a candidate's turn.
        block: calls in one turn.
        least: minimum number of turns of each.
    """
    times: dict[str, list[float]] = {name: [] for name in candidates}
    end = time.monotonic() + seconds
    turn = 0
    while turn < least or time.monotonic() < end:
        for name, action in candidates.items():
            if before and name in before:
                before[name]()
            times[name] += [milliseconds(action) for _ in range(block)]
        turn += 1
    return {name: median(values) for name, values in times.items()}
