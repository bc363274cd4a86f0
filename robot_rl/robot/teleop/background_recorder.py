"""A recorder beside a control loop, which never waits for it."""

import queue
import threading
from types import TracebackType
from typing import Final, Self

from robot_rl.hardware.recording.client import RecorderProcess
from robot_rl.hardware.recording.recorder import RecorderError
from robot_rl.hardware.recording.requests import Status
from robot_rl.robot.recording_session import KeyedRecorder, Labels, Say, status_line

_REFRESH: Final = 0.2
_OUTCOMES: Final = 8
_JOIN: Final = 90.0
"""s that a slow disk is given for the episodes that were ended."""


class BackgroundRecorder:
    """The keys of `robot-rl record`, pressed by a program; a thread asks the recorder."""

    def __init__(self, recorder: RecorderProcess, labels: Labels, say: Say) -> None:
        self._keyed = KeyedRecorder(recorder, labels, say)
        self._keys: queue.SimpleQueue[str | None] = queue.SimpleQueue()
        self._asked = self._done = 0
        self._thread = threading.Thread(target=self._run, name="recording", daemon=True)
        self.status: Status = recorder.status()
        """As it was last."""
        self.outcomes: tuple[str, ...] = ()
        """Of the last episodes, the newest last."""
        self.failure = ""
        """Why the recorder has ended, "" while it has not."""

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._keys.put(None)
        self._thread.join(_JOIN)

    @property
    def open(self) -> bool:
        """An episode is open."""
        return bool(self.status.episode)

    @property
    def busy(self) -> bool:
        """What was asked for is not done yet."""
        return self._done < self._asked and not self.failure

    @property
    def line(self) -> str:
        """How it does, for people."""
        return self.failure or status_line(self.status)

    def press(self, key: str) -> None:
        """As on the keyboard of `robot-rl record`; returns at once."""
        self._asked += 1
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
        except RecorderError as error:
            self.failure = str(error)

    def _press(self, key: str) -> None:
        before = self.status.last
        self.status = status = self._keyed.press(key)
        if status.last is not None and status.last != before:
            self.outcomes = (*self.outcomes, status.last.footer.outcome)[-_OUTCOMES:]
