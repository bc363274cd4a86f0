"""One browser: what it sends, and what it is sent, at its own pace."""

import asyncio
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Final

from websockets.asyncio.server import ServerConnection
from websockets.exceptions import ConnectionClosed

from robot_rl.hardware.clock import MS, Clock
from robot_rl.hardware.teleop.device import STALE_DISENGAGE_MS, STALE_HOLD_MS
from robot_rl.hardware.teleop.operator_display import OperatorDisplay
from robot_rl.hardware.teleop.web import messages as web
from robot_rl.hardware.teleop.web.browser_clock import BrowserClock
from robot_rl.hardware.teleop.web.browser_control import BrowserControl
from robot_rl.hardware.teleop.web.camera_images import CameraImages
from robot_rl.hardware.teleop.web.robot_observer import RobotObserver

_VIEWS: Final = 1 / 15
"""s between two."""
_IMAGES: Final = 1 / 30
"""s between two of all cameras together, at the least."""
_WAITING: Final = 16
"""Pings without an answer that are remembered."""
POLICY_VIOLATION: Final = 1008
"""Close code for what the page never sends."""


@dataclass
class PageContext:
    """What all browsers share."""

    clock: Clock
    control: BrowserControl
    observer: RobotObserver
    images: CameraImages
    display: OperatorDisplay
    stop: Callable[[str], "Future[str]"]
    """Stops the arm; its result is why that is not confirmed, empty if it is."""
    browsers: "dict[str, BrowserSession]" = field(default_factory=dict)


class BrowserSession:
    """One that has shown its token."""

    def __init__(self, name: str, socket: ServerConnection, context: PageContext) -> None:
        self.name = name
        self._socket, self._context = socket, context
        self._clock = BrowserClock()
        self._pings: dict[int, int] = {}
        self._seen = 0
        self._drawn = asyncio.Event()
        self._drawn.set()
        self._tasks = asyncio.TaskGroup()

    async def run(self) -> None:
        """Until it is gone; then it controls no more."""
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
                for part in (self._listen, self._ping, self._show, self._show_images):
                    tasks.create_task(part())
        except* ConnectionClosed:
            pass
        finally:
            del context.browsers[self.name]
            context.control.leave(self.name, context.clock.now())

    async def tell(self, text: str, *, bad: bool = False) -> None:
        """A line for the person in front of it, if somebody still is."""
        with suppress(ConnectionClosed):
            await self._send(web.Notice(text=text, bad=bad))

    # ---- what it sends -----------------------------------------------------------------------------------

    async def _listen(self) -> None:
        while True:
            text = await self._socket.recv()
            now = self._context.clock.now()
            try:
                message = web.decode(text)
                answer = self._hear(message, now)
            except ValueError as error:
                await self._socket.close(POLICY_VIOLATION, str(error)[:100])
                continue
            if answer:
                # Not waited for: a stop may come next.
                self._tasks.create_task(self.tell(answer, bad=True))

    def _hear(self, message: web.FromBrowser, now: int) -> str:
        """Do what it says; returns why that was refused, empty if it was not."""
        control, clock = self._context.control, self._clock
        match message:
            case web.Move():
                self._seen = message.n
                control.move(self.name, message, clock.made(message.at, now), now)
            case web.Press():
                return control.press(self.name, message.mark, clock.made(message.at, now), now)
            case web.Pong():
                sent = self._pings.pop(message.id, None)
                if sent is not None:
                    clock.answered(sent, message.at, now)
            case web.Shown():
                self._drawn.set()
            case web.StopNow():
                # Under way before anything else, and whatever becomes of this browser.
                stopping = self._context.stop(f"{self.name} on the web page")
                self._tasks.create_task(self._tell_of(stopping))
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

    async def _tell_of(self, stopping: "Future[str]") -> None:
        trouble = await asyncio.shield(asyncio.wrap_future(stopping))
        text = f"STOP was not confirmed, use the button on the arm: {trouble}" if trouble else "stopped"
        for browser in list(self._context.browsers.values()):
            self._tasks.create_task(browser.tell(f"{self.name}: {text}", bad=True))

    # ---- what it is sent ---------------------------------------------------------------------------------

    async def _ping(self) -> None:
        number = 0
        while True:
            number += 1
            self._pings[number] = self._context.clock.now()
            self._pings.pop(number - _WAITING, None)
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
            await asyncio.sleep(_VIEWS)

    def _view(self) -> web.View:
        context = self._context
        trouble, arm = context.observer.look()
        holder, made = context.control.holder, context.control.made
        return web.View(
            robot=context.observer.spec.name,
            trouble=trouble,
            arm=arm,
            program=context.display.program,
            control="you" if holder == self.name else "other" if holder else "nobody",
            controller=holder,
            browsers=len(context.browsers),
            seen=self._seen,
            sample_ms=None if made is None else (context.clock.now() - made) / MS,
            round_trip_ms=None if self._clock.round_trip is None else self._clock.round_trip / MS,
        )

    async def _show_images(self) -> None:
        """The newest of each camera in turn, once the one before has been drawn: a slow line gets fewer."""
        images = self._context.images
        sent = dict.fromkeys(images.cameras, -1)
        while True:
            await self._drawn.wait()
            updated = images.updated
            # Those that were served longest ago come first.
            for camera in list(sent):
                newest = images.newest(camera)
                made = await images.jpeg(camera) if newest and newest.number != sent[camera] else None
                if made:
                    break
            else:
                await updated.wait()
                continue
            frame, jpeg = made
            del sent[camera]
            sent[camera] = frame.number
            self._drawn.clear()
            index = images.cameras.index(camera)
            age = self._context.observer.age(frame.t_capture)
            await self._socket.send(web.encode_picture(index, frame.number, age, jpeg))
            await asyncio.sleep(_IMAGES)

    async def _send(self, message: web.ToBrowser) -> None:
        await self._socket.send(web.encode(message), text=True)
