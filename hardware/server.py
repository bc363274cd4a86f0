"""Robot server: one thread that handles requests between ticks and moves the arm at each tick."""

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
from robot_rl.hardware.drivers.driver import Driver
from robot_rl.hardware.estop import EstopThread
from robot_rl.hardware.gripper import GripperMailbox
from robot_rl.hardware.protocol.codec import Stamper, encode
from robot_rl.hardware.protocol.endpoints import Address
from robot_rl.hardware.protocol.messages import State
from robot_rl.hardware.protocol.security import ServerKeys
from robot_rl.hardware.protocol.sockets import Incoming, ServerSockets, reply
from robot_rl.hardware.realtime import CONTROL, TickLateness, message_context, realtime_priority
from robot_rl.hardware.request_router import RequestRouter
from robot_rl.hardware.spec import REST

_BRAKE_TIMEOUT = 3000 * MS
"""Maximum wait for the arm to come to rest at shutdown, ns."""
_MAX_OVERDUE_ANSWERS = 16
"""Rounds in which a message of each socket is still answered when the tick is due, so that a flood does not
delay it."""
_LINGER = 200
"""Time for the last states and events to be sent at shutdown, ms."""

StateCallback = Callable[[State], None]


class RobotServer:
    """Serves one arm at one address. `run` blocks until `close_soon`; call it from the creating thread.

    However it ends, the arm comes to rest and is held before the driver is closed.
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
        state_callbacks: Sequence[StateCallback] = (),
    ) -> None:
        """Claim the address; the driver stays closed until `run`.

        Args:
            driver: of the arm; it must use the monotonic clock.
            address: address for clients.
            settings: settings of the core.
            keys: required if other machines can reach the address.
            insecure: serve a network without keys.
            cameras: cameras whose images are published.
            state_callbacks: called with every state; they must return at once.

        Raises:
            ValueError: if another server is there, keys are missing or the spec is invalid.
        """
        self.session = uuid.uuid4().hex
        self.name = driver.spec.name
        self._driver = driver
        self._clock = MonotonicClock()
        self._state_callbacks = tuple(state_callbacks)
        self._stamp = Stamper(self.session, self._clock)
        self._period = round(1e9 / driver.spec.rate)
        self._lateness = TickLateness(self._period)
        self._closing = threading.Event()
        self._hurry = False
        self._brake_until: int | None = None
        self.at_rest = False
        """Whether the arm came to rest before the server ended."""
        self._last_setpoint: tuple[float, ...] | None = None
        self._published = 0
        self._camera_events: queue.SimpleQueue[tuple[str, str]] = queue.SimpleQueue()
        self._gripper = GripperMailbox(driver.gripper, self._clock) if driver.gripper else None
        self.core = RobotCore(driver, settings, self._clock, self.session, self._gripper)
        self._router = RequestRouter(self.core, self._stamp, self._clock)
        self._cleanup = self._bind(address, keys, insecure, cameras)
        """Cleanup in reverse order: the arm first."""
        # ZMQ's descriptors are edge-triggered: all messages are received before waiting on them.
        self._descriptors = [socket.fileno() for socket in (self._cmd, self._ctrl)]

    def close_soon(self) -> None:
        """Let the arm come to rest and end `run`; a second call ends it at once. Thread- and signal-safe."""
        if self._closing.is_set():
            self._hurry = True
        self._closing.set()

    def run(self) -> None:
        """Connect the arm and serve until `close_soon`.

        Raises:
            DriverError: if the arm cannot be connected, or did not accept its last stop.
        """
        with self._cleanup:
            if self._gripper:
                self._cleanup.callback(self._gripper.close)
            self._cleanup.callback(self._publish_last_state)
            self._cleanup.callback(self.core.close)
            self.core.open()
            if self._gripper:
                self._gripper.start()
            self._cameras.start()
            self._estop.start()
            # Exempt long-lived objects from garbage collection, which would delay ticks.
            gc.collect()
            gc.freeze()
            self._cleanup.callback(gc.unfreeze)
            with realtime_priority(CONTROL):
                self._loop()

    def _bind(
        self, address: Address, keys: ServerKeys | None, insecure: bool, cameras: Sequence[CameraSettings]
    ) -> ExitStack:
        """Claim the address: create the sockets and the threads that use them; returns their cleanup."""
        with ExitStack() as stack:
            context = stack.enter_context(message_context())
            stack.callback(context.destroy, linger=_LINGER)
            self._sockets = ServerSockets(context, address, keys, insecure=insecure)
            stack.callback(self._sockets.close)
            self._cmd, self._ctrl = self._sockets.bind("cmd"), self._sockets.bind("ctrl")
            self._states, self._events = self._sockets.bind("state"), self._sockets.bind("event")
            self._commands = self._sockets.bind("command")
            for socket in (self._states, self._events, self._commands):
                socket.linger = _LINGER
            stop_queue = self.core.stop_queue
            self._estop = EstopThread(self._sockets, self._driver, stop_queue, self._router, self._stamp)
            stack.callback(self._estop.close)
            self._cameras = CameraSet(
                cameras, self._sockets.bind("image"), lambda what, text: self._camera_events.put((what, text))
            )
            stack.callback(self._cameras.close)
            return stack.pop_all()

    def _loop(self) -> None:
        due = self._clock.now()
        while True:
            self._answer_until(due)
            began = self._clock.now()
            self._lateness.add(began - due)
            state = self._tick()
            if self._closing.is_set() and self._has_come_to_rest(state):
                return
            due += self._period
            # After a late tick the next one is skipped rather than made early: the arm would have to jump.
            if (short := began + self._period // 2 - due) > 0:
                due += -(-short // self._period) * self._period

    def _answer_until(self, due: int) -> None:
        """Answer messages that arrive until `due`, and those that are waiting by then."""
        overdue_left = _MAX_OVERDUE_ANSWERS
        while True:
            answered = self._answer(self._cmd)
            answered = self._answer(self._ctrl) or answered
            left = due - self._clock.now()
            if left <= 0:
                overdue_left -= 1
                if not answered or not overdue_left:
                    return
            elif not answered:
                select.select(self._descriptors, (), (), left * 1e-9)

    def _answer(self, router: "zmq.Socket[bytes]") -> bool:
        incoming: Incoming | None = self._sockets.receive(router)
        if incoming is None:
            return False
        reply(router, incoming.route, self._router.answer(incoming))
        # After the answer: recorders must not delay the commanding client.
        while self.core.commanded:
            self._commands.send(encode(self.core.commanded.popleft()))
        return True

    def _tick(self) -> State:
        if not self._estop.alive:
            raise RuntimeError("the e-stop thread has ended: the arm could not be stopped any more")
        limit = self._sockets.limit
        if not limit.alive:
            raise RuntimeError("connections are no longer limited: the next one could abort this process")
        while limit.changes:
            self.core.events.append("connections", limit.changes.popleft())
        if limit.exhausted:
            self.core.fail("descriptors", "hardly any file descriptor is left: end unused clients")
        while not self._camera_events.empty():
            self.core.events.append(*self._camera_events.get())
        for rejected in self._sockets.rejected:
            key = rejected.public or "no key"
            self._router.log_refusal(f"{rejected.address} was rejected with {key}", "", "role")
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
        for callback in self._state_callbacks:
            callback(state)

    def _has_come_to_rest(self, state: State) -> bool:
        """Brake the arm within its limits. Returns whether it is at rest or the time is up."""
        now = self._clock.now()
        if self._brake_until is None:
            self._brake_until = now + _BRAKE_TIMEOUT
            self.core.begin_shutdown()
            return False
        settled = state.setpoint == self._last_setpoint
        self._last_setpoint = state.setpoint
        slow = bool(state.dq) and max(map(abs, state.dq)) < REST
        self.at_rest = settled and slow
        return self.at_rest or self._hurry or now > self._brake_until

    def _publish_last_state(self) -> None:
        self._publish(self.core.tick())
