"""Serves the page in a thread of its own: HTTP for the page, one WebSocket for each browser."""

import asyncio
import itertools
import logging
import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Final

from websockets.asyncio.server import ServerConnection, serve
from websockets.exceptions import ConnectionClosed
from websockets.http11 import Request, Response

from robot_rl.hardware.clock import Clock
from robot_rl.hardware.connection import RobotError
from robot_rl.hardware.teleop.operator_display import OperatorDisplay
from robot_rl.hardware.teleop.web.access import Access
from robot_rl.hardware.teleop.web.browser import POLICY_VIOLATION, BrowserSession, PageContext
from robot_rl.hardware.teleop.web.browser_control import BrowserControl
from robot_rl.hardware.teleop.web.camera_images import CameraImages
from robot_rl.hardware.teleop.web.messages import MAX_MESSAGE, Hello, decode
from robot_rl.hardware.teleop.web.page import Page
from robot_rl.hardware.teleop.web.robot_observer import RobotObserver, StopClient

MOST: Final = 8
"""Browsers at a time."""
WRONG_TOKEN: Final = 4401
FULL: Final = 4429
_PATIENCE: Final = 5.0
"""s for a browser to show its token."""
_ALIVE: Final = 3.0
"""s between two questions whether a browser is there, and for its answer."""
_QUEUED: Final = 16_384
"""Bytes for a browser that wait to be sent, above which nothing is made for it."""
_QUIET: Final = logging.getLogger("robot_rl.web")
_QUIET.addHandler(logging.NullHandler())
_QUIET.propagate = False


class WebServer:
    """From `start` to `close`; what goes wrong in its thread is raised by `check`."""

    def __init__(
        self,
        access: Access,
        display: OperatorDisplay,
        clock: Clock,
        control: BrowserControl,
        observer: RobotObserver,
    ) -> None:
        self._access, self._display, self._clock = access, display, clock
        self._control, self._observer = control, observer
        self._page = Page()
        self._numbers = itertools.count(1)
        self._stops = ThreadPoolExecutor(1, "web stop")
        self._line = StopClient(display)
        self._listening: Future[int] = Future()
        self._failure: BaseException | None = None
        self._end: Callable[[], object] = lambda: None
        self._thread = threading.Thread(target=self._run, name="web server", daemon=True)

    def start(self) -> int:
        """Listen; returns the port.

        Raises:
            OSError: the address cannot be had.
        """
        self._thread.start()
        return self._listening.result()

    def check(self) -> None:
        """Raises what has gone wrong, if anything has."""
        if self._failure is not None:
            raise self._failure

    def close(self) -> None:
        """Say goodbye to all browsers."""
        self._end()
        self._thread.join()
        self._stops.submit(self._line.close)
        self._stops.shutdown()

    # ---- in its thread -----------------------------------------------------------------------------------

    def _run(self) -> None:
        try:
            asyncio.run(self._serve())
        except BaseException as error:
            if not self._listening.done():
                self._listening.set_exception(error)
            self._failure = error

    async def _serve(self) -> None:
        loop, ending = asyncio.get_running_loop(), asyncio.Event()
        cameras = [camera.name for camera in self._observer.spec.cameras]
        await loop.run_in_executor(self._stops, self._line.prepare)
        access = self._access
        with CameraImages(self._display, cameras, self._clock) as images:
            context = PageContext(
                self._clock, self._control, self._observer, images, self._display, self._stop
            )

            async def meet(socket: ServerConnection) -> None:
                try:
                    await self._meet(socket, context)
                except BaseException as error:
                    # The library would only log it.
                    self._failure = self._failure or (error if isinstance(error, Exception) else None)
                    raise

            async with serve(
                meet,
                "127.0.0.1" if access.host == "localhost" else access.host,
                access.port,
                ssl=access.tls,
                process_request=self._answer,
                compression=None,
                max_size=MAX_MESSAGE,
                write_limit=_QUEUED,
                ping_interval=_ALIVE,
                ping_timeout=_ALIVE,
                open_timeout=_PATIENCE,
                close_timeout=1.0,
                server_header=None,
                logger=_QUIET,
            ) as server:
                self._end = lambda: loop.is_closed() or loop.call_soon_threadsafe(ending.set)
                self._listening.set_result(next(iter(server.sockets)).getsockname()[1])
                await ending.wait()

    def _answer(self, connection: ServerConnection, request: Request) -> Response | None:
        return self._page.answer(request, self._access, connection.local_address[0])

    async def _meet(self, socket: ServerConnection, context: PageContext) -> None:
        try:
            async with asyncio.timeout(_PATIENCE):
                hello = decode(await socket.recv())
        except (TimeoutError, ValueError):
            await socket.close(POLICY_VIOLATION, "it has not said hello")
            return
        except ConnectionClosed:
            return
        if not isinstance(hello, Hello) or not self._access.admits(hello.token):
            await socket.close(WRONG_TOKEN, "wrong token")
        elif len(context.browsers) >= MOST:
            await socket.close(FULL, f"there are {MOST} browsers already")
        else:
            name = f"browser {next(self._numbers)} ({socket.remote_address[0]})"
            await BrowserSession(name, socket, context).run()

    def _stop(self, reason: str) -> "Future[str]":
        def stop() -> str:
            try:
                self._line.stop(reason)
            except RobotError as error:
                return str(error)
            return ""

        return self._stops.submit(stop)
