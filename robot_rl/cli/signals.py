"""Stop requests: Ctrl-C lets a loop finish its step and save."""

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any


class Stop:
    """True after the first Ctrl-C or SIGTERM; a second Ctrl-C interrupts at once."""

    def __init__(self) -> None:
        self.asked = False

    def __call__(self) -> bool:
        return self.asked


@contextmanager
def stop_on_signal(*also: int) -> Iterator[Stop]:
    """Turns Ctrl-C, SIGTERM and the signals `also` into a stop request that a loop can poll."""
    stop = Stop()

    def handle(number: int, frame: Any) -> None:
        if stop.asked and number == signal.SIGINT:
            raise KeyboardInterrupt
        stop.asked = True

    previous = {number: signal.signal(number, handle) for number in (signal.SIGINT, signal.SIGTERM, *also)}
    try:
        yield stop
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)
