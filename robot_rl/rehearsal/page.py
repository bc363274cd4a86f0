"""Client of the web page of `device=web`: what a browser sends and is shown, without a browser."""

import threading
import time
from contextlib import closing, suppress
from typing import Final
from urllib.parse import urlsplit

import msgspec
from websockets.exceptions import ConnectionClosed, WebSocketException
from websockets.sync.client import connect
from websockets.typing import Origin

from robot_rl.hardware.clock import MS
from robot_rl.hardware.teleop.web.messages import (
    Asked,
    FromBrowser,
    Hello,
    Move,
    Ping,
    Pong,
    Press,
    Take,
    ToBrowser,
    View,
    encode,
)
from robot_rl.hardware.teleop.web.server import LINK

_decoder: Final = msgspec.json.Decoder(ToBrowser)
_TIMEOUT: Final = 5.0
_STILL: Final = (0.0,) * 6


class PageLost(Exception):
    """The page has gone: its program has ended, or does not answer."""


class Page:
    """An open page, which asks for control. Messages are received in a background thread."""

    def __init__(self, url: str) -> None:
        """Open the printed link.

        Raises:
            PageLost: if it cannot be opened.
        """
        link = urlsplit(url)
        origin = Origin(f"{link.scheme}://{link.netloc}")
        try:
            self._socket = connect(f"ws://{link.netloc}{LINK}", origin=origin, open_timeout=_TIMEOUT)
        except (OSError, WebSocketException) as error:
            raise PageLost(str(error)) from error
        self.view: View | None = None
        """What the page shows; None before the first view."""
        self._moves = 0
        self._send(Hello(token=link.fragment))
        self._send(Take())
        self._receiver = threading.Thread(target=self._receive, name="page", daemon=True)
        self._receiver.start()

    def move(self, motion: tuple[float, ...] = _STILL, gripper: float | None = None, *, on: bool) -> None:
        """Send what is held; call it about 30 times per second.

        Raises:
            PageLost: if the page has gone.
        """
        self._moves += 1
        self._send(Move(n=self._moves, at=_now(), on=on, motion=motion, gripper=gripper))  # type: ignore[arg-type]

    def press(self, mark: Asked) -> None:
        """Press a button; raises PageLost if the page has gone."""
        self._send(Press(at=_now(), mark=mark))

    def close(self) -> None:
        with suppress(WebSocketException, OSError):
            self._socket.close()
        self._receiver.join(_TIMEOUT)

    def _receive(self) -> None:
        # Closed with this thread, so that nobody acts on a view that does not change any more.
        with closing(self._socket), suppress(ConnectionClosed):
            for text in self._socket:
                if isinstance(text, bytes):
                    continue  # an image
                message = _decoder.decode(text)
                if isinstance(message, Ping):
                    self._socket.send(encode(Pong(id=message.id, at=_now())), text=True)
                elif isinstance(message, View):
                    self.view = message

    def _send(self, message: FromBrowser) -> None:
        try:
            self._socket.send(encode(message), text=True)
        except (ConnectionClosed, OSError) as error:
            raise PageLost(str(error)) from error


def _now() -> float:
    """A browser's `performance.now()`, ms."""
    return time.monotonic_ns() / MS
