"""What a control loop asks of Linux: to run first, and to be woken without delay.

Whoever may not have it (`missing` says what and the mend) gets the usual scheduling.
"""

import os
import struct
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Final, NamedTuple

import zmq

COMMANDS: Final = 50
"""Priority of a policy's thread: on one machine, the loop that moves the arm comes before it."""
CONTROL: Final = 60
"""Priority of the thread that moves the arm; the kernel's own interrupt threads have 50."""
MESSAGES: Final = 70
"""Of those that bring it its messages, and of the e-stop's: they do little, and never wait for the arm."""
ARM: Final = 80
"""Of the loop of an arm's own library, where that runs on this machine."""
_LATENCY: Final = Path("/dev/cpu_dma_latency")


class Lack(NamedTuple):
    """A right that the process does not have."""

    what: str
    mend: str


def missing() -> tuple[Lack, ...]:
    """What this process may not ask for, found by asking."""
    lacks = []
    if not may_run_first():
        lacks.append(
            Lack(
                "no real-time priority: other programs delay the control loop",
                f"as root: echo '@robot - rtprio {MESSAGES}' > /etc/security/limits.d/robot.conf, "
                "usermod -aG robot <you>, log in anew",
            )
        )
    if not os.access(_LATENCY, os.W_OK):
        lacks.append(
            Lack(
                "the processor may fall asleep between two ticks and wakes late",
                f"as root: chgrp robot {_LATENCY} && chmod g+w {_LATENCY} (a udev rule makes it last)",
            )
        )
    return tuple(lacks)


def message_context() -> "zmq.Context[zmq.Socket[bytes]]":
    """A ZMQ context whose own threads run first, where they may."""
    context = zmq.Context()
    # libzmq ends the whole process where it is told to and may not.
    if may_run_first():
        context.set(zmq.THREAD_SCHED_POLICY, os.SCHED_FIFO)
        context.set(zmq.THREAD_PRIORITY, MESSAGES)
    return context


@contextmanager
def runs_first(priority: int) -> Iterator[None]:
    """The calling thread, before all that have no such priority, where it may; and no core sleeps.

    Threads that it starts meanwhile inherit the priority, as Linux has it.
    """
    with ExitStack() as undone:
        if may_run_first():
            before = os.sched_getscheduler(0), os.sched_getparam(0)
            os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(priority))
            undone.callback(os.sched_setscheduler, 0, *before)
        with suppress(PermissionError, FileNotFoundError):
            # The wish holds while the file is open: microseconds, as an int32.
            wish = undone.enter_context(_LATENCY.open("wb", buffering=0))
            wish.write(struct.pack("i", 0))
        yield


@contextmanager
def keeps_priority() -> Iterator[None]:
    """The calling thread has the same afterwards, whatever a library made of it."""
    before = os.sched_getscheduler(0), os.sched_getparam(0)
    try:
        yield
    finally:
        if (os.sched_getscheduler(0), os.sched_getparam(0)) != before:
            os.sched_setscheduler(0, *before)


def may_run_first() -> bool:
    """Whether the calling thread may, found by trying."""
    before = os.sched_getscheduler(0), os.sched_getparam(0)
    try:
        os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(MESSAGES))
    except PermissionError:
        return False
    os.sched_setscheduler(0, *before)
    return True
