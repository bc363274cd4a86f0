"""Real servers and clients on real sockets, all closed at the end."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
import zmq

from robot_rl.hardware.protocol.endpoints import Address, parse
from robot_rl.hardware.protocol.sockets import ClientSockets, ServerSockets
from tests.hardware.ports import free_address

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
    return parse(free_address())


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
