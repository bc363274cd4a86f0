"""Real servers and clients on real sockets, all closed at the end."""

import random
import socket
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
import zmq

from robot_rl.hardware.protocol.endpoints import CHANNELS, Address, parse
from robot_rl.hardware.protocol.sockets import ClientSockets, ServerSockets

Make = Callable[..., ServerSockets]
Join = Callable[..., ClientSockets]


@pytest.fixture
def context() -> Iterator[zmq.Context]:
    with zmq.Context() as context:
        yield context
        # Sockets of a failed test must not keep it from ending.
        context.destroy(linger=0)


@pytest.fixture
def ipc(tmp_path: Path) -> Address:
    return parse(f"ipc://{tmp_path / 'r'}")


@pytest.fixture
def tcp() -> Address:
    """Seven ports that are free now."""
    while True:
        base = random.randrange(20_000, 30_000)
        with ExitStack() as stack:
            try:
                for port in range(base, base + len(CHANNELS)):
                    stack.enter_context(socket.create_server(("127.0.0.1", port)))
            except OSError:
                continue
        return parse(f"tcp://127.0.0.1:{base}")


@pytest.fixture(params=["ipc", "tcp"])
def address(request: pytest.FixtureRequest) -> Address:
    return request.getfixturevalue(request.param)


@pytest.fixture
def serve() -> Iterator[Make]:
    with ExitStack() as stack:

        def make(*args: object, **kwargs: object) -> ServerSockets:
            context = stack.enter_context(zmq.Context())
            sockets = ServerSockets(context, *args, **kwargs)  # type: ignore[arg-type]
            stack.callback(sockets.close)
            return sockets

        yield make


@pytest.fixture
def join(context: zmq.Context) -> Join:
    return lambda *args, **kwargs: ClientSockets(context, *args, **kwargs)
