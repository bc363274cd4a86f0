"""Speed of the policy server, with clients in threads of this process and the server in another.

The round trip is measured without a policy; throughput with an untrained diffusion base of Lift.
"""

import multiprocessing
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import Any

import numpy as np
import torch
from websockets.sync.client import ClientConnection, connect

from robot_rl.errors import UserError
from robot_rl.policies.bases.diffusion import DiffusionConfig, DiffusionPolicy
from robot_rl.policy_client.codec import decode, encode
from robot_rl.policy_server.inference import Inference, PolicyInference
from robot_rl.policy_server.requests import Query
from robot_rl.policy_server.server import Listen, PolicyServer

CLIENTS = 4
_IMAGES, _SIZE = ("images.front", "images.wrist"), 224
_STATE, _ACTION = 19, 7
_TIMEOUT = 60.0


@dataclass(frozen=True)
class ServeSpeed:
    """Measured times."""

    round_trip_ms: dict[str, float]
    """From sending two images of 224 x 224 to the reply of a server without a policy: `p50` and `p99`."""
    batched_per_s: float
    """Requests that the policy answers for four clients at once."""
    single_per_s: float
    """Requests that it answers for one."""


class NoPolicy:
    """Replies at once, to measure everything else."""

    waits = False

    @property
    def metadata(self) -> dict[str, Any]:
        return {}

    def check(self, request: Mapping[str, Any]) -> Query:
        return Query({name: request[name] for name in _IMAGES}, 1, None, None, bulk=False)

    def infer(self, queries: Sequence[Query]) -> list[dict[str, Any]]:
        return [{"actions": np.zeros((8, _ACTION), np.float32)} for _ in queries]


def _untrained() -> PolicyInference:
    torch.manual_seed(0)
    spec = {"state_keys": ["state"], "state_dims": [_STATE], "cameras": [], "image_size": [84, 84]}
    environment = {"task": "none", "control_freq": 20, "observation_spec": spec}
    return PolicyInference(DiffusionPolicy(DiffusionConfig(), _STATE, _ACTION).eval(), environment, 0)


def measure(seconds: float) -> ServeSpeed:
    """Measure all; `seconds` for each figure."""
    generator = np.random.default_rng(0)
    images = {name: generator.integers(0, 256, (_SIZE, _SIZE, 3), dtype=np.uint8) for name in _IMAGES}
    with _server("none") as port:
        times = np.array(_ask(port, images, seconds))
    obs_steps = DiffusionConfig().obs_steps
    state = generator.normal(size=(obs_steps, _STATE)).astype(np.float32)
    rates = []
    with _server("diffusion") as port, ThreadPoolExecutor(CLIENTS) as threads:
        for clients in (CLIENTS, 1):
            asking = [threads.submit(_ask, port, {"state": state}, seconds) for _ in range(clients)]
            answered = [client.result() for client in asking]
            rates.append(sum(len(times) / sum(times) for times in answered))
    p50, p99 = 1e3 * np.percentile(times, (50, 99))
    return ServeSpeed({"p50": float(p50), "p99": float(p99)}, *rates)


def _ask(port: int, request: Mapping[str, Any], seconds: float) -> list[float]:
    """Seconds of each request of one client; the first ones are not counted."""
    with connect(f"ws://127.0.0.1:{port}", compression=None, max_size=None) as connection:
        connection.recv(_TIMEOUT)
        for _ in range(5):
            _round_trip(connection, request)
        times: list[float] = []
        end = time.perf_counter() + seconds
        while time.perf_counter() < end or len(times) < 20:
            times.append(_round_trip(connection, request))
    return times


def _round_trip(connection: ClientConnection, request: Mapping[str, Any]) -> float:
    begun = time.perf_counter()
    connection.send(encode(request))
    reply = connection.recv(_TIMEOUT)
    assert isinstance(reply, bytes), reply
    decode(reply)
    return time.perf_counter() - begun


@contextmanager
def _server(policy: str) -> Iterator[int]:
    """A server in another process; gives its port."""
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    process = context.Process(target=_serve, args=(policy, theirs), daemon=True)
    process.start()
    # So that the end of the process is noticed.
    theirs.close()
    try:
        try:
            if not ours.poll(_TIMEOUT):
                raise UserError(f"the server has not started after {_TIMEOUT:g} s")
            port = ours.recv()
        except EOFError:
            raise UserError("the server has ended; see its message above") from None
        yield port
    finally:
        process.terminate()
        process.join()


def _serve(policy: str, started: Connection) -> None:
    torch.set_num_threads(1)
    inference: Inference = NoPolicy() if policy == "none" else _untrained()
    server = PolicyServer(inference, Listen(port=0))
    started.send(server.start())
    while True:
        server.check()
        time.sleep(1.0)
