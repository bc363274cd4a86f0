"""Policy servers for tests: this project's, and a minimal one with openpi's framing."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from threading import Thread
from typing import Any

import msgspec
import numpy as np
from websockets.sync.server import ServerConnection, serve

from robot_rl.policies.bases.base_policy import BasePolicy
from robot_rl.policies.finetuned.finetuned_policy import FinetunedPolicy
from robot_rl.policy_server.inference import PolicyInference
from robot_rl.policy_server.server import Listen, PolicyServer
from tests.robot_rl.policy_server.small_policies import environment

Infer = Callable[[Mapping[str, Any]], Any]
"""A policy: the reply to an observation; bytes and text are sent as they are."""


@contextmanager
def served(
    networks: BasePolicy | FinetunedPolicy, where: Mapping[str, Any] | None = None, port: int = 0
) -> Iterator[str]:
    """The address of a server of `robot-rl serve` in a thread."""
    server = PolicyServer(PolicyInference(networks, where or environment(), 0), Listen(port=port))
    try:
        yield f"ws://127.0.0.1:{server.start()}"
    finally:
        server.close()


@contextmanager
def stock(infer: Infer, metadata: Any = None, port: int = 0) -> Iterator[str]:
    """The address of a server with openpi's protocol, written without this project's codec."""

    def answer(socket: ServerConnection) -> None:
        socket.send(metadata if isinstance(metadata, bytes | str) else pack(metadata or {}))
        for frame in socket:
            reply = infer(unpack(frame))
            socket.send(reply if isinstance(reply, bytes | str) else pack(reply))

    with serve(answer, "127.0.0.1", port, compression=None, max_size=None) as server:
        thread = Thread(target=server.serve_forever)
        thread.start()
        try:
            yield f"ws://127.0.0.1:{server.socket.getsockname()[1]}"
        finally:
            server.shutdown()
            thread.join()


def pack(message: Any) -> bytes:
    """As `openpi_client.msgpack_numpy.packb`."""
    return msgspec.msgpack.Encoder(enc_hook=_pack_array).encode(message)


def unpack(frame: Any) -> Any:
    """As `openpi_client.msgpack_numpy.unpackb`."""
    return {name: _unpack_array(value) for name, value in msgspec.msgpack.decode(frame).items()}


def _pack_array(array: np.ndarray) -> dict[bytes, Any]:
    return {
        b"__ndarray__": True,
        b"data": array.tobytes(),
        b"dtype": array.dtype.str,
        b"shape": array.shape,
    }


def _unpack_array(value: Any) -> Any:
    if not isinstance(value, dict):
        return value
    return np.ndarray(buffer=value[b"data"], dtype=np.dtype(value[b"dtype"]), shape=value[b"shape"])
