"""The Franka hand through franky."""

import threading
from collections.abc import Callable
from typing import Any

from robot_rl.hardware.drivers.base import DriverError
from robot_rl.hardware.spec import GripperSpec

# Below this opening a command means to close, onto whatever is in between.
_CLOSED = 0.02


class FrankaGripper:
    """Its calls block while the fingers move, which takes up to two seconds.

    It knows its opening only once it was homed, in Desk or by `franky.Gripper.homing`.
    """

    def __init__(self, franky: Any, host: str, spec: GripperSpec) -> None:
        self._franky = franky
        self._host = host
        self._spec = spec
        self._stopped = threading.Event()
        self._connection: Any = None
        self._width = spec.width

    def connect(self) -> None:
        """Find the hand.

        Raises:
            DriverError: there is none, or it was not homed for fingers that open as far as the spec says.
        """
        # It talks to one client only; a second would wait for ever.
        self.disconnect()
        try:
            self._connection = self._franky.Gripper(self._host)
        except Exception as error:
            raise DriverError(f"cannot connect to the hand at {self._host}: {error}") from error
        widest = self._state().max_width
        if widest < 0.95 * self._spec.width:
            raise DriverError(
                f"the hand opens {widest:.3f} m by its own count, not {self._spec.width} m: home it in Desk"
            )
        self._width = min(widest, self._spec.width)

    def disconnect(self) -> None:
        """Leave the hand as it is."""
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
        # Something is in between, or is meant to be: hold it, however wide it is.
        failure = self._tried(self._hand().grasp, 0.0, spec.speed, spec.force, spec.width, spec.width)
        if failure is not None:
            raise DriverError(failure)

    def read(self) -> float:
        return min(1.0, max(0.0, float(self._state().width) / self._width))

    def stop(self) -> None:
        """Blocks while libfranka waits for a command's end: it hears a second one only now and then."""
        self._stopped.set()
        try:
            self._hand().stop()
        except Exception as error:
            raise DriverError(f"the hand did not stop: {error}") from error

    def _tried(self, command: Callable[..., bool], *arguments: float) -> str | None:
        """Why the hand did not do it, None where it did or was stopped on the way."""
        failure = "it did not get there"
        try:
            done = command(*arguments)
        except Exception as error:
            done, failure = False, str(error)
        return None if done or self._stopped.is_set() else f"the hand did not move: {failure}"

    def _hand(self) -> Any:
        if self._connection is None:
            raise DriverError("the hand is not connected")
        return self._connection

    def _state(self) -> Any:
        try:
            return self._hand().state
        except Exception as error:
            raise DriverError(f"no state from the hand: {error}") from error
