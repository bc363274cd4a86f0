"""Stop requests: Ctrl-C lets a loop finish its step and save."""

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any


class Stop:
    """True after the first Ctrl-C, SIGTERM or SIGHUP; a second Ctrl-C interrupts at once."""

    def __init__(self) -> None:
        self.asked = False

    def __call__(self) -> bool:
        return self.asked


@contextmanager
def stop_on_signal() -> Iterator[Stop]:
    """Turns Ctrl-C, SIGTERM, and the SIGHUP of a closed terminal into a stop request that a loop can poll."""
    stop = Stop()

    def handle(number: int, frame: Any) -> None:
        if stop.asked and number == signal.SIGINT:
            raise KeyboardInterrupt
        stop.asked = True

    with handled(handle):
        yield stop


@contextmanager
def interrupted_by_signal() -> Iterator[None]:
    """Ctrl-C, SIGTERM and SIGHUP raise KeyboardInterrupt, so that what is open is closed."""
    with handled(signal.default_int_handler):
        yield


@contextmanager
def handled(handler: Any) -> Iterator[None]:
    """Handle Ctrl-C, SIGTERM and SIGHUP; a process that ignores SIGHUP, as under nohup, goes on to."""
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)}
    if before[signal.SIGHUP] is signal.SIG_IGN:
        del before[signal.SIGHUP]
    for number in before:
        signal.signal(number, handler)
    try:
        yield
    finally:
        for number, former in before.items():
            signal.signal(number, former)
