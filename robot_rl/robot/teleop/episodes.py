"""Begins and ends teleoperation episodes, by marks or by the task, and resets the scene between them."""

import queue
import threading
from collections.abc import Callable, Mapping
from typing import Final, Self

from robot_rl.envs.robot_state import SUCCESS, TIME_LEFT
from robot_rl.hardware.client import RobotClient
from robot_rl.hardware.connection import RequestRefused
from robot_rl.hardware.core import modes
from robot_rl.hardware.protocol.messages import Code, Mode, State
from robot_rl.hardware.recording.recorder import RecorderError
from robot_rl.hardware.recording.requests import Status
from robot_rl.hardware.teleop.device import Mark
from robot_rl.hardware.teleop.operator_display import ProgramStatus
from robot_rl.robot.recording_session import NEXT, STILL_OPEN, KeyedRecorder, status_line

_REFRESH: Final = 0.2
_MAX_OUTCOMES: Final = 8
_COMMIT_TIMEOUT: Final = 90.0
"""Timeout for committing the last episodes, s."""


class BackgroundRecorder:
    """Sends the key presses of `robot-rl record` to a recorder from a background thread."""

    def __init__(self, keyed: KeyedRecorder) -> None:
        """Use a recorder; its thread runs from `with` to its end."""
        self._keyed = keyed
        self._keys: queue.SimpleQueue[str | None] = queue.SimpleQueue()
        self._requested = self._done = 0
        self._thread = threading.Thread(target=self._run, name="recording", daemon=True)
        self.status: Status = keyed.press("")
        """Newest status of the recorder."""
        self.outcomes: tuple[str, ...] = ()
        """Outcomes of the last episodes, newest last."""
        self.failure = ""
        """Why the recorder has ended, "" while it runs."""

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._keys.put(None)
        self._thread.join(_COMMIT_TIMEOUT)

    @property
    def open(self) -> bool:
        """Whether an episode is open."""
        return bool(self.status.episode)

    @property
    def busy(self) -> bool:
        """Whether a request is pending."""
        return self._done < self._requested and not self.failure

    @property
    def line(self) -> str:
        """Status line for the user."""
        asked = f"{self.instruction!r}; " if self.instruction else ""
        return self.failure or asked + status_line(self.status)

    @property
    def instruction(self) -> str:
        """Instruction of the open episode, or of the next one; "" without instructions."""
        return self._keyed.instruction

    @property
    def chooses(self) -> bool:
        """Whether there are several instructions to choose from."""
        return self._keyed.chooses

    def press(self, key: str) -> None:
        """Queue a key press; returns immediately."""
        self._requested += 1
        self._keys.put(key)

    def _run(self) -> None:
        try:
            while True:
                try:
                    key = self._keys.get(timeout=_REFRESH)
                except queue.Empty:
                    self._press("")
                    continue
                if key is None:
                    return
                self._press(key)
                self._done += 1
        except Exception as error:
            # Also if it is a bug: else the recorder would seem to work on.
            known = isinstance(error, RecorderError)
            self.failure = str(error) if known else f"the recorder failed: {type(error).__name__}: {error}"
            if not known:
                raise

    def _press(self, key: str) -> None:
        before = self.status.last
        self.status = status = self._keyed.press(key)
        if status.last is not None and status.last != before:
            self.outcomes = (*self.outcomes, status.last.footer.outcome)[-_MAX_OUTCOMES:]


_NOTHING: Final = "nothing is recorded: set out=…"
_ENDS: Final[Mapping[Mark, str]] = {"success": "s", "failure": "f", "discard": "d"}
_NOT_BEGUN: Final[Mapping[Mode, str]] = {
    Mode.FAULT: "begin: the arm has a fault; a acknowledges it",
    Mode.DISCONNECTED: "begin: there is no arm",
}
"""Modes in which no episode can begin, with the message."""


class TeleopEpisodes:
    """Episodes of one robot. A robot with a scene (a simulated task) is reset after each episode."""

    def __init__(
        self, robot: RobotClient, recording: BackgroundRecorder | None, first: int, say: Callable[[str], None]
    ) -> None:
        """Create without starting.

        Args:
            robot: a connected client.
            recording: recorder; None to record nothing.
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
        """Why the recorder has failed, "" if it has not."""
        return self._recording.failure if self._recording else ""

    @property
    def open(self) -> bool:
        """Whether an episode is being recorded."""
        return self._recording is not None and self._recording.open

    @property
    def line(self) -> str:
        """Status line of the recording."""
        return self._recording.line if self._recording else "nothing is recorded"

    def program(self, mode: Mode, text: str) -> ProgramStatus:
        """Status of the episodes, for a device with a screen.

        Args:
            mode: mode of the arm.
            text: status line.
        """
        recording, marks = self._recording, self._marks(mode)
        if recording is None:
            return ProgramStatus(task="teleoperation, not recorded", marks=marks, text=text)
        status = recording.status
        return ProgramStatus(
            task=f"recording: {recording.instruction}" if recording.instruction else "recording",
            episode=self._first if status.last is None else status.last.number + 1,
            running=recording.open,
            seconds=status.seconds if recording.open else None,
            outcomes=recording.outcomes,
            marks=marks,
            text=text,
        )

    def _marks(self, mode: Mode) -> tuple[Mark, ...]:
        """Marks that currently have an effect."""
        if self._ending:
            return ()
        if self._recording is not None and self._recording.open:
            return tuple(_ENDS)
        begins = self._recording is not None and mode not in _NOT_BEGUN
        # Without an open episode, "discard" starts a new scene; the web page labels its button so.
        chooses = self._recording is not None and self._recording.chooses
        return (
            *(("begin",) if begins else ()),
            *(("discard",) if self._scene else ()),
            *(("next",) if chooses else ()),
        )

    def may_quit(self) -> bool:
        """Whether the program may quit; if an episode is open, prints so and returns False."""
        if self._recording and self._recording.open and not self._recording.failure:
            self._say(STILL_OPEN)
            return False
        return True

    def prepare(self) -> None:
        """Reset to the next scene, if the robot has scenes, and arm the arm.

        Raises:
            RobotError: if the scene cannot be reset.
        """
        if not self._scene:
            return
        robot, mode = self._robot, self._robot.sample().mode
        if mode is Mode.FAULT:
            self._say("the scene is reset when the fault is acknowledged")
            self._ending = True
            return
        if mode in modes.ENABLED:
            robot.disarm()
        try:
            robot.reset_scene(self._next)
        except RequestRefused as refusal:
            if refusal.code is not Code.SCENE or self._next == 0:
                raise
            self._say(f"{refusal.reason}; starting again from the first")
            self._next = 0
            robot.reset_scene(0)
        self._next += 1
        robot.arm()

    def mark(self, mark: Mark) -> bool:
        """Begin or end an episode. Returns whether the operator's lease must be released.

        Raises:
            RobotError: if the scene, in which the task is already done, cannot be reset.
        """
        if mark == "begin":
            self._begin()
            return False
        if mark == "next":
            self._choose()
            return False
        recording = self._recording
        if recording is not None and (recording.open or recording.busy or not self._scene):
            recording.press(_ENDS[mark])
        elif not self._scene:
            self._say(_NOTHING)
            return False
        else:
            self._say("no episode is open; the scene is reset")
        self._ending = True
        return True

    def watch(self, state: State) -> bool:
        """Check the task's success and the recorder. Returns whether the operator's lease must be released.

        Raises:
            RobotError: if the next scene cannot be reset.
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

    def _choose(self) -> None:
        if self._recording is None or not self._recording.chooses:
            self._say("there is one instruction: set instructions=[…] for several")
        else:
            self._recording.press(NEXT)

    def _begin(self) -> None:
        if self._recording is None:
            self._say(_NOTHING)
        elif self._ending:
            self._say("not yet: the last episode is not committed, or the scene is not ready")
        elif self._done and not self._scene:
            self._say("the task is done already: undo it first")
        elif (mode := self._robot.sample().mode) in _NOT_BEGUN:
            self._say(_NOT_BEGUN[mode])
        else:
            if self._done:
                self.prepare()
            self._recording.press("b")
