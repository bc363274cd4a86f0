"""Control loop of teleoperation: sends the device's input to the arm at 50 Hz."""

from collections.abc import Callable
from typing import Final

from robot_rl.hardware.client import RobotClient, StaleState, insist_on_stop
from robot_rl.hardware.clock import MS, Clock
from robot_rl.hardware.connection import NoAnswer, RequestRefused
from robot_rl.hardware.protocol.messages import Mode, State
from robot_rl.hardware.settle_detector import SettleDetector
from robot_rl.hardware.teleop.commander import Commander
from robot_rl.hardware.teleop.device import STALE_HOLD_MS, Device, DeviceError, LatchingClutch, Mark, Sample
from robot_rl.hardware.teleop.engagement import ClutchState
from robot_rl.hardware.teleop.operator_display import OperatorDisplay
from robot_rl.hardware.teleop.stream import StreamEnded
from robot_rl.hardware.teleop.teleoperator import Teleoperator
from robot_rl.robot.teleop.episodes import TeleopEpisodes
from robot_rl.robot.teleop.screen import TerminalScreen

PERIOD: Final = 20 * MS
_REST_TIMEOUT: Final = 2000 * MS
"""Time for the arm to come to rest, ns."""
_SERVER_LOST: Final = 5.0
"""Time without a state after which the server counts as lost, s."""


class TeleopSession:
    """Teleoperation of one arm with one device. Runs in the main thread."""

    def __init__(
        self,
        robot: RobotClient,
        device: Device,
        teleoperator: Teleoperator,
        episodes: TeleopEpisodes,
        screen: TerminalScreen,
        display: OperatorDisplay,
        clock: Clock,
    ) -> None:
        self._robot, self._device, self._teleoperator = robot, device, teleoperator
        self._episodes, self._screen, self._display, self._clock = episodes, screen, display, clock
        self._commander = Commander(robot, teleoperator)
        self._quit = False
        self._device_error = ""
        self._last_topic = ""
        self._shown_fault = ""
        """Fault of the arm that the operator has seen."""

    def run(self, stop: Callable[[], bool]) -> str:
        """Run until the operator quits or `stop` returns True; then the server holds the arm.

        Returns:
            Why the session had to end, "" if it ended normally.

        Raises:
            RobotError: if the server is lost.
        """
        due = self._clock.now()
        ended = ""
        try:
            while not (stop() or self._quit or ended):
                ended = self._step()
                due = max(due + PERIOD, self._clock.now())
                self._clock.sleep_until(due)
        finally:
            self._commander.release()
        if not self._come_to_rest():
            return ended or "no answer from the robot: check that the arm is at rest"
        return ended

    def _come_to_rest(self) -> bool:
        """Wait until the arm is at rest. Returns whether any state was received."""
        settled, end, heard = SettleDetector(), self._clock.now() + _REST_TIMEOUT, False
        while self._clock.now() < end:
            state = self._state()
            if state is not None:
                heard = True
                if settled.update(state):
                    break
            self._clock.sleep_until(self._clock.now() + PERIOD)
        return heard

    def _step(self) -> str:
        try:
            sample = self._device.read()
        except StreamEnded as over:
            self._screen.say(str(over))
            self._quit = True
            return ""
        except DeviceError as error:
            self._teleoperator.lapse(str(error))
            self._commander.release()
            if self._device_error:
                return self._device_error
            self._device_error = str(error)
            self._screen.say(f"{error}; the arm is held")
            return ""
        marks = sample.marks if sample else ()
        for mark in sorted(marks, key=lambda mark: mark != "stop"):
            # Whoever stops the arm has to look at it before arming it again.
            if not (mark == "arm" and "stop" in marks):
                self._handle_mark(mark)
        state = self._state()
        if state is None:
            return ""
        self._follow(sample, state)
        if self._episodes.watch(state):
            self._hold(_ENDED)
        self._open_clutch(sample)
        self._report(state)
        return self._episodes.failure

    def _state(self) -> State | None:
        """Newest state; None if it is stale, in which case nothing is commanded."""
        try:
            return self._robot.state(STALE_HOLD_MS * 1e-3)
        except StaleState as stale:
            if stale.age > _SERVER_LOST:
                raise
            self._hold(str(stale))
            self._screen.show(str(stale))
            return None

    def _follow(self, sample: Sample | None, state: State) -> None:
        # The sample's age is measured now, since reading the state may have waited.
        target = self._teleoperator.update(sample, state, self._clock.now())
        if target is not None and state.mode in _NOT_READY:
            self._teleoperator.lapse(_NOT_READY[state.mode])
            target = None
        self._commander.follow(target, state)

    def _hold(self, why: str) -> None:
        self._teleoperator.lapse(why)
        self._commander.release()

    def _open_clutch(self, sample: Sample | None) -> None:
        """After a lapse, open a clutch that stays engaged, so that the next press engages it."""
        lapsed = self._teleoperator.state is ClutchState.LAPSED
        if lapsed and sample is not None and sample.enable and isinstance(self._device, LatchingClutch):
            self._device.release_clutch()

    def _handle_mark(self, mark: Mark) -> None:
        """Handle a mark."""
        try:
            if mark == "stop":
                # Nothing is commanded any more, even if the robot does not answer.
                self._teleoperator.lapse("stopped")
                insist_on_stop(self._robot.stop, f"the operator at the {self._device.name}")
            elif mark == "arm":
                self._arm()
            elif mark == "disarm":
                self._hold("")
                self._robot.disarm()
            elif mark == "home":
                self._home()
            elif mark == "begin" and self._commander.homing:
                # This motion has no commands: a dataset would say that the arm is to stand still.
                self._screen.say("begin: the arm is going home")
            elif mark == "quit":
                self._quit = self._episodes.may_quit()
            elif self._episodes.mark(mark):
                self._hold(_ENDED)
        except (RequestRefused, NoAnswer) as error:
            self._screen.say(f"{mark}: {error}")

    def _arm(self) -> None:
        state = self._robot.sample()
        if state.mode is Mode.FAULT:
            if state.fault != self._shown_fault:
                # The key was pressed before the fault was shown.
                self._screen.say(f"arm: {state.fault}: look at it, then press a again")
                return
            self._robot.acknowledge(
                f"the operator at the {self._device.name} has looked at: {state.fault}"[:500]
            )
            self._screen.say(f"acknowledged: {state.fault}")
        self._robot.arm()

    def _home(self) -> None:
        if self._episodes.open:
            # This motion has no commands: a dataset would say that the arm is to stand still.
            self._screen.say("home: end the episode first")
        elif self._teleoperator.state is ClutchState.ENGAGED:
            self._commander.go_home()
        else:
            self._screen.say("home: engage the clutch first; releasing it stops the motion")

    def _report(self, state: State) -> None:
        self._shown_fault = state.fault
        notice = self._device_error or self._commander.refused or self._teleoperator.notice
        # Only the part before a colon is printed once; changing details after it go to the status line.
        topic = notice.partition(":")[0]
        if topic != self._last_topic:
            self._screen.say(notice)
        self._last_topic = topic
        parts = [f"{state.mode}" + (f" ({state.fault}): a acknowledges it" if state.fault else "")]
        parts.append("going home" if self._commander.homing else f"clutch {self._teleoperator.state}")
        if self._commander.clipped:
            parts.append(f"at the limit {', '.join(self._commander.clipped)}")
        self._screen.show("; ".join(filter(None, [*parts, notice, self._episodes.line])))
        self._display.program = self._episodes.program(state.mode, notice)


_ENDED: Final = "the episode has ended: press the clutch again"
_NOT_READY: Final = {
    Mode.DISCONNECTED: "there is no arm",
    Mode.IDLE: "the arm is not armed: a arms it",
    Mode.FAULT: "the arm has a fault: a acknowledges it and arms again",
    Mode.PAUSED: "the arm is paused: resume it where it was paused",
}
