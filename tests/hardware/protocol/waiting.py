"""Waiting for what happens on other threads, without knowing how fast the machine is."""

import time
from collections.abc import Callable
from typing import TypeVar

import zmq

PATIENCE = 60.0
"""Seconds until a test gives up."""
T = TypeVar("T")


def eventually(action: Callable[[], T]) -> T:
    """The first true result."""
    deadline = time.monotonic() + PATIENCE
    while time.monotonic() < deadline:
        if result := action():
            return result
        time.sleep(0.005)
    raise AssertionError("it never happened")


def send(socket: zmq.Socket, frame: bytes) -> None:
    """Send as soon as there is a connection."""
    assert socket.poll(PATIENCE * 1e3, zmq.POLLOUT), "never connected"
    socket.send(frame)


def receive(socket: zmq.Socket) -> bytes:
    assert socket.poll(PATIENCE * 1e3), "nothing came"
    return socket.recv()


def newest(socket: zmq.Socket) -> bytes | None:
    """The last message that has arrived, None if there is none."""
    message = None
    while socket.poll(0):
        message = socket.recv()
    return message
