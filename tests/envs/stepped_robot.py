"""A small arm behind real sockets whose time passes only while a client waits: it is deterministic."""

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import zmq

from robot_rl.hardware.clock import MS, SteppedClock
from robot_rl.hardware.core.core import CoreSettings, RobotCore
from robot_rl.hardware.protocol.clock_sync import boot_id
from robot_rl.hardware.protocol.codec import Stamper, encode
from robot_rl.hardware.protocol.endpoints import parse
from robot_rl.hardware.protocol.messages import State
from robot_rl.hardware.protocol.sockets import ServerSockets, reply
from robot_rl.hardware.request_router import RequestRouter
from robot_rl.hardware.spec import Latency
from tests.hardware.core.small_arm import PERIOD, SmallArm

SESSION = "session"


class TickingClock(SteppedClock):
    """A clock whose waits run the robot's ticks until then."""

    def __init__(self) -> None:
        super().__init__()
        self.tick: Callable[[], None] = lambda: None
        self._due = self.now() + PERIOD
        self._one_at_a_time = threading.RLock()

    def sleep_until(self, deadline: int) -> None:
        with self._one_at_a_time:
            while self._due <= deadline:
                super().sleep_until(self._due)
                self._due += PERIOD
                self.tick()
            super().sleep_until(deadline)


class SteppedRobot:
    """Answers in a thread, at once; `seen` are the states of all ticks, `shows` are called at each."""

    def __init__(self, directory: Path, latency: Latency | None = None, **limits: object) -> None:
        self.address = f"ipc://{directory}"
        self.clock = TickingClock()
        self.arm = SmallArm(self.clock, "joint", first_linear=0.1, **limits)
        settings = CoreSettings(lease_ms=1000, boot_id=boot_id(), latency=latency)
        self.core = RobotCore(self.arm, settings, self.clock, SESSION)
        self.seen: list[State] = []
        self.shows: list[Callable[[State], None]] = []
        self.images_sent: dict[str, int] = {}
        """Time stamp of each camera's last image."""
        self._router = RequestRouter(self.core, Stamper(SESSION, self.clock), self.clock)
        self._context = zmq.Context()
        self._sockets = ServerSockets(self._context, parse(self.address))
        self._asked = [self._sockets.bind("ctrl"), self._sockets.bind("cmd")]
        self._states, self.images = self._sockets.bind("state"), self._sockets.bind("image")
        self._lock = threading.Lock()
        self._closing = threading.Event()
        self.core.open()
        self.clock.tick = self._tick
        self._thread = threading.Thread(target=self._answer)
        self._thread.start()

    def __enter__(self) -> "SteppedRobot":
        return self

    def __exit__(self, *_: object) -> None:
        self._closing.set()
        self._thread.join()
        self._sockets.close()
        self._context.destroy(linger=0)

    def wait(self, ms: float) -> None:
        """Let so much time pass."""
        self.clock.sleep_until(self.clock.now() + round(ms * MS))

    @contextmanager
    def running(self) -> Iterator[None]:
        """Context in which time passes by itself, for code that waits without this clock.

        No faster than real time: what a client keeps of the last second covers a pause of its thread.
        """
        done = threading.Event()

        def run() -> None:
            while not done.is_set():
                self.wait(PERIOD / MS)
                time.sleep(PERIOD * 1e-9)

        thread = threading.Thread(target=run)
        thread.start()
        try:
            yield
        finally:
            done.set()
            thread.join()

    def _tick(self) -> None:
        with self._lock:
            state = self.core.tick()
        self._states.send(encode(state))
        self.seen.append(state)
        for show in self.shows:
            show(state)

    def _answer(self) -> None:
        while not self._closing.is_set():
            zmq.select(self._asked, [], [], 0.02)
            for router in self._asked:
                while incoming := self._sockets.receive(router):
                    with self._lock:
                        answer = self._router.answer(incoming)
                    reply(router, incoming.route, answer)
