"""A WebSocket server with openpi's protocol: metadata at first, then observations in, chunks of actions out.

Requests that arrive while the policy works are answered together by the next pass through it. A request that
cannot be used gets one line of text, and the connection goes on. `GET /healthz` gives counts and latencies.
"""

import asyncio
import hmac
import json
import logging
import ssl
import time
from collections import deque
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import Any, Final

import numpy as np
import torch
from websockets.asyncio.server import ServerConnection, serve
from websockets.exceptions import ConnectionClosed
from websockets.http11 import Request, Response

from robot_rl.errors import ServerLost
from robot_rl.hardware.websocket_server import ServerThread, http_response
from robot_rl.policy_client.codec import MAX_MESSAGE, MessageError, decode_request, encode
from robot_rl.policy_client.connection import PolicyRefused
from robot_rl.policy_server.inference import Inference
from robot_rl.policy_server.requests import Query

MAX_CLIENTS: Final = 64
MAX_BATCH: Final = 32
"""Most requests in one pass through the policy."""
_GATHER: Final = 0.002
"""Longest time to wait for other clients' requests before a pass, s. Clients that got their replies together
ask again within a millisecond; without it the fastest would be answered alone."""
_SEND_TIMEOUT: Final = 10.0
"""Time for a client to take a reply, s."""
_OPEN_TIMEOUT: Final = 3.0
"""Time for a client to say who it is, s. A connection that says nothing is open for so long."""
_PING: Final = 20.0
_LATENCIES: Final = 1000
"""Newest requests whose latencies are kept."""
_INTERNAL_ERROR: Final = 1011
_GOING_AWAY: Final = 1001
_JSON: Final = {"Content-Type": "application/json"}
_LOGGER: Final = logging.getLogger("robot_rl.policy_server")
_LOGGER.addHandler(logging.NullHandler())
_LOGGER.propagate = False


@dataclass(frozen=True)
class Listen:
    """Where a server listens, and who may use it."""

    host: str = "127.0.0.1"
    port: int = 8000
    """0 for any free port."""
    tls: ssl.SSLContext | None = None
    token: str | None = field(default=None, repr=False)
    """What clients send as `Authorization: Api-Key <token>`; None admits all."""


class _Ending(Exception):
    """The server ends before a request is answered."""


@dataclass
class _Waiting:
    """A request that waits for the policy."""

    query: Query
    arrived: float
    reply: "asyncio.Future[dict[str, Any]]"

    def refuse(self, error: Exception) -> None:
        """Let the client's handler raise this, unless it has a reply or is gone."""
        if not self.reply.done():
            self.reply.set_exception(error)


class PolicyServer(ServerThread):
    """Serves a policy from `start` to `close`, in a thread."""

    def __init__(self, inference: Inference, listen: Listen) -> None:
        super().__init__("policy server")
        self._inference, self._listen = inference, listen
        self._welcome = encode(inference.metadata)
        self._clients, self._farewell, self._ending = 0, "", False
        self._answered = self._refused = self._batches = 0
        self._waits: deque[float] = deque(maxlen=_LATENCIES)
        """Seconds from a request's arrival to its reply."""
        self._works: deque[float] = deque(maxlen=_LATENCIES)
        """Seconds of passes through the policy."""
        self._queue: asyncio.Queue[_Waiting] = asyncio.Queue()
        threads = (torch.get_num_threads(),)
        self._worker = ThreadPoolExecutor(1, "policy", torch.set_num_threads, threads)

    def close(self, failure: str = "") -> None:
        """Close all connections; after a `failure` each client is told about it first."""
        self._farewell = failure
        super().close()
        self._worker.shutdown()

    # ---- in the server's thread --------------------------------------------------------------------------

    async def _serve(self) -> None:
        ending, listen = asyncio.Event(), self._listen
        async with serve(
            self._handle,
            listen.host,
            listen.port,
            ssl=listen.tls,
            process_request=self._answer_http,
            compression=None,
            max_size=MAX_MESSAGE,
            max_queue=1,
            open_timeout=_OPEN_TIMEOUT,
            ssl_handshake_timeout=_OPEN_TIMEOUT if listen.tls else None,
            ping_interval=_PING,
            ping_timeout=_PING,
            close_timeout=1.0,
            server_header=None,
            logger=_LOGGER,
        ) as server:
            self._end_by(ending)
            batches = asyncio.create_task(self._answer_batches())
            batches.add_done_callback(lambda _: ending.set())
            self._listening.set_result(next(iter(server.sockets)).getsockname()[1])
            await ending.wait()
            if self._farewell:
                await asyncio.gather(*(_dismiss(socket, self._farewell) for socket in server.connections))
            if batches.done():
                batches.result()
            batches.cancel()

    def _answer_http(self, _: ServerConnection, request: Request) -> Response | None:
        """Answer a plain request; None lets a WebSocket in."""
        if request.path.partition("?")[0] == "/healthz":
            return http_response(HTTPStatus.OK, f"{json.dumps(self._health())}\n".encode(), _JSON)
        token = self._listen.token
        given = request.headers.get("Authorization", "").removeprefix("Api-Key ")
        if token is not None and not hmac.compare_digest(given.encode(), token.encode()):
            return http_response(HTTPStatus.UNAUTHORIZED, b"send Authorization: Api-Key <token>\n")
        # Browsers let any page open WebSockets to any server, but name that page.
        if "Origin" in request.headers:
            return http_response(HTTPStatus.FORBIDDEN, b"this server is not for web pages\n")
        if self._clients >= MAX_CLIENTS:
            full = f"{MAX_CLIENTS} clients are connected already\n"
            return http_response(HTTPStatus.SERVICE_UNAVAILABLE, full.encode())
        return None

    def _health(self) -> dict[str, Any]:
        return {
            "status": "ok",
            "clients": self._clients,
            "answered": self._answered,
            "refused": self._refused,
            "requests_per_batch": round(self._answered / self._batches, 2) if self._batches else 0.0,
            "latency_ms": _percentiles(self._waits),
            "policy_ms": _percentiles(self._works),
        }

    async def _handle(self, socket: ServerConnection) -> None:
        self._clients += 1
        try:
            await socket.send(self._welcome)
            async for frame in socket:
                arrived = time.perf_counter()
                try:
                    answer = await self._answer(frame, arrived)
                except MessageError as error:
                    self._refused += 1
                    answer = str(error)
                except _Ending:
                    # No text: clients ask again when the connection closes, and a text is a final answer.
                    await socket.close(_GOING_AWAY, "the policy server ends")
                    return
                except Exception as error:  # The policy failed; this client is told, as by openpi's server.
                    _LOGGER.exception("inference failed")
                    await _dismiss(socket, f"the policy failed: {type(error).__name__}: {error}")
                    return
                await _send(socket, answer)
        except (ConnectionClosed, TimeoutError):
            pass
        finally:
            self._clients -= 1

    async def _answer(self, frame: str | bytes, arrived: float) -> bytes | str:
        if isinstance(frame, str):
            raise MessageError("send binary messages: an observation as a msgpack map")
        request, check = decode_request(frame), self._inference.check
        # Another server is asked about an instruction that is new to it; other clients do not wait for that.
        query = await asyncio.to_thread(check, request) if self._inference.waits else check(request)
        if self._ending:
            raise _Ending
        waiting = _Waiting(query, arrived, asyncio.get_running_loop().create_future())
        self._queue.put_nowait(waiting)
        reply = await waiting.reply
        total = time.perf_counter() - arrived
        self._waits.append(total)
        self._answered += 1
        return encode({**reply, "server_timing": {"infer_ms": 1e3 * total}})

    async def _answer_batches(self) -> None:
        """Give the policy all that waits, again and again. At the end, what still waits is not answered."""
        batch: list[_Waiting] = []
        try:
            while True:
                batch = [await self._queue.get()]
                with suppress(TimeoutError):
                    async with asyncio.timeout(_GATHER):
                        while len(batch) < min(self._clients, MAX_BATCH):
                            batch.append(await self._queue.get())
                await self._answer_batch(batch)
        finally:
            self._ending = True
            while not self._queue.empty():
                batch.append(self._queue.get_nowait())
            for waiting in batch:
                waiting.refuse(_Ending())

    async def _answer_batch(self, batch: list[_Waiting]) -> None:
        begun = time.perf_counter()
        queries, loop = [waiting.query for waiting in batch], asyncio.get_running_loop()
        try:
            replies = await loop.run_in_executor(self._worker, self._inference.infer, queries)
        except Exception as error:  # Told to each client by `_handle`.
            if len(batch) > 1 and (isinstance(error, PolicyRefused) or not isinstance(error, ServerLost)):
                # One of the requests may be the reason, also where the base is another server's: the others
                # are answered.
                for waiting in batch:
                    await self._answer_batch([waiting])
                return
            for waiting in batch:
                waiting.refuse(error)
            return
        self._works.append(time.perf_counter() - begun)
        self._batches += 1
        for waiting, reply in zip(batch, replies, strict=True):
            if not waiting.reply.done():
                waiting.reply.set_result(reply)


async def _send(socket: ServerConnection, message: str | bytes) -> None:
    """Send, or give up a client that does not read."""
    try:
        await asyncio.wait_for(socket.send(message), _SEND_TIMEOUT)
    except TimeoutError:
        socket.transport.abort()
        raise


async def _dismiss(socket: ServerConnection, why: str) -> None:
    """Tell a client why it is disconnected, as openpi's server does."""
    with suppress(ConnectionClosed, TimeoutError):
        await _send(socket, why)
        await socket.close(_INTERNAL_ERROR, "the policy failed")


def _percentiles(seconds: "deque[float]") -> dict[str, float]:
    if not seconds:
        return {}
    p50, p99 = np.percentile(np.array(seconds), (50, 99))
    return {"p50": round(1e3 * float(p50), 3), "p99": round(1e3 * float(p99), 3)}
