"""How episodes of a teleoperation begin and end: by marks, or by the task; and the scene between them."""

from collections.abc import Callable, Mapping
from typing import Final

from robot_rl.envs.robot_state import SUCCESS, TIME_LEFT
from robot_rl.hardware.client import RobotClient
from robot_rl.hardware.connection import RequestRefused
from robot_rl.hardware.core import modes
from robot_rl.hardware.protocol.messages import Code, Mode, State
from robot_rl.hardware.teleop.device import Mark
from robot_rl.hardware.teleop.operator_display import ProgramStatus
from robot_rl.robot.recording_session import STILL_OPEN
from robot_rl.robot.teleop.background_recorder import BackgroundRecorder

_NOTHING: Final = "nothing is recorded: out=… says where to"
_ENDS: Final[Mapping[Mark, str]] = {"success": "s", "failure": "f", "discard": "d"}
_NOT_BEGUN: Final[Mapping[Mode, str]] = {
    Mode.FAULT: "begin: the arm has a fault; a acknowledges it",
    Mode.DISCONNECTED: "begin: there is no arm",
}
"""Modes in which no episode begins, and what is said then."""


class TeleopEpisodes:
    """Of one robot. Where it has a scene, that begins anew after each."""

    def __init__(
        self, robot: RobotClient, recording: BackgroundRecorder | None, first: int, say: Callable[[str], None]
    ) -> None:
        """Nothing happens yet.

        Args:
            robot: connected.
            recording: None to record nothing.
            first: number of the first episode, and of its scene.
            say: prints a line.
        """
        self._robot, self._recording, self._say = robot, recording, say
        self._scene = TIME_LEFT in robot.spec.sensors
        self._judged = SUCCESS in robot.spec.sensors
        self._first = self._next = first
        self._ending = self._done = False

    @property
    def failure(self) -> str:
        """Why nothing can be recorded any more."""
        return self._recording.failure if self._recording else ""

    @property
    def line(self) -> str:
        """How the recording does, for people."""
        return self._recording.line if self._recording else "nothing is recorded"

    def program(self, mode: Mode, text: str) -> ProgramStatus:
        """What a device with a screen shows of the episodes.

        Args:
            mode: the arm's.
            text: a line about it all.
        """
        recording, marks = self._recording, self._marks(mode)
        if recording is None:
            return ProgramStatus(task="teleoperation, not recorded", marks=marks, text=text)
        status = recording.status
        return ProgramStatus(
            task="recording",
            episode=self._first if status.last is None else status.last.number + 1,
            running=recording.open,
            seconds=status.seconds if recording.open else None,
            outcomes=recording.outcomes,
            marks=marks,
            text=text,
        )

    def _marks(self, mode: Mode) -> tuple[Mark, ...]:
        """Those that do something now."""
        if self._ending:
            return ()
        if self._recording is not None and self._recording.open:
            return tuple(_ENDS)
        begins = self._recording is not None and mode not in _NOT_BEGUN
        # Without an open episode, the scene can still be had anew.
        return (*(("begin",) if begins else ()), *(("discard",) if self._scene else ()))

    def may_quit(self) -> bool:
        """Whether no episode is open; says so where one is."""
        if self._recording and self._recording.open and not self._recording.failure:
            self._say(STILL_OPEN)
            return False
        return True

    def prepare(self) -> None:
        """Let the next scene begin, if there is one, with the arm armed.

        Raises:
            RobotError: it cannot.
        """
        if not self._scene:
            return
        robot, mode = self._robot, self._robot.sample().mode
        if mode is Mode.FAULT:
            self._say("the scene begins anew when the fault is acknowledged")
            self._ending = True
            return
        if mode in modes.ENABLED:
            robot.disarm()
        try:
            robot.reset_scene(self._next)
        except RequestRefused as refusal:
            if refusal.code is not Code.SCENE or self._next == 0:
                raise
            self._say(f"{refusal.reason}; they begin anew")
            self._next = 0
            robot.reset_scene(0)
        self._next += 1
        robot.arm()

    def mark(self, mark: Mark) -> bool:
        """Begin or end one; whether the arm is to be let go.

        Raises:
            RobotError: the scene, in which the task is done already, cannot begin anew.
        """
        if mark == "begin":
            self._begin()
            return False
        recording = self._recording
        if recording is not None and (recording.open or recording.busy or not self._scene):
            recording.press(_ENDS[mark])
        elif not self._scene:
            self._say(_NOTHING)
            return False
        else:
            self._say("no episode is open; the scene begins anew")
        self._ending = True
        return True

    def watch(self, state: State) -> bool:
        """Look after the task and the recorder; whether the arm is to be let go.

        Raises:
            RobotError: the next scene cannot begin.
        """
        recording = self._recording
        if self._ending:
            if state.mode is not Mode.FAULT and (recording is None or not recording.busy):
                self._ending = False
                self.prepare()
            return False
        self._done = self._judged and bool(state.sensors.get(SUCCESS, (0.0,))[0])
        if self._done and (recording.open if recording else self._scene):
            self._say("the task is done")
            return self.mark("success")
        return False

    def _begin(self) -> None:
        if self._recording is None:
            self._say(_NOTHING)
        elif self._ending:
            self._say("not yet: the last episode is not committed, or the scene not ready")
        elif self._done and not self._scene:
            self._say("the task is done already: undo it first")
        elif (mode := self._robot.sample().mode) in _NOT_BEGUN:
            self._say(_NOT_BEGUN[mode])
        else:
            if self._done:
                self.prepare()
            self._recording.press("b")
