"""Ports for servers of tests that run beside each other."""

import os
import random
import socket
from contextlib import ExitStack

from robot_rl.hardware.protocol.endpoints import CHANNELS

_FIRST, _EACH = 20_000, 500
"""Below the ports that a system gives to outgoing connections; so many for each process of pytest-xdist."""


def free_address() -> str:
    """Address of seven ports that are free now, and that no other process of this run of the suite takes."""
    worker = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw"))
    first = _FIRST + worker % 20 * _EACH
    while True:
        base = random.randrange(first, first + _EACH - len(CHANNELS))
        with ExitStack() as stack:
            try:
                for port in range(base, base + len(CHANNELS)):
                    stack.enter_context(socket.create_server(("127.0.0.1", port)))
            except OSError:
                continue
        return f"tcp://127.0.0.1:{base}"
