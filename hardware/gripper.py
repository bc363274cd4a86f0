"""A gripper in a thread of its own: its calls may take a second, and the arm never waits for them."""

import threading
from collections.abc import Callable
from functools import partial

from robot_rl.hardware.clock import MS, Clock
from robot_rl.hardware.drivers.base import Gripper
from robot_rl.hardware.protocol.messages import Gripped

READ_PERIOD = 50 * MS
"""Between two readings while there is nothing to do, ns."""
STOP_PERIOD = 50 * MS
"""Between two calls to stop a movement that goes on, ns."""


class GripperMailbox:
    """The newest goal waits here until the gripper is free for it; older ones are never carried out.

    What the gripper raises becomes `fault` and stays so until `acknowledge`: until then goals are not
    taken, while readings go on where they can. No call but `close` waits for the gripper.
    """

    def __init__(self, gripper: Gripper, clock: Clock) -> None:
        self._gripper = gripper
        self._clock = clock
        # Guards all that follows; the threads wait on it for something to do.
        self._changed = threading.Condition()
        self._goal: float | None = None
        self._waiting: float | None = None
        self._halt = False
        self._moves = 0
        self._moving = False
        self._latest: Gripped | None = None
        self._fault = ""
        self._closed = False
        self._thread = threading.Thread(target=self._run, name="gripper", daemon=True)

    def start(self) -> None:
        """Begin to read and to move: the gripper is connected."""
        self._thread.start()

    def put(self, opening: float) -> None:
        """Take a goal in [0, 1] in place of the one that waits; the goal that it has already is no new one.

        Raises:
            ValueError: it is not in [0, 1].
        """
        if not 0 <= opening <= 1:
            raise ValueError(f"a gripper's opening is in 0 … 1, not {opening}")
        with self._changed:
            if not self._fault and opening != self._goal:
                self._goal = self._waiting = opening
                self._changed.notify_all()

    def stop(self) -> None:
        """Forget the goal and stay as it is; a movement that goes on is ended from a second thread."""
        with self._changed:
            self._goal = self._waiting = None
            self._halt = True
            self._changed.notify_all()
            if self._moving:
                end = partial(self._end_move, self._moves)
                threading.Thread(target=end, name="gripper stop", daemon=True).start()

    def latest(self) -> Gripped | None:
        """The newest reading, with the time from which it is; None before the first."""
        with self._changed:
            return self._latest

    @property
    def fault(self) -> str:
        """What went wrong, "" while nothing has."""
        with self._changed:
            return self._fault

    def acknowledge(self) -> None:
        """Take goals again after a fault."""
        with self._changed:
            self._fault = ""

    def close(self, timeout: float = 5.0) -> None:
        """End the thread; the gripper stays as it is. Safe to call twice.

        Args:
            timeout: longest time to wait for a call of the gripper's that has begun, s.

        Raises:
            TimeoutError: the call goes on; the thread ends with the process.
        """
        self.stop()
        with self._changed:
            self._closed = True
        if self._thread.ident is not None:
            self._thread.join(timeout)
        if self._thread.is_alive():
            raise TimeoutError(f"the gripper has not answered for {timeout:g} s")

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
                self._attempt("stop", self._gripper.stop)
            if closed:
                return
            if goal is not None:
                self._attempt(f"move to {goal:.3f}", partial(self._gripper.move, goal))
                with self._changed:
                    self._moving = False
                    self._changed.notify_all()
            self._attempt("read", self._read)

    def _has_work(self) -> bool:
        return self._closed or self._halt or self._waiting is not None

    def _end_move(self, number: int) -> None:
        """Stop a movement, again and again: the first call may have come before the movement began."""
        while True:
            self._attempt("stop", self._gripper.stop)
            with self._changed:
                if self._changed.wait_for(
                    lambda: not self._moving or self._moves != number, STOP_PERIOD * 1e-9
                ):
                    return

    def _read(self) -> None:
        # From before the call: its answer is never older than it says.
        begun = self._clock.now()
        opening = self._gripper.read()
        with self._changed:
            goal = opening if self._goal is None else self._goal
            self._latest = Gripped(opening=opening, t=begun, goal=goal)

    def _attempt(self, what: str, call: Callable[[], None]) -> None:
        try:
            call()
        # Whatever it is: a thread that dies in silence would leave a gripper that obeys nobody.
        except Exception as error:
            with self._changed:
                self._goal = self._waiting = None
                if not self._fault:
                    self._fault = f"{what}: {str(error) or type(error).__name__}"
