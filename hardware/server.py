"""The robot's server: one thread that answers between ticks and moves the arm at each tick."""

import gc
import queue
import select
import threading
import uuid
from collections.abc import Callable, Sequence
from contextlib import ExitStack

import zmq

from robot_rl.hardware.cameras.camera_set import CameraSet
from robot_rl.hardware.cameras.settings import CameraSettings
from robot_rl.hardware.clock import MS, MonotonicClock
from robot_rl.hardware.core.core import CoreSettings, RobotCore
from robot_rl.hardware.drivers.base import Driver
from robot_rl.hardware.estop import EstopThread
from robot_rl.hardware.gripper import GripperMailbox
from robot_rl.hardware.lateness import TickLateness
from robot_rl.hardware.protocol.codec import Stamper, encode
from robot_rl.hardware.protocol.endpoints import Address
from robot_rl.hardware.protocol.messages import State
from robot_rl.hardware.protocol.security import ServerKeys
from robot_rl.hardware.protocol.sockets import Incoming, ServerSockets, reply
from robot_rl.hardware.realtime import CONTROL, message_context, realtime_priority
from robot_rl.hardware.request_router import RequestRouter

REST = 0.01
"""Below this speed a joint is at rest, rad/s."""
_BRAKE = 3000 * MS
"""Longest time that the arm is waited for at the end, ns."""
_AT_TICK = 16
"""Messages that are still answered when the tick is due: a flood does not keep the arm from its tick."""
_LAST_WORDS = 200
"""ms that the last states and events are given to leave."""

Show = Callable[[State], None]


class RobotServer:
    """One arm at one address. `run` serves until `close_soon`, from the thread that made it.

    Whichever way it ends, the arm comes to rest and is held before the driver is closed.
    """

    def __init__(
        self,
        driver: Driver,
        address: Address,
        settings: CoreSettings,
        *,
        keys: ServerKeys | None = None,
        insecure: bool = False,
        cameras: Sequence[CameraSettings] = (),
        shows: Sequence[Show] = (),
    ) -> None:
        """Take the address; the driver stays closed until `run`.

        Args:
            driver: of the arm; its clock has to be the monotonic one.
            address: where clients find it.
            settings: of the core.
            keys: required where other machines can reach the address.
            insecure: serve a network without keys.
            cameras: whose images are published.
            shows: given every state; they must return at once.

        Raises:
            ValueError: another server is there, keys are missing, or the spec cannot be.
        """
        self.session = uuid.uuid4().hex
        self.name = driver.spec.name
        self._driver = driver
        self._clock = MonotonicClock()
        self._shows = tuple(shows)
        self._stamp = Stamper(self.session, self._clock)
        self._period = round(1e9 / driver.spec.rate)
        self._lateness = TickLateness(self._period)
        self._closing = threading.Event()
        self._hurry = False
        self._brake_until: int | None = None
        self._last_setpoint: tuple[float, ...] | None = None
        self._published = 0
        self._happened: queue.SimpleQueue[tuple[str, str]] = queue.SimpleQueue()
        self._gripper = GripperMailbox(driver.gripper, self._clock) if driver.gripper else None
        self.core = RobotCore(driver, settings, self._clock, self.session, self._gripper)
        self._router = RequestRouter(self.core, self._stamp, self._clock)
        self._ended = ExitStack()
        """What is undone at the end, the last first: the arm before everything else."""
        with ExitStack() as taken:
            context = taken.enter_context(message_context())
            taken.callback(context.destroy, linger=_LAST_WORDS)
            self._sockets = ServerSockets(context, address, keys, insecure=insecure)
            taken.callback(self._sockets.close)
            self._cmd, self._ctrl = self._sockets.bind("cmd"), self._sockets.bind("ctrl")
            self._states, self._events = self._sockets.bind("state"), self._sockets.bind("event")
            self._commands = self._sockets.bind("command")
            for socket in (self._states, self._events, self._commands):
                socket.linger = _LAST_WORDS
            self._estop = EstopThread(self._sockets, driver, self.core.stop_queue, self._router, self._stamp)
            taken.callback(self._estop.close)
            self._cameras = CameraSet(
                cameras, self._sockets.bind("image"), lambda what, text: self._happened.put((what, text))
            )
            taken.callback(self._cameras.close)
            self._ended = taken.pop_all()
        # A descriptor tells of what is new only: everything is taken before it is waited on.
        self._descriptors = [socket.fileno() for socket in (self._cmd, self._ctrl)]

    def close_soon(self) -> None:
        """Let the arm come to rest and end `run`; told twice, at once. From any thread or signal handler."""
        if self._closing.is_set():
            self._hurry = True
        self._closing.set()

    def run(self) -> None:
        """Serve.

        Raises:
            DriverError: the arm cannot be connected, or did not take its last stop.
        """
        with self._ended:
            if self._gripper:
                self._ended.callback(self._gripper.close)
            self._ended.callback(self._say_goodbye)
            self._ended.callback(self.core.close)
            self.core.open()
            if self._gripper:
                self._gripper.start()
            self._cameras.start()
            self._estop.start()
            # What lives as long as the server need not be searched by the garbage collector again and again.
            gc.collect()
            gc.freeze()
            self._ended.callback(gc.unfreeze)
            with realtime_priority(CONTROL):
                self._loop()

    def _loop(self) -> None:
        due = self._clock.now()
        while True:
            self._answer_until(due)
            began = self._clock.now()
            self._lateness.add(began - due)
            state = self._tick()
            if self._closing.is_set() and self._rests(state):
                return
            due += self._period
            # After a late tick the next is left out rather than made too soon: the arm would have to jump.
            if (short := began + self._period // 2 - due) > 0:
                due += -(-short // self._period) * self._period

    def _answer_until(self, due: int) -> None:
        """Answer what comes until `due`, and what has come by then."""
        at_tick = _AT_TICK
        while True:
            answered = self._answer(self._cmd)
            answered = self._answer(self._ctrl) or answered
            left = due - self._clock.now()
            if left <= 0:
                at_tick -= 1
                if not answered or not at_tick:
                    return
            elif not answered:
                select.select(self._descriptors, (), (), left * 1e-9)

    def _answer(self, router: "zmq.Socket[bytes]") -> bool:
        incoming: Incoming | None = self._sockets.receive(router)
        if incoming is None:
            return False
        reply(router, incoming.route, self._router.answer(incoming))
        # After the answer: who records does not make who commands wait.
        while self.core.commanded:
            self._commands.send(encode(self.core.commanded.popleft()))
        return True

    def _tick(self) -> State:
        if not self._estop.alive:
            raise RuntimeError("the e-stop's thread has ended: nobody could stop the arm any more")
        limit = self._sockets.limit
        if not limit.alive:
            raise RuntimeError("connections are no longer limited: the next could end this process")
        while limit.changes:
            self.core.events.append("connections", limit.changes.popleft())
        if limit.exhausted:
            self.core.fail("descriptors", "hardly any file descriptor is left: end clients that nobody needs")
        while not self._happened.empty():
            self.core.events.append(*self._happened.get())
        for refusal in self._sockets.refused:
            key = refusal.public or "no key"
            self._router.log_refusal(f"{refusal.address} was not let in with {key}", "", "role")
        self.core.loop = self._lateness.report()
        state = self.core.tick(lambda: self._answer(self._cmd))
        self._publish(state)
        return state

    def _publish(self, state: State) -> None:
        self._states.send(encode(state))
        if self.core.events.newest > self._published:
            for event in self.core.events.since(self._published):
                self._events.send(encode(event))
            self._published = self.core.events.newest
        for show in self._shows:
            show(state)

    def _rests(self, state: State) -> bool:
        """Follow nothing any more, brake the arm within its limits, and say when it stands."""
        now = self._clock.now()
        if self._brake_until is None:
            self._brake_until = now + _BRAKE
            self.core.begin_shutdown()
            return False
        stands = state.setpoint == self._last_setpoint
        self._last_setpoint = state.setpoint
        slow = bool(state.dq) and max(map(abs, state.dq)) < REST
        return (stands and slow) or self._hurry or now > self._brake_until

    def _say_goodbye(self) -> None:
        self._publish(self.core.tick())
