"""The loop of a teleoperation: what the device says goes to the arm, fifty times a second."""

from collections.abc import Callable
from typing import Final

from robot_rl.hardware.client import RobotClient, SettleDetector, StaleState
from robot_rl.hardware.clock import MS, Clock
from robot_rl.hardware.connection import NoAnswer, RequestRefused
from robot_rl.hardware.protocol.messages import Mode, State
from robot_rl.hardware.teleop.commander import Commander
from robot_rl.hardware.teleop.device import STALE_HOLD_MS, Device, DeviceError, LatchingClutch, Mark, Sample
from robot_rl.hardware.teleop.engagement import ClutchState
from robot_rl.hardware.teleop.operator_display import OperatorDisplay
from robot_rl.hardware.teleop.stream import StreamEnded
from robot_rl.hardware.teleop.teleoperator import Teleoperator
from robot_rl.robot.teleop.episodes import TeleopEpisodes
from robot_rl.robot.teleop.screen import TerminalScreen

PERIOD: Final = 20 * MS
_BRAKING: Final = 2000 * MS
"""That the arm is given to come to rest."""
_LOST: Final = 5.0
"""s without a state after which the server is given up."""


class TeleopSession:
    """One operator, one device, one arm; the main thread's."""

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
        self._gone = ""
        self._told = ""

    def run(self, stop: Callable[[], bool]) -> str:
        """Until the operator quits or `stop` says so; the arm is let go then, and held.

        Returns:
            why it had to end, "" where nobody was forced to.

        Raises:
            RobotError: the server is lost.
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
            return ended or "nothing is heard of the robot: look whether the arm is at rest"
        return ended

    def _come_to_rest(self) -> bool:
        """Whether anything was heard of the arm meanwhile."""
        settled, end, heard = SettleDetector(), self._clock.now() + _BRAKING, False
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
            if self._gone:
                return self._gone
            self._gone = str(error)
            self._screen.say(f"{error}; the arm is held")
            return ""
        for mark in sorted(sample.marks if sample else (), key=lambda mark: mark != "stop"):
            self._heed(mark)
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
        """The arm's; None where it is old: then nothing is commanded."""
        try:
            return self._robot.state(STALE_HOLD_MS * 1e-3)
        except StaleState as stale:
            if stale.age > _LOST:
                raise
            self._hold(str(stale))
            self._screen.show(str(stale))
            return None

    def _follow(self, sample: Sample | None, state: State) -> None:
        # The age of a sample counts when it is used: the state may have been waited for.
        target = self._teleoperator.update(sample, state, self._clock.now())
        if target is not None and state.mode in _WAITS:
            self._teleoperator.lapse(_WAITS[state.mode])
            target = None
        self._commander.follow(target, state)

    def _hold(self, why: str) -> None:
        self._teleoperator.lapse(why)
        self._commander.release()

    def _open_clutch(self, sample: Sample | None) -> None:
        """One that stays engaged by itself has to be open for the next press to engage it."""
        lapsed = self._teleoperator.state is ClutchState.LAPSED
        if lapsed and sample is not None and sample.enable and isinstance(self._device, LatchingClutch):
            self._device.release_clutch()

    def _heed(self, mark: Mark) -> None:
        """Do what the operator asks for."""
        try:
            if mark == "stop":
                # First of all, and on a line of its own.
                self._robot.stop(f"the operator at the {self._device.name}")
                self._teleoperator.lapse("stopped")
            elif mark == "arm":
                self._arm()
            elif mark == "disarm":
                self._hold("")
                self._robot.disarm()
            elif mark == "home":
                self._home()
            elif mark == "quit":
                self._quit = self._episodes.may_quit()
            elif self._episodes.mark(mark):
                self._hold(_ENDED)
        except (RequestRefused, NoAnswer) as error:
            self._screen.say(f"{mark}: {error}")

    def _arm(self) -> None:
        state = self._robot.sample()
        if state.mode is Mode.FAULT:
            self._robot.acknowledge(
                f"the operator at the {self._device.name} has looked at: {state.fault}"[:500]
            )
            self._screen.say(f"acknowledged: {state.fault}")
        self._robot.arm()

    def _home(self) -> None:
        if self._teleoperator.state is ClutchState.ENGAGED:
            self._commander.go_home()
        else:
            self._screen.say("home: with the clutch engaged, which stops it when it is let go")

    def _report(self, state: State) -> None:
        notice = self._gone or self._commander.refused or self._teleoperator.notice
        # What changes all the time, as how far a leader is, comes after a colon and is shown below.
        topic = notice.partition(":")[0]
        if topic != self._told:
            self._screen.say(notice)
        self._told = topic
        parts = [f"{state.mode}" + (f" ({state.fault}): a acknowledges it" if state.fault else "")]
        parts.append("going home" if self._commander.homing else f"clutch {self._teleoperator.state}")
        if self._commander.clipped:
            parts.append(f"at the limit {', '.join(self._commander.clipped)}")
        self._screen.show("; ".join(filter(None, [*parts, notice, self._episodes.line])))
        self._display.program = self._episodes.program(state.mode, notice)


_ENDED: Final = "the episode has ended: press the clutch anew"
_WAITS: Final = {
    Mode.DISCONNECTED: "there is no arm",
    Mode.IDLE: "the arm is not armed: a arms it",
    Mode.FAULT: "the arm has a fault: a acknowledges it and arms anew",
    Mode.PAUSED: "the arm is paused: whoever did it resumes it",
}
