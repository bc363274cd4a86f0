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
from robot_rl.hardware.teleop.board import Board
from robot_rl.hardware.teleop.device import STALE_DISENGAGE_MS, STALE_HOLD_MS
from robot_rl.hardware.teleop.web import messages as web
from robot_rl.hardware.teleop.web.browser_clock import BrowserClock
from robot_rl.hardware.teleop.web.pictures import Pictures
from robot_rl.hardware.teleop.web.robot_watch import RobotWatch
from robot_rl.hardware.teleop.web.seat import Seat

_VIEWS: Final = 1 / 15
"""s between two."""
_IMAGES: Final = 1 / 30
"""s between two of all cameras together, at the least."""
_WAITING: Final = 16
"""Pings without an answer that are remembered."""
RUDE: Final = 1008
"""Close code for what the page never sends."""


@dataclass
class House:
    """What all browsers share."""

    clock: Clock
    seat: Seat
    watch: RobotWatch
    pictures: Pictures
    board: Board
    stop: Callable[[str], "Future[str]"]
    """Stops the arm; its result is why that is not confirmed, empty if it is."""
    browsers: "dict[str, Browser]" = field(default_factory=dict)


class Browser:
    """One that has shown its token."""

    def __init__(self, name: str, socket: ServerConnection, house: House) -> None:
        self.name = name
        self._socket, self._house = socket, house
        self._clock = BrowserClock()
        self._pings: dict[int, int] = {}
        self._seen = 0
        self._drawn = asyncio.Event()
        self._drawn.set()
        self._tasks = asyncio.TaskGroup()

    async def run(self) -> None:
        """Until it is gone; then it controls no more."""
        house = self._house
        house.browsers[self.name] = self
        try:
            await self._send(
                web.Welcome(
                    you=self.name,
                    cameras=house.pictures.cameras,
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
            del house.browsers[self.name]
            house.seat.leave(self.name, house.clock.now())

    async def tell(self, text: str, *, bad: bool = False) -> None:
        """A line for the person in front of it, if somebody still is."""
        with suppress(ConnectionClosed):
            await self._send(web.Notice(text=text, bad=bad))

    # ---- what it sends -----------------------------------------------------------------------------------

    async def _listen(self) -> None:
        while True:
            text = await self._socket.recv()
            now = self._house.clock.now()
            try:
                message = web.decode(text)
                answer = self._hear(message, now)
            except ValueError as error:
                await self._socket.close(RUDE, str(error)[:100])
                continue
            if answer:
                # Not waited for: a stop may come next.
                self._tasks.create_task(self.tell(answer, bad=True))

    def _hear(self, message: web.FromBrowser, now: int) -> str:
        """Do what it says; returns why that was refused, empty if it was not."""
        seat, clock = self._house.seat, self._clock
        match message:
            case web.Move():
                self._seen = message.n
                seat.move(self.name, message, clock.made(message.at, now), now)
            case web.Press():
                return seat.press(self.name, message.mark, clock.made(message.at, now), now)
            case web.Pong():
                sent = self._pings.pop(message.id, None)
                if sent is not None:
                    clock.answered(sent, message.at, now)
            case web.Shown():
                self._drawn.set()
            case web.StopNow():
                # Under way before anything else, and whatever becomes of this browser.
                stopping = self._house.stop(f"{self.name} on the web page")
                self._tasks.create_task(self._tell_of(stopping))
            case web.Take():
                return self._take(message, now)
            case web.Leave():
                seat.leave(self.name, now)
            case web.Hello():
                raise ValueError("hello was said already")
        return ""

    def _take(self, message: web.Take, now: int) -> str:
        before = self._house.seat.holder
        if not self._house.seat.take(self.name, now, over=message.over):
            return f"{before} controls: take over from it, or wait"
        other = self._house.browsers.get(before)
        if other is not None and other is not self:
            self._tasks.create_task(other.tell(f"{self.name} has taken over", bad=True))
        return ""

    async def _tell_of(self, stopping: "Future[str]") -> None:
        trouble = await asyncio.shield(asyncio.wrap_future(stopping))
        text = f"STOP was not confirmed, use the button on the arm: {trouble}" if trouble else "stopped"
        for browser in list(self._house.browsers.values()):
            self._tasks.create_task(browser.tell(f"{self.name}: {text}", bad=True))

    # ---- what it is sent ---------------------------------------------------------------------------------

    async def _ping(self) -> None:
        number = 0
        while True:
            number += 1
            self._pings[number] = self._house.clock.now()
            self._pings.pop(number - _WAITING, None)
            await self._send(web.Ping(id=number))
            await asyncio.sleep(self._clock.interval * 1e-9)

    async def _show(self) -> None:
        board = self._house.board
        said = board.lines[-1][0] if board.lines else 0
        while True:
            await self._send(self._view())
            for number, line in board.lines:
                if number > said:
                    said = number
                    await self.tell(line)
            await asyncio.sleep(_VIEWS)

    def _view(self) -> web.View:
        house = self._house
        trouble, arm = house.watch.look()
        holder, made = house.seat.holder, house.seat.made
        return web.View(
            robot=house.watch.spec.name,
            trouble=trouble,
            arm=arm,
            program=house.board.program,
            control="you" if holder == self.name else "other" if holder else "nobody",
            controller=holder,
            browsers=len(house.browsers),
            seen=self._seen,
            sample_ms=None if made is None else (house.clock.now() - made) / MS,
            round_trip_ms=None if self._clock.round_trip is None else self._clock.round_trip / MS,
        )

    async def _show_images(self) -> None:
        """The newest of each camera in turn, once the one before has been drawn: a slow line gets fewer."""
        pictures = self._house.pictures
        sent = dict.fromkeys(pictures.cameras, -1)
        while True:
            await self._drawn.wait()
            came = pictures.came
            # Those that were served longest ago come first.
            for camera in list(sent):
                newest = pictures.newest(camera)
                made = await pictures.jpeg(camera) if newest and newest.number != sent[camera] else None
                if made:
                    break
            else:
                await came.wait()
                continue
            frame, jpeg = made
            del sent[camera]
            sent[camera] = frame.number
            self._drawn.clear()
            index = pictures.cameras.index(camera)
            age = self._house.watch.age(frame.t_capture)
            await self._socket.send(web.encode_picture(index, frame.number, age, jpeg))
            await asyncio.sleep(_IMAGES)

    async def _send(self, message: web.ToBrowser) -> None:
        await self._socket.send(web.encode(message), text=True)
