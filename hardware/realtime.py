"""Real-time scheduling on Linux for the control loop, and statistics of how late its ticks are.

A process without these rights runs with normal scheduling; `missing_rights` lists what it lacks and the fix.
"""

import os
import struct
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Final, NamedTuple

import numpy as np
import zmq

from robot_rl.hardware.protocol.messages import Loop

COMMANDS: Final = 50
"""Priority of a policy's thread, below the control loop on the same machine."""
CONTROL: Final = 60
"""Priority of the thread that moves the arm; the kernel's own interrupt threads have 50."""
_ALLOWED: Final = 99
"""Priority that a user needs the right to: the library of Franka arms takes the highest."""
MESSAGES: Final = 70
"""Priority of the ZMQ I/O threads and the e-stop thread: they do little work and never wait for the arm."""
ARM: Final = 80
"""Priority of the vendor library's control loop, if it runs on this machine."""
_LATENCY: Final = Path("/dev/cpu_dma_latency")


LATENESS_WINDOW = 2000
"""Number of newest ticks for the percentiles."""
# Ticks between updates: percentiles of `LATENESS_WINDOW` numbers take a tenth of a millisecond.
_EVERY = 50


class MissingRight(NamedTuple):
    """A real-time right that the process does not have."""

    what: str
    fix: str


def missing_rights() -> tuple[MissingRight, ...]:
    """The real-time rights that this process lacks, found by trying."""
    rights = []
    if not can_set_realtime_priority():
        rights.append(
            MissingRight(
                "no real-time priority: other programs delay the control loop",
                f"as root: echo '@robot - rtprio {_ALLOWED}' > /etc/security/limits.d/robot.conf, "
                "usermod -aG robot <you>, log in again",
            )
        )
    if not os.access(_LATENCY, os.W_OK):
        rights.append(
            MissingRight(
                "the processor may enter deep sleep states between ticks and wake up late",
                f"as root: chgrp robot {_LATENCY} && chmod g+w {_LATENCY} (a udev rule makes it last)",
            )
        )
    return tuple(rights)


def message_context() -> "zmq.Context[zmq.Socket[bytes]]":
    """A ZMQ context whose I/O threads have real-time priority, if the process has the right."""
    context = zmq.Context()
    # libzmq aborts the process if the priority is set without the right.
    if can_set_realtime_priority():
        context.set(zmq.THREAD_SCHED_POLICY, os.SCHED_FIFO)
        context.set(zmq.THREAD_PRIORITY, MESSAGES)
    return context


@contextmanager
def realtime_priority(priority: int) -> Iterator[None]:
    """Run the calling thread with SCHED_FIFO `priority` and keep CPU cores out of deep sleep states.

    Each applies only if the process has the right. Threads started inside inherit the priority.
    """
    with ExitStack() as undone:
        if can_set_realtime_priority():
            before = os.sched_getscheduler(0), os.sched_getparam(0)
            os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(priority))
            undone.callback(os.sched_setscheduler, 0, *before)
        with suppress(PermissionError, FileNotFoundError):
            # The request lasts while the file is open: latency in microseconds, as an int32.
            request = undone.enter_context(_LATENCY.open("wb", buffering=0))
            request.write(struct.pack("i", 0))
        yield


@contextmanager
def preserve_priority() -> Iterator[None]:
    """Restore the calling thread's scheduling on exit, in case a library changed it."""
    before = os.sched_getscheduler(0), os.sched_getparam(0)
    try:
        yield
    finally:
        if (os.sched_getscheduler(0), os.sched_getparam(0)) != before:
            os.sched_setscheduler(0, *before)


def can_set_realtime_priority() -> bool:
    """Whether the calling thread may use SCHED_FIFO, found by trying."""
    before = os.sched_getscheduler(0), os.sched_getparam(0)
    try:
        os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(MESSAGES))
    except PermissionError:
        return False
    os.sched_setscheduler(0, *before)
    return True


class TickLateness:
    """Collects by how much each tick began after its deadline."""

    def __init__(self, period: int) -> None:
        """`period` of the ticks in ns."""
        self._overrun = period // 2
        self._late = np.zeros(LATENESS_WINDOW)
        self._ticks = 0
        self._overruns = 0
        self._p50 = self._p99 = 0.0

    def add(self, late: int) -> None:
        """Add a tick that began `late` ns after its deadline."""
        self._late[self._ticks % LATENESS_WINDOW] = late
        self._ticks += 1
        self._overruns += late > self._overrun
        if self._ticks % _EVERY == 0:
            known = self._late[: min(self._ticks, LATENESS_WINDOW)]
            self._p50, self._p99 = (np.percentile(known, (50, 99)) / 1e3).tolist()

    def report(self) -> Loop:
        """The statistics published with the state."""
        return Loop(late_us_p50=self._p50, late_us_p99=self._p99, overruns=self._overruns, ticks=self._ticks)
