"""Message round trip and thread wake-up latency of a machine, without a robot.

`python -m robot_rl.bench.echo <ipc endpoint>` sends every message back. Priorities are those of a robot's
server and of a policy that commands it.
"""

import random
import subprocess
import sys
import time
from collections.abc import Sequence

import zmq

from robot_rl.hardware.realtime import COMMANDS, CONTROL, message_context, realtime_priority

_SIZE = 200
"""Bytes of a message, as of a command."""
_PATIENCE = 10_000
"""ms."""


def echo_trips(endpoint: str, seconds: float, rate: float) -> list[float]:
    """Round trips in us of messages at about `rate` per second."""
    command = [sys.executable, "-m", "robot_rl.bench.echo", endpoint]
    trips: list[float] = []
    with message_context() as context, subprocess.Popen(command) as other, realtime_priority(COMMANDS):
        socket = context.socket(zmq.DEALER)
        socket.linger, socket.rcvtimeo = 0, _PATIENCE
        socket.connect(endpoint)
        try:
            for _ in range(round(seconds * rate)):
                begun = time.monotonic_ns()
                socket.send(bytes(_SIZE))
                socket.recv()
                trips.append((time.monotonic_ns() - begun) / 1e3)
                time.sleep(random.uniform(0.5, 1.5) / rate)
        finally:
            socket.close()
            other.kill()
    # The first includes the start of the other process.
    return trips[1:]


def wake_lateness(seconds: float, rate: float) -> list[float]:
    """Wake-up delays in us of a thread with the control loop's priority."""
    late: list[float] = []
    with realtime_priority(CONTROL):
        due = time.monotonic_ns()
        for _ in range(round(seconds * rate)):
            due += round(1e9 / rate)
            time.sleep(max(0, due - time.monotonic_ns()) * 1e-9)
            late.append((time.monotonic_ns() - due) / 1e3)
            due = max(due, time.monotonic_ns())
    return late


def _serve(endpoint: str) -> None:
    with message_context() as context, realtime_priority(CONTROL):
        socket: zmq.Socket[bytes] = context.socket(zmq.ROUTER)
        socket.bind(endpoint)
        while True:
            socket.send_multipart(socket.recv_multipart())


def main(arguments: Sequence[str]) -> None:
    """Serve until killed."""
    (endpoint,) = arguments
    _serve(endpoint)


if __name__ == "__main__":
    main(sys.argv[1:])
