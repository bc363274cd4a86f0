"""Priorities are taken where they are given, and given back; nobody needs them."""

import os
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
import zmq

from robot_rl.hardware.realtime import CONTROL, message_context, missing_rights, realtime_priority

ROOT = pytest.mark.skipif(os.geteuid() != 0, reason="whoever is not root may not change who it is")

AS_NOBODY = """
import os, resource, zmq
# Before it becomes somebody who may not enter the folder that this lies in.
from robot_rl.hardware.realtime import CONTROL, message_context, missing_rights, realtime_priority
resource.setrlimit(resource.RLIMIT_RTPRIO, (0, 0))
os.setgroups([]); os.setgid(65534); os.setuid(65534)
assert len(missing_rights()) == 2, missing_rights()
with realtime_priority(CONTROL):
    assert os.sched_getscheduler(0) == os.SCHED_OTHER
with message_context() as context, context.socket(zmq.PAIR) as one, context.socket(zmq.PAIR) as other:
    port = one.bind_to_random_port("tcp://127.0.0.1")
    other.connect(f"tcp://127.0.0.1:{port}")
    one.send(b"as ever")
    print(other.recv().decode())
"""


def scheduling() -> int:
    return os.sched_getscheduler(0)


@pytest.mark.skipif(bool(missing_rights()), reason="no right to real-time priority here")
def test_a_thread_runs_first_for_a_while() -> None:
    seen: list[int] = []

    def look() -> None:
        before = scheduling()
        with realtime_priority(CONTROL):
            seen.extend((before, scheduling(), os.sched_getparam(0).sched_priority))
        seen.append(scheduling())

    thread = threading.Thread(target=look)
    thread.start()
    thread.join()
    assert seen == [os.SCHED_OTHER, os.SCHED_FIFO, CONTROL, os.SCHED_OTHER]
    assert scheduling() == os.SCHED_OTHER


@pytest.mark.skipif(bool(missing_rights()), reason="no right to real-time priority here")
def test_the_threads_that_carry_messages_run_first() -> None:
    def run_first() -> set[str]:
        threads = Path("/proc/self/task").iterdir()
        first = {thread for thread in threads if os.sched_getscheduler(int(thread.name)) == os.SCHED_FIFO}
        return {(thread / "comm").read_text().strip() for thread in first}

    with message_context() as context, context.socket(zmq.PAIR):
        # They take it themselves, some time after they were started.
        give_up = time.monotonic() + 30
        while "ZMQbg/IO/0" not in run_first() and time.monotonic() < give_up:
            time.sleep(0.01)
        assert "ZMQbg/IO/0" in run_first()


@ROOT
def test_without_the_right_everything_works_and_the_mend_is_named() -> None:
    result = subprocess.run([sys.executable, "-c", AS_NOBODY], capture_output=True, text=True, check=False)
    assert result.stdout == "as ever\n", result.stderr
