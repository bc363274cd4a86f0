"""Franka hand through franky."""

import threading
from collections.abc import Callable
from typing import Any

from robot_rl.hardware.drivers.driver import DriverError
from robot_rl.hardware.spec import GripperSpec

# Below this opening a command means to close and grasp.
_CLOSED = 0.02


class FrankaGripper:
    """The Franka hand. Calls block while the fingers move, up to two seconds.

    The hand has to be homed once, in Desk or by `franky.Gripper.homing`, to know its opening.
    """

    def __init__(self, franky: Any, host: str, spec: GripperSpec) -> None:
        self._franky = franky
        self._host = host
        self._spec = spec
        self._stopped = threading.Event()
        self._connection: Any = None
        self._width = spec.width

    def connect(self) -> None:
        """Connect the hand.

        Raises:
            DriverError: if there is none, or it is not homed for fingers as wide as the spec says.
        """
        # The hand accepts one client only; a second connection would wait forever.
        self.disconnect()
        try:
            self._connection = self._franky.Gripper(self._host)
        except Exception as error:
            raise DriverError(f"cannot connect to the hand at {self._host}: {error}") from error
        widest = self._state().max_width
        if widest < 0.95 * self._spec.width:
            raise DriverError(
                f"the hand reports an opening of {widest:.3f} m, not {self._spec.width} m: home it in Desk"
            )
        self._width = min(widest, self._spec.width)

    def disconnect(self) -> None:
        """Disconnect without moving the hand."""
        self._connection = None

    def move(self, opening: float) -> None:
        if not 0 <= opening <= 1:
            raise DriverError(f"an opening is in 0 … 1, not {opening}")
        self._stopped.clear()
        spec, width = self._spec, opening * self._width
        closing = width < self._state().width
        if opening > _CLOSED:
            failure = self._tried(self._hand().move, width, spec.speed)
            if failure is None:
                return
            if not closing:
                raise DriverError(failure)
        # There is or may be an object between the fingers: grasp it, at any width.
        failure = self._tried(self._hand().grasp, 0.0, spec.speed, spec.force, spec.width, spec.width)
        if failure is not None:
            raise DriverError(failure)

    def read(self) -> float:
        return min(1.0, max(0.0, float(self._state().width) / self._width))

    def stop(self) -> None:
        """Stop the hand. May block while libfranka waits for a running command, which delays a second one."""
        self._stopped.set()
        try:
            self._hand().stop()
        except Exception as error:
            raise DriverError(f"the hand did not stop: {error}") from error

    def _tried(self, command: Callable[..., bool], *arguments: float) -> str | None:
        """Run a command of the hand; returns why it failed, None if it succeeded or was stopped."""
        failure = "it did not reach the opening"
        try:
            done = command(*arguments)
        except Exception as error:
            done, failure = False, str(error)
        return None if done or self._stopped.is_set() else f"the hand did not move: {failure}"

    def _hand(self) -> Any:
        # Read once: the control thread may disconnect meanwhile.
        connection = self._connection
        if connection is None:
            raise DriverError("the hand is not connected")
        return connection

    def _state(self) -> Any:
        try:
            return self._hand().state
        except Exception as error:
            raise DriverError(f"no state from the hand: {error}") from error
