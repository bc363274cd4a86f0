"""What the WebSocket servers share: a thread in which they run, and answers to plain HTTP requests."""

import asyncio
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable
from concurrent.futures import Future
from http import HTTPStatus

from websockets.datastructures import Headers
from websockets.http11 import Response


class ServerThread(ABC):
    """An asyncio server in a thread, from `start` to `close`. Errors in the thread are raised by `check`."""

    def __init__(self, name: str) -> None:
        self._listening: Future[int] = Future()
        """The port; `_serve` sets it."""
        self._failure: BaseException | None = None
        self._end: Callable[[], object] = lambda: None
        """Ends `_serve`, from any thread."""
        self._closing = False
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    def start(self) -> int:
        """Start listening and return the port.

        Raises:
            OSError: if the address is unavailable.
        """
        self._thread.start()
        return self._listening.result()

    def check(self) -> None:
        """Raise the error of the thread, if there is one."""
        if self._failure is not None:
            raise self._failure

    def close(self) -> None:
        """Close all connections."""
        self._closing = True
        self._end()
        self._thread.join()

    def _run(self) -> None:
        try:
            asyncio.run(self._serve())
        except BaseException as error:
            if not self._listening.done():
                self._listening.set_exception(error)
            self._failure = error

    def _end_by(self, ending: asyncio.Event) -> None:
        """Let `close` set this event of the running loop, also if it was called before."""
        loop = asyncio.get_running_loop()
        self._end = lambda: loop.is_closed() or loop.call_soon_threadsafe(ending.set)
        if self._closing:
            ending.set()

    @abstractmethod
    async def _serve(self) -> None:
        """Serve until an event is set, given to `_end_by`."""


def http_response(status: HTTPStatus, body: bytes, more: dict[str, str] | None = None) -> Response:
    """An answer that ends the connection; `more` headers replace these."""
    headers = {"Content-Type": "text/plain", "Connection": "close", "Content-Length": str(len(body))}
    return Response(status.value, status.phrase, Headers({**headers, **(more or {})}), body)
