"""What the page shows of the robot and the one thing it asks of it: an observer's client, and its stop."""

import threading
from typing import Final

from robot_rl.hardware.client import RobotClient, StaleState
from robot_rl.hardware.clock import MS, Clock
from robot_rl.hardware.connection import NoAnswer, RobotError, ServerChanged
from robot_rl.hardware.protocol.messages import State
from robot_rl.hardware.spec import RobotSpec
from robot_rl.hardware.teleop.operator_display import OperatorDisplay
from robot_rl.hardware.teleop.web.messages import Arm

NAME: Final = "web page"
_EVERY: Final = 0.04
"""s between two looks."""
_SILENT: Final = 0.5
"""s without a state that are said."""
_AGAIN: Final = 0.5
"""s until it connects anew."""
_SHOWN: Final = 16
"""Numbers of a sensor that has more are not for people."""
_TRIES: Final = 3
"""Of a stop, each of a second."""


class RobotObserver:
    """Follows the robot in a thread of its own, and comes back when the server does."""

    def __init__(self, display: OperatorDisplay, clock: Clock) -> None:
        """Connect.

        Raises:
            RobotError: there is no robot.
            ValueError: an address that is none, or a network without keys.
        """
        self._display, self._clock = display, clock
        self._newest: State | None = None
        self._trouble = ""
        self._ahead = 0
        self._ending = threading.Event()
        with _client(self._display) as robot:
            self.spec: RobotSpec = robot.spec
        self._thread = threading.Thread(target=self._run, name="robot watch", daemon=True)
        self._thread.start()

    def look(self) -> tuple[str, Arm]:
        """What is wrong, empty if nothing is, and the arm as it was seen last."""
        assert self._thread.is_alive() or self._ending.is_set(), "the watch has failed"
        trouble, state = self._trouble, self._newest
        if state is None:
            return trouble or "the robot has said nothing yet", Arm()
        return trouble, Arm(
            mode=state.mode.value,
            fault=state.fault,
            holder=state.lease_holder,
            age_ms=self.age(state.t_sample) / MS,
            position=state.position,
            quaternion=state.quaternion,
            q=state.q,
            gripper=state.gripper.opening if state.gripper else None,
            sensors={name: values for name, values in state.sensors.items() if len(values) <= _SHOWN},
        )

    def age(self, t: int) -> int:
        """How long ago a time on the robot's clock was, ns."""
        return self._clock.now() + self._ahead - t

    def close(self) -> None:
        """Safe to call twice."""
        self._ending.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._ending.is_set():
            try:
                with _client(self._display) as robot:
                    self._follow(robot)
            except RobotError as error:
                self._trouble = str(error)
                self._ending.wait(_AGAIN)

    def _follow(self, robot: RobotClient) -> None:
        while not self._ending.wait(_EVERY):
            robot.keep_time()
            try:
                state = robot.state(_SILENT)
            except StaleState as stale:
                self._trouble = str(stale)
                continue
            self._ahead = robot.clock_offset().offset
            self._newest, self._trouble = state, ""


class StopClient:
    """The software e-stop over a connection that waits for nothing else. For one thread."""

    def __init__(self, display: OperatorDisplay) -> None:
        self._display = display
        self._client: RobotClient | None = None

    def prepare(self) -> None:
        """Connect, so that a stop goes at once."""
        self._client = _client(self._display)
        try:
            # Not needed for a stop; the log has a name that way.
            self._client.__enter__()
        except RobotError:
            self._client = _client(self._display)

    def stop(self, reason: str) -> None:
        """Stop the arm.

        Raises:
            RobotError: nobody has confirmed it.
        """
        for left in reversed(range(_TRIES)):
            self._client = self._client or _client(self._display)
            try:
                self._client.stop(reason)
            except (NoAnswer, ServerChanged):
                self.close()
                if not left:
                    raise
            else:
                return

    def close(self) -> None:
        """Safe to call twice."""
        client, self._client = self._client, None
        if client:
            client.close()


def _client(display: OperatorDisplay) -> RobotClient:
    return RobotClient(display.address, NAME, keys=display.keys, insecure=display.insecure)
