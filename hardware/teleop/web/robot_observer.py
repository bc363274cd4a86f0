"""The page's clients of the robot's server: an observer of its state, and a stop connection."""

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
_INTERVAL: Final = 0.04
"""Polling interval, s."""
_SILENCE_LIMIT: Final = 0.5
"""Time without a state after which it is reported, s."""
_RETRY_AFTER: Final = 0.5
"""Time until reconnecting, s."""
_MAX_VALUES: Final = 16
"""Sensors with more values are not shown."""
_TRIES: Final = 3
"""Attempts of a stop, 1 s each."""


class RobotObserver:
    """Reads the robot's state in a background thread and reconnects when the server restarts."""

    def __init__(self, display: OperatorDisplay, clock: Clock) -> None:
        """Connect.

        Raises:
            RobotError: if there is no robot.
            ValueError: if the address is invalid, or a network address is used without keys.
        """
        self._display, self._clock = display, clock
        self._newest: State | None = None
        self._problem = ""
        self._offset = 0
        self._ending = threading.Event()
        with _client(self._display) as robot:
            self.spec: RobotSpec = robot.spec
        self._thread = threading.Thread(target=self._run, name="robot observer", daemon=True)
        self._thread.start()

    def status(self) -> tuple[str, Arm]:
        """Return the current problem, empty if there is none, and the last known state of the arm."""
        assert self._thread.is_alive() or self._ending.is_set(), "the observer thread has failed"
        problem, state = self._problem, self._newest
        if state is None:
            return problem or "no state received from the robot yet", Arm()
        return problem, Arm(
            mode=state.mode.value,
            fault=state.fault,
            holder=state.lease_holder,
            age_ms=self.age(state.t_sample) / MS,
            position=state.position,
            quaternion=state.quaternion,
            q=state.q,
            gripper=state.gripper.opening if state.gripper else None,
            sensors={name: values for name, values in state.sensors.items() if len(values) <= _MAX_VALUES},
        )

    def age(self, t: int) -> int:
        """Age of a time on the robot's clock, ns."""
        return self._clock.now() + self._offset - t

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
                self._problem = str(error)
                self._ending.wait(_RETRY_AFTER)

    def _follow(self, robot: RobotClient) -> None:
        while not self._ending.wait(_INTERVAL):
            robot.keep_time()
            try:
                state = robot.state(_SILENCE_LIMIT)
            except StaleState as stale:
                self._problem = str(stale)
                continue
            self._offset = robot.clock_offset().offset
            self._newest, self._problem = state, ""


class StopClient:
    """Software e-stop over a dedicated connection. For one thread."""

    def __init__(self, display: OperatorDisplay) -> None:
        self._display = display
        self._client: RobotClient | None = None

    def prepare(self) -> None:
        """Connect in advance, so that a stop is sent at once."""
        self._client = _client(self._display)
        try:
            # Not needed for a stop; it puts the client's name into the log.
            self._client.__enter__()
        except RobotError:
            self._client = _client(self._display)

    def stop(self, reason: str) -> None:
        """Stop the arm.

        Raises:
            RobotError: if the server did not confirm it.
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
