"""Session of one connected browser: receives its messages and sends views and images at its pace."""

import asyncio
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Final

from websockets.asyncio.server import ServerConnection
from websockets.exceptions import ConnectionClosed

from robot_rl.hardware.clock import MS, Clock
from robot_rl.hardware.protocol.clock_sync import ClockSync
from robot_rl.hardware.teleop.device import STALE_DISENGAGE_MS, STALE_HOLD_MS
from robot_rl.hardware.teleop.operator_display import OperatorDisplay
from robot_rl.hardware.teleop.web import messages as web
from robot_rl.hardware.teleop.web.browser_control import BrowserControl
from robot_rl.hardware.teleop.web.camera_images import CameraImages
from robot_rl.hardware.teleop.web.robot_observer import RobotObserver

_RESOLUTION: Final = MS
"""Upper bound on the rounding of a browser's clock, ns (unless it is set to resist fingerprinting)."""
_MAX_LEAD: Final = 20 * MS
"""A time stamp later than its arrival by more than this came from a clock that has jumped, ns."""


_VIEW_INTERVAL: Final = 1 / 15
"""Interval of views, s."""
_IMAGE_INTERVAL: Final = 1 / 30
"""Shortest interval of images of all cameras together, s."""
_MAX_PINGS: Final = 16
"""Largest number of unanswered pings to remember."""
POLICY_VIOLATION: Final = 1008
"""WebSocket close code for messages that the page never sends."""


class BrowserClock:
    """Estimates one browser's `performance.now()` (ms) from its answers to pings.

    Only the round-trip time is known, not the delay of one message. So of all possible times of an event, the
    earliest is used.
    """

    def __init__(self) -> None:
        self._sync = ClockSync()
        self.round_trip: int | None = None
        """Round-trip time of the last ping, ns."""

    @property
    def interval(self) -> int:
        """Time until the next ping, ns."""
        return self._sync.interval

    def add_ping(self, sent: int, at: float, received: int) -> None:
        """Add a ping: sent and received on this machine's clock [ns], answered at the browser's `at` [ms]."""
        self.round_trip = received - sent
        there = round(at * MS)
        self._sync.add(sent - _RESOLUTION, there, there, received + _RESOLUTION)

    def to_local(self, at: float, received: int) -> int | None:
        """Earliest time that the browser's `at` can correspond to, ns; None while its clock is unknown."""
        if not self._sync.ready:
            return None
        earliest = self._sync.to_local(round(at * MS)) - self._sync.estimate(received).bound
        return min(earliest, received) if earliest - received <= _MAX_LEAD else None


@dataclass
class PageContext:
    """Objects shared by all browser sessions."""

    clock: Clock
    control: BrowserControl
    observer: RobotObserver
    images: CameraImages
    display: OperatorDisplay
    stop: Callable[[str], "Future[str]"]
    """Stops the arm. The result says why the stop is unconfirmed, empty if it is confirmed."""
    browsers: "dict[str, BrowserSession]" = field(default_factory=dict)


class BrowserSession:
    """Session of a browser that has presented the token."""

    def __init__(self, name: str, socket: ServerConnection, context: PageContext) -> None:
        self.name = name
        self._socket, self._context = socket, context
        self._clock = BrowserClock()
        self._pings: dict[int, int] = {}
        self._last_move = 0
        self._drawn = asyncio.Event()
        self._drawn.set()
        self._tasks = asyncio.TaskGroup()

    async def run(self) -> None:
        """Serve the browser until it disconnects, then end its control."""
        context = self._context
        context.browsers[self.name] = self
        try:
            await self._send(
                web.Welcome(
                    you=self.name,
                    cameras=context.images.cameras,
                    stale_ms=STALE_HOLD_MS,
                    disengage_ms=STALE_DISENGAGE_MS,
                )
            )
            async with self._tasks as tasks:
                for part in (self._receive_messages, self._ping, self._show, self._show_images):
                    tasks.create_task(part())
        except* ConnectionClosed:
            pass
        finally:
            del context.browsers[self.name]
            context.control.leave(self.name, context.clock.now())

    async def tell(self, text: str, *, bad: bool = False) -> None:
        """Show a message in the browser, if it is still connected."""
        with suppress(ConnectionClosed):
            await self._send(web.Notice(text=text, bad=bad))

    # ---- receiving ---------------------------------------------------------------------------------------

    async def _receive_messages(self) -> None:
        while True:
            text = await self._socket.recv()
            now = self._context.clock.now()
            try:
                message = web.decode(text)
                answer = self._handle(message, now)
            except ValueError as error:
                await self._socket.close(POLICY_VIOLATION, str(error)[:100])
                continue
            if answer:
                # Sent in the background: the next message may be a stop.
                self._tasks.create_task(self.tell(answer, bad=True))

    def _handle(self, message: web.FromBrowser, now: int) -> str:
        """Handle a message; return why it was refused, empty if it was accepted."""
        control, clock = self._context.control, self._clock
        match message:
            case web.Move():
                self._last_move = message.n
                control.move(self.name, message, clock.to_local(message.at, now), now)
            case web.Press():
                return control.press(self.name, message.mark, clock.to_local(message.at, now), now)
            case web.Pong():
                sent = self._pings.pop(message.id, None)
                if sent is not None:
                    clock.add_ping(sent, message.at, now)
            case web.Shown():
                self._drawn.set()
            case web.StopNow():
                # Started first, and completed even if this browser disconnects.
                stopping = self._context.stop(f"{self.name} on the web page")
                self._tasks.create_task(self._report_stop(stopping))
            case web.Take():
                return self._take(message, now)
            case web.Leave():
                control.leave(self.name, now)
            case web.Hello():
                raise ValueError("hello was said already")
        return ""

    def _take(self, message: web.Take, now: int) -> str:
        before = self._context.control.holder
        if not self._context.control.take(self.name, now, over=message.over):
            return f"{before} controls: take over from it, or wait"
        other = self._context.browsers.get(before)
        if other is not None and other is not self:
            self._tasks.create_task(other.tell(f"{self.name} has taken over", bad=True))
        return ""

    async def _report_stop(self, stopping: "Future[str]") -> None:
        problem = await asyncio.shield(asyncio.wrap_future(stopping))
        text = f"STOP was not confirmed, use the button on the arm: {problem}" if problem else "stopped"
        for browser in list(self._context.browsers.values()):
            self._tasks.create_task(browser.tell(f"{self.name}: {text}", bad=True))

    # ---- sending -----------------------------------------------------------------------------------------

    async def _ping(self) -> None:
        number = 0
        while True:
            number += 1
            self._pings[number] = self._context.clock.now()
            self._pings.pop(number - _MAX_PINGS, None)
            await self._send(web.Ping(id=number))
            await asyncio.sleep(self._clock.interval * 1e-9)

    async def _show(self) -> None:
        display = self._context.display
        said = display.lines[-1][0] if display.lines else 0
        while True:
            await self._send(self._view())
            for number, line in display.lines:
                if number > said:
                    said = number
                    await self.tell(line)
            await asyncio.sleep(_VIEW_INTERVAL)

    def _view(self) -> web.View:
        context = self._context
        problem, arm = context.observer.status()
        holder, made_at = context.control.holder, context.control.made_at
        return web.View(
            robot=context.observer.spec.name,
            trouble=problem,
            arm=arm,
            program=context.display.program,
            control="you" if holder == self.name else "other" if holder else "nobody",
            controller=holder,
            browsers=len(context.browsers),
            seen=self._last_move,
            sample_ms=None if made_at is None else (context.clock.now() - made_at) / MS,
            round_trip_ms=None if self._clock.round_trip is None else self._clock.round_trip / MS,
        )

    async def _show_images(self) -> None:
        """Send the newest image of each camera in turn, each after the last was drawn: no queue builds up."""
        images = self._context.images
        sent = dict.fromkeys(images.cameras, -1)
        while True:
            await self._drawn.wait()
            updated = images.updated
            # Least recently sent cameras first.
            for camera in list(sent):
                newest = images.newest(camera)
                encoded = await images.jpeg(camera) if newest and newest.number != sent[camera] else None
                if encoded:
                    break
            else:
                await updated.wait()
                continue
            frame, jpeg = encoded
            del sent[camera]
            sent[camera] = frame.number
            self._drawn.clear()
            index = images.cameras.index(camera)
            age = self._context.observer.age(frame.t_capture)
            await self._socket.send(web.encode_image_message(index, frame.number, age, jpeg))
            await asyncio.sleep(_IMAGE_INTERVAL)

    async def _send(self, message: web.ToBrowser) -> None:
        await self._socket.send(web.encode(message), text=True)
