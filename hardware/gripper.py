"""Gripper thread: gripper calls may block for a second, and the control loop never waits for them."""

import threading
from collections.abc import Callable
from functools import partial

import msgspec

from robot_rl.hardware.clock import MS, Clock
from robot_rl.hardware.drivers.driver import DriverError, Gripper
from robot_rl.hardware.protocol.messages import Gripped

READ_PERIOD = 50 * MS
"""Interval between readings while idle, ns."""
STOP_PERIOD = 50 * MS
"""Interval between stop calls while a movement continues, ns."""
LONGEST_CALL_S = 5.0
"""Longest call of a gripper, s. Some cannot be read while they move, so a reading may be as old."""
_TOLERANCE = 0.1
"""How far a reading may be beyond the range of openings."""


class GripperMailbox:
    """Holds the newest goal until the gripper is free; older goals are dropped.

    An exception of the gripper is latched in `fault` until `acknowledge`: until then goals are ignored, while
    readings continue if they can. No call except `close` waits for the gripper.
    """

    def __init__(self, gripper: Gripper, clock: Clock, patience: float = LONGEST_CALL_S) -> None:
        """Create without starting; a call of the gripper that takes longer than `patience` [s] is a fault."""
        self._gripper = gripper
        self._clock = clock
        self._patience = patience
        self._calling: tuple[str, int] | None = None
        """The call of the gripper's thread that is running, and when it began [ns]."""
        # Guards all fields below; the threads wait on it for work.
        self._changed = threading.Condition()
        self._goal: float | None = None
        self._waiting: float | None = None
        self._halt = False
        self._moves = 0
        self._moving = False
        self._enders: list[threading.Thread] = []
        """Threads that end the present movement."""
        self._latest: Gripped | None = None
        self._fault = ""
        self._closed = False
        self._thread = threading.Thread(target=self._run, name="gripper", daemon=True)

    def start(self) -> None:
        """Start the thread, after the gripper is connected."""
        self._thread.start()

    def put(self, opening: float) -> None:
        """Set the goal, an opening in [0, 1], in place of a waiting one; the present goal is ignored.

        Raises:
            ValueError: if it is not in [0, 1].
        """
        if not 0 <= opening <= 1:
            raise ValueError(f"a gripper's opening must be in 0 … 1, not {opening}")
        with self._changed:
            if not self._fault and opening != self._goal:
                self._goal = self._waiting = opening
                self._changed.notify_all()

    def stop(self) -> None:
        """Drop the goal and stop; a running movement is ended from a second thread."""
        with self._changed:
            self._goal = self._waiting = None
            self._halt = True
            self._changed.notify_all()
            if self._moving:
                end = partial(self._end_move, self._moves)
                self._enders.append(threading.Thread(target=end, name="gripper stop", daemon=True))
                self._enders[-1].start()

    def latest(self) -> Gripped | None:
        """The newest reading, with the goal of now; None before the first."""
        with self._changed:
            if self._latest is None or self._goal is None:
                return self._latest
            # Some grippers cannot be read while they move: the goal would be known only afterwards.
            return msgspec.structs.replace(self._latest, goal=self._goal)

    @property
    def fault(self) -> str:
        """Text of the latched fault, "" if none."""
        with self._changed:
            if self._calling is not None:
                what, begun = self._calling
                if self._clock.now() - begun > self._patience * 1e9:
                    self._latch(what, f"no answer for {self._patience:g} s")
            return self._fault

    def acknowledge(self) -> None:
        """Clear the fault and accept goals again."""
        with self._changed:
            self._fault = ""

    def close(self) -> None:
        """Stop the gripper and end the thread, after a call that is running. Safe to call twice.

        Raises:
            TimeoutError: if the call does not return; the thread ends with the process.
        """
        self.stop()
        with self._changed:
            self._closed = True
        if self._thread.ident is not None:
            self._thread.join(self._patience)
        if self._thread.is_alive():
            raise TimeoutError(f"the gripper has not answered for {self._patience:g} s")

    def _run(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(self._has_work, READ_PERIOD * 1e-9)
                halt, self._halt = self._halt, False
                goal, self._waiting = self._waiting, None
                self._moving = goal is not None
                self._moves += self._moving
                closed = self._closed
            if halt:
                self._call("stop", self._gripper.stop)
            if closed:
                return
            if goal is not None:
                self._call(f"move to {goal:.3f}", partial(self._gripper.move, goal))
                with self._changed:
                    self._moving = False
                    enders, self._enders = self._enders, []
                    self._changed.notify_all()
                # Their last stop may still be under way, and would end the next movement.
                for ender in enders:
                    self._call("stop", ender.join)
            self._call("read", self._read)

    def _has_work(self) -> bool:
        return self._closed or self._halt or self._waiting is not None

    def _end_move(self, number: int) -> None:
        """Stop a movement, repeatedly: the first call may come before the movement began."""
        while True:
            self._attempt("stop", self._gripper.stop)
            with self._changed:
                if self._changed.wait_for(
                    lambda: not self._moving or self._moves != number, STOP_PERIOD * 1e-9
                ):
                    return

    def _read(self) -> None:
        # Time before the call: the reading is never older than its time stamp.
        begun = self._clock.now()
        opening = self._gripper.read()
        if not -_TOLERANCE <= opening <= 1 + _TOLERANCE:
            raise DriverError(f"the opening is {opening}: it must be in 0 … 1")
        with self._changed:
            goal = opening if self._goal is None else self._goal
            self._latest = Gripped(opening=opening, t=begun, goal=goal)

    def _call(self, what: str, call: Callable[[], None]) -> None:
        """Make a call of this object's thread, which may hang."""
        with self._changed:
            self._calling = what, self._clock.now()
        self._attempt(what, call)
        with self._changed:
            self._calling = None

    def _attempt(self, what: str, call: Callable[[], None]) -> None:
        try:
            call()
        # All exceptions: if the thread died, the gripper would silently ignore all goals.
        except Exception as error:
            with self._changed:
                self._latch(what, str(error) or type(error).__name__)

    def _latch(self, what: str, why: str) -> None:
        """Latch a fault and forget the goals; needs the lock."""
        self._goal = self._waiting = None
        if not self._fault:
            self._fault = f"{what}: {why}"
