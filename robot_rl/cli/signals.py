"""To stop when the user wants to: Ctrl-C lets a loop finish its step and save."""

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any


class Stop:
    """Becomes true at the first Ctrl-C (or SIGTERM); a second Ctrl-C interrupts at once."""

    def __init__(self) -> None:
        self.asked = False

    def __call__(self) -> bool:
        return self.asked


@contextmanager
def stop_on_signal(*also: int) -> Iterator[Stop]:
    """Let a loop finish its step and save when the user wants to stop, or with one of the signals `also`."""
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
