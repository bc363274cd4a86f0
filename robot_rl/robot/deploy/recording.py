"""Records the episodes of a deployment."""

from collections.abc import Mapping

from robot_rl.envs.real_arm import Prepare
from robot_rl.hardware.connection import RobotError
from robot_rl.hardware.recording.recorder import RecorderError
from robot_rl.hardware.recording.recorder_process import RecorderProcess
from robot_rl.hardware.recording.records import Outcome


class EpisodeRecording:
    """Records each episode from when its scene is prepared to its end."""

    def __init__(self, recorder: RecorderProcess, labels: Mapping[str, str]) -> None:
        """Use a recorder, which the caller closes; `labels` are stored with every episode."""
        self._recorder, self._labels = recorder, dict(labels)
        self._open = False

    def after(self, prepare: Prepare) -> Prepare:
        """A preparation of episodes after which the recording of one begins.

        It raises `RobotError` if that cannot be recorded yet, as while a camera is silent, and
        `RecorderError` if the recorder has ended.
        """

        def prepare_and_record(number: int) -> None:
            # An earlier attempt to begin, which the robot refused.
            self.end("discarded")
            prepare(number)
            try:
                self._recorder.begin({**self._labels, "episode": str(number)})
            except RecorderError as error:
                if self._recorder.process.poll() is not None:
                    raise
                raise RobotError(str(error)) from error
            self._open = True

        return prepare_and_record

    def end(self, outcome: Outcome) -> None:
        """Commit the open episode, if there is one.

        Raises:
            RecorderError: if it could not be recorded.
        """
        if self._open:
            self._open = False
            self._recorder.end(outcome)
