"""The web page as a teleoperation device: turns browser input into samples."""

import io
import os
import sys
from contextlib import ExitStack
from typing import Self

import segno

from robot_rl.hardware.clock import Clock, MonotonicClock
from robot_rl.hardware.connection import RobotError
from robot_rl.hardware.teleop.device import Controls, DeviceError, Sample
from robot_rl.hardware.teleop.operator_display import OperatorDisplay
from robot_rl.hardware.teleop.web.access import make_access
from robot_rl.hardware.teleop.web.browser_control import BrowserControl
from robot_rl.hardware.teleop.web.robot_observer import RobotObserver
from robot_rl.hardware.teleop.web.server import WebServer
from robot_rl.hardware.teleop.web.settings import WebSettings


class WebDevice:
    """Serves the page while the device is open, and reads the browser that has control.

    The page itself can only observe and stop the robot. All other requests go through the program that reads
    this device.
    """

    def __init__(self, settings: WebSettings, display: OperatorDisplay, clock: Clock | None = None) -> None:
        """Create the device without opening it.

        Args:
            settings: address and certificate of the page.
            display: what the page shows.
            clock: clock of this machine.

        Raises:
            ValueError: if the certificate's files are invalid, or no robot's server is given.
        """
        if not display.address:
            raise ValueError("device=web shows a robot's server and can stop it: give the server's address")
        self._access = make_access(settings)
        self._display = display
        self._clock = clock or MonotonicClock()
        self._control = BrowserControl()
        self._opened = ExitStack()
        self._server: WebServer | None = None
        self.url = ""
        """Link with the token; empty until the device is opened."""

    @property
    def name(self) -> str:
        return "web"

    @property
    def controls(self) -> Controls:
        return (("page", self.url or "its link is printed when it is opened"),)

    def __enter__(self) -> Self:
        display = self._display
        with ExitStack() as opened:
            try:
                observer = RobotObserver(display, self._clock)
            except RobotError as error:
                raise DeviceError(str(error)) from error
            opened.callback(observer.close)
            server = WebServer(self._access, display, self._clock, self._control, observer)
            opened.callback(server.close)
            try:
                self.url = self._access.url(server.start())
            except OSError as error:
                where = f"{self._access.host}:{self._access.port}"
                raise DeviceError(f"the page at {where}: {_describe_error(error)}") from error
            self._server = server
            self._opened = opened.pop_all()
        print(self._invitation(), flush=True)
        return self

    def __exit__(self, *_: object) -> None:
        self._opened.close()

    def read(self) -> Sample | None:
        if self._server is not None:
            self._server.check()
        return self._control.read(self._clock.now())

    def _invitation(self) -> str:
        """The printed link; in a terminal also as a QR code if other machines can connect."""
        lines = [f"open {self.url}"]
        if self._access.tls:
            lines.append(f"and trust this certificate alone, SHA-256 {self._access.fingerprint}")
            if sys.stdout.isatty():
                code = io.StringIO()
                segno.make(self.url).terminal(code, compact=True)
                lines.append(code.getvalue())
        return "\n".join(lines)


def _describe_error(error: OSError) -> str:
    known = error.errno is not None and error.errno > 0
    reason = os.strerror(error.errno or 0) if known else error.strerror
    return f"{(reason or str(error)).lower()}; choose another device.host or device.port"
