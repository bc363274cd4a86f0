"""Uses a recorder process from a control loop without blocking it."""

import queue
import threading
from types import TracebackType
from typing import Final, Self

from robot_rl.hardware.recording.client import RecorderProcess
from robot_rl.hardware.recording.recorder import RecorderError
from robot_rl.hardware.recording.requests import Status
from robot_rl.robot.recording_session import KeyedRecorder, Labels, Say, status_line

_REFRESH: Final = 0.2
_MAX_OUTCOMES: Final = 8
_COMMIT_TIMEOUT: Final = 90.0
"""Timeout for committing the last episodes, s."""


class BackgroundRecorder:
    """Sends the key presses of `robot-rl record` to a recorder from a background thread."""

    def __init__(self, recorder: RecorderProcess, labels: Labels, say: Say) -> None:
        self._keyed = KeyedRecorder(recorder, labels, say)
        self._keys: queue.SimpleQueue[str | None] = queue.SimpleQueue()
        self._requested = self._done = 0
        self._thread = threading.Thread(target=self._run, name="recording", daemon=True)
        self.status: Status = recorder.status()
        """Newest status of the recorder."""
        self.outcomes: tuple[str, ...] = ()
        """Outcomes of the last episodes, newest last."""
        self.failure = ""
        """Why the recorder has ended, "" while it runs."""

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
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
        return self.failure or status_line(self.status)

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
        except RecorderError as error:
            self.failure = str(error)

    def _press(self, key: str) -> None:
        before = self.status.last
        self.status = status = self._keyed.press(key)
        if status.last is not None and status.last != before:
            self.outcomes = (*self.outcomes, status.last.footer.outcome)[-_MAX_OUTCOMES:]
