"""Web server in a background thread: HTTP for the page, one WebSocket per browser."""

import asyncio
import base64
import hashlib
import itertools
import logging
import re
from concurrent.futures import Future, ThreadPoolExecutor
from http import HTTPStatus
from pathlib import Path
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
from robot_rl.hardware.teleop.web.robot_observer import RobotObserver, StopClient
from robot_rl.hardware.websocket_server import ServerThread, http_response

LINK: Final = "/link"
"""Path of the page's WebSocket."""
_WRONG_HOST: Final = (
    b"this server does not answer to that name: open the link that the program printed, "
    b"or add the name with device.names=[...]\n"
)


class Page:
    """Answers HTTP requests."""

    def __init__(self) -> None:
        text = Path(__file__).with_name("page.html").read_text(encoding="utf-8")
        self._body = text.encode()
        style, script = (_hash(text, tag) for tag in ("style", "script"))
        policy = (
            f"default-src 'none'; script-src {script}; style-src {style}; img-src blob: data:; "
            "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
        )
        self._headers = {
            "Content-Type": "text/html; charset=utf-8",
            "Content-Security-Policy": policy,
            "Cache-Control": "no-store",
            "Referrer-Policy": "no-referrer",
            "X-Content-Type-Options": "nosniff",
            "Cross-Origin-Opener-Policy": "same-origin",
            "Cross-Origin-Resource-Policy": "same-origin",
        }

    def answer(self, request: Request, access: Access, local_address: str) -> Response | None:
        """Answer a request; None if it is the page's own WebSocket request, which is accepted.

        Args:
            request: an untrusted request.
            access: names and scheme of this server.
            local_address: local address at which the request arrived.
        """
        hosts = request.headers.get_all("Host")
        if len(hosts) != 1 or not access.serves(hosts[0], local_address):
            return http_response(HTTPStatus.MISDIRECTED_REQUEST, _WRONG_HOST)
        path = request.path.partition("?")[0]
        if path == "/":
            return http_response(HTTPStatus.OK, self._body, self._headers)
        if path != LINK:
            return http_response(HTTPStatus.NOT_FOUND, b"there is only one page here: /\n")
        # Browsers let any page open WebSockets to any server, but send that page's origin.
        if request.headers.get_all("Origin") != [f"{access.scheme}://{hosts[0]}"]:
            return http_response(HTTPStatus.FORBIDDEN, b"only the page of this server may connect\n")
        return None


def _hash(text: str, tag: str) -> str:
    """CSP hash of the only inline element of this kind."""
    found = re.findall(f"<{tag}>(.*?)</{tag}>", text, re.DOTALL)
    assert len(found) == 1, f"{len(found)} elements {tag}"
    return f"'sha256-{base64.b64encode(hashlib.sha256(found[0].encode()).digest()).decode()}'"


MAX_BROWSERS: Final = 8
"""Largest number of connected browsers."""
CLOSE_WRONG_TOKEN: Final = 4401
CLOSE_FULL: Final = 4429
"""WebSocket close codes, of the range for private use."""
_HELLO_TIMEOUT: Final = 5.0
"""Time for a browser to send its token, s."""
_PING_INTERVAL: Final = 3.0
"""Interval of keep-alive pings and timeout of their answers, s."""
_WRITE_LIMIT: Final = 16_384
"""Unsent bytes per browser above which sending waits."""
_LOGGER: Final = logging.getLogger("robot_rl.web")
_LOGGER.addHandler(logging.NullHandler())
_LOGGER.propagate = False


class WebServer(ServerThread):
    """The page's server."""

    def __init__(
        self,
        access: Access,
        display: OperatorDisplay,
        clock: Clock,
        control: BrowserControl,
        observer: RobotObserver,
    ) -> None:
        super().__init__("web server")
        self._access, self._display, self._clock = access, display, clock
        self._control, self._observer = control, observer
        self._page = Page()
        self._numbers = itertools.count(1)
        self._stop_thread = ThreadPoolExecutor(1, "web stop")
        self._stop_client = StopClient(display)

    def close(self) -> None:
        """Close all connections."""
        super().close()
        self._stop_thread.submit(self._stop_client.close)
        self._stop_thread.shutdown()

    # ---- in the server thread ----------------------------------------------------------------------------

    async def _serve(self) -> None:
        loop, ending = asyncio.get_running_loop(), asyncio.Event()
        cameras = [camera.name for camera in self._observer.spec.cameras]
        await loop.run_in_executor(self._stop_thread, self._stop_client.prepare)
        access = self._access
        with CameraImages(self._display, cameras, self._clock) as images:
            context = PageContext(
                self._clock, self._control, self._observer, images, self._display, self._stop
            )

            async def handle(socket: ServerConnection) -> None:
                try:
                    await self._handle(socket, context)
                except BaseException as error:
                    # The library would only log the error.
                    self._failure = self._failure or (error if isinstance(error, Exception) else None)
                    raise

            async with serve(
                handle,
                "127.0.0.1" if access.host == "localhost" else access.host,
                access.port,
                ssl=access.tls,
                process_request=self._answer,
                compression=None,
                max_size=MAX_MESSAGE,
                write_limit=_WRITE_LIMIT,
                ping_interval=_PING_INTERVAL,
                ping_timeout=_PING_INTERVAL,
                open_timeout=_HELLO_TIMEOUT,
                close_timeout=1.0,
                server_header=None,
                logger=_LOGGER,
            ) as server:
                self._end_by(ending)
                self._listening.set_result(next(iter(server.sockets)).getsockname()[1])
                await ending.wait()

    def _answer(self, connection: ServerConnection, request: Request) -> Response | None:
        return self._page.answer(request, self._access, connection.local_address[0])

    async def _handle(self, socket: ServerConnection, context: PageContext) -> None:
        try:
            async with asyncio.timeout(_HELLO_TIMEOUT):
                hello = decode(await socket.recv())
        except (TimeoutError, ValueError):
            await socket.close(POLICY_VIOLATION, "no hello received")
            return
        except ConnectionClosed:
            return
        if not isinstance(hello, Hello) or not self._access.admits(hello.token):
            await socket.close(CLOSE_WRONG_TOKEN, "wrong token")
        elif len(context.browsers) >= MAX_BROWSERS:
            await socket.close(CLOSE_FULL, f"there are {MAX_BROWSERS} browsers already")
        else:
            name = f"browser {next(self._numbers)} ({socket.remote_address[0]})"
            await BrowserSession(name, socket, context).run()

    def _stop(self, reason: str) -> "Future[str]":
        def stop() -> str:
            try:
                self._stop_client.stop(reason)
            except RobotError as error:
                return str(error)
            return ""

        return self._stop_thread.submit(stop)
