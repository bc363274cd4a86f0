"""Corrects the success classifier during training by what the person says of its judgements."""

from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from torch import Tensor

from robot_rl.files.durable import atomic_directory, restore_replaced
from robot_rl.policies.classifier_correction import ClassifierCorrection
from robot_rl.policies.store import RECORD_FILE, read_record
from robot_rl.robot.deploy.judge import ClassifierOrPerson
from robot_rl.saved_policies.loading import policy_directory

_SHOWN: Final = 5
"""Last frames of an episode that the person marked as a success, in which it can be seen."""
_CORRECTS: Final = "corrects"
"""Key of a corrected classifier's metadata with the fingerprint of the one that was trained."""


def current_classifier(path: str, corrected: Path) -> str:
    """The classifier in `corrected` if it is a correction of that in `path`, else `path`.

    Raises:
        ValueError: if one of them is damaged.
        FileNotFoundError: if there is none in `path`.
    """
    if corrected.parent.is_dir():
        restore_replaced(corrected.parent)
    if not (corrected / RECORD_FILE).is_file():
        return path
    trained = read_record(policy_directory(Path(path))).fingerprint
    return str(corrected) if read_record(corrected).meta.get(_CORRECTS) == trained else path


class ClassifierUpdates:
    """Successes that the person took back, or marked without the classifier; it learns from them."""

    def __init__(
        self, judge: ClassifierOrPerson, path: str, corrected: Path, say: Callable[[str], None]
    ) -> None:
        """Correct the classifier of a judge.

        Args:
            judge: the judge in use.
            path: directory of its classifier.
            corrected: directory in which the corrected one is saved.
            say: shows a line to the user.

        Raises:
            ValueError: if the classifier cannot be corrected.
        """
        self._judge, self._corrected, self._say = judge, corrected, say
        self._correction = ClassifierCorrection(judge.classifier.classifier)
        record = read_record(policy_directory(Path(path)))
        self._meta: dict[str, Any] = {**record.meta, _CORRECTS: record.fingerprint}
        self.pending: list[tuple[Tensor, bool]] = []
        """Features [n, F] of frames to learn from, and whether they show success."""

    def note_success(self, *, revoked: bool) -> None:
        """Note what became of the last episode, which ended as a success, before the next one is judged."""
        frames = self._judge.classifier.newest_features
        if not len(frames):
            # Marked before the first image of the episode.
            return
        if revoked:
            self.pending.append((frames, False))
        elif self._judge.missed:
            self.pending.append((frames[-_SHOWN:], True))

    def learn(self) -> None:
        """Learn from what was noted, while the arm is at rest, and save the classifier."""
        if not self.pending:
            return
        for frames, success in self.pending:
            self._correction.learn(frames, success=success)
            what = "a success that it missed" if success else "a success that was none"
            self._say(f"the classifier has learned from {what}")
        self.pending = []
        try:
            with atomic_directory(self._corrected) as building:
                self._correction.classifier.save(building, self._meta)
        except OSError as error:
            self._say(f"the corrected classifier is not saved: {error}")
