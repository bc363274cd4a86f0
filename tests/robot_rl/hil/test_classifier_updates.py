"""During training the classifier learns from what a person says of its judgements."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from robot_rl.hil.classifier_updates import ClassifierUpdates, current_classifier
from robot_rl.hil.config import HilConfig
from robot_rl.policies.classifier import SuccessClassifier
from robot_rl.policies.nets.encoder import EncoderSpec
from robot_rl.policies.store import load_policy_files
from robot_rl.robot.deploy.judge import ClassifierOrPerson

SIZE, FRAMES = 4, 20


class Looks:
    """Judges with what it is told to see."""

    def __init__(self, classifier: SuccessClassifier) -> None:
        self.classifier, self.sees = classifier, False
        self.newest_features = torch.randn(FRAMES, SIZE)

    def __call__(self, state: Any, since: int) -> bool:
        return self.sees


@pytest.fixture
def judge(tmp_path: Path) -> ClassifierOrPerson:
    torch.manual_seed(0)
    classifier = SuccessClassifier(EncoderSpec(SIZE), hidden=8, examples=8)
    classifier.example_features.normal_()
    classifier.example_success.copy_(torch.arange(8) < 4)
    classifier.save(tmp_path / "judge", {"environment": {"task": "lift"}})
    looks: Any = Looks(classifier)
    person: Any = SimpleNamespace(succeeded=False)
    return ClassifierOrPerson(looks, person)


@pytest.mark.parametrize(
    ("sees", "marks", "revoked", "learned"),
    [
        (True, False, True, (FRAMES, False)),
        (True, False, False, None),
        (False, True, False, (5, True)),
        (True, True, False, None),
    ],
)
def test_it_learns_from_successes_that_are_taken_back_or_missed(
    judge: Any, tmp_path: Path, sees: bool, marks: bool, revoked: bool, learned: tuple[int, bool] | None
) -> None:
    judge.classifier.sees, judge._person.succeeded = sees, marks
    assert judge(None, 0) == (sees or marks)
    said = list[str]()
    original, corrected = str(tmp_path / "judge"), tmp_path / "corrected"
    updates = ClassifierUpdates(judge, original, corrected, said.append)
    updates.note_success(revoked=revoked)
    assert [(len(frames), success) for frames, success in updates.pending] == ([learned] if learned else [])
    updates.learn()
    assert not updates.pending
    assert len(said) == bool(learned)
    assert current_classifier(original, corrected) == (str(corrected) if learned else original)
    if learned:
        loaded, meta = load_policy_files(corrected)
        assert meta["environment"] == {"task": "lift"}
        for one, other in zip(loaded.parameters(), judge.classifier.classifier.parameters(), strict=True):
            assert torch.equal(one, other)


def test_a_correction_of_another_classifier_is_not_used(judge: Any, tmp_path: Path) -> None:
    original, corrected = tmp_path / "judge", tmp_path / "corrected"
    updates = ClassifierUpdates(judge, str(original), corrected, print)
    updates.note_success(revoked=False)
    judge._person.succeeded = True
    judge(None, 0)
    updates.note_success(revoked=False)
    updates.learn()
    assert current_classifier(str(original), corrected) == str(corrected)
    # One that was corrected in an earlier run is corrected further.
    further = tmp_path / "further"
    updates = ClassifierUpdates(judge, str(corrected), further, print)
    updates.note_success(revoked=False)
    updates.learn()
    assert current_classifier(str(corrected), further) == str(further)
    SuccessClassifier(EncoderSpec(SIZE), hidden=8, examples=8).save(tmp_path / "again", {})
    assert current_classifier(str(tmp_path / "again"), corrected) == str(tmp_path / "again")


@pytest.mark.parametrize("options", [{"operator": "none"}, {"operator": "web"}])
def test_only_a_person_corrects_a_classifier(options: dict[str, str]) -> None:
    with pytest.raises(ValueError, match="correct_classifier"):
        HilConfig(**options, correct_classifier=True)


def test_a_person_acts_in_real_time() -> None:
    """A stepped clock has nothing to do with the times of a person's device."""
    with pytest.raises(ValueError, match=r"hil\.realtime=false: with a person"):
        HilConfig(operator="keyboard", realtime=False)
    assert HilConfig(operator="scripted", realtime=False).realtime is False
