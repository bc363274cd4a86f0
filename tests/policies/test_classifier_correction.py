"""A success classifier learns from frames that it judged wrongly, and keeps what it knew."""

from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from robot_rl.policies.classifier import SuccessClassifier
from robot_rl.policies.classifier_correction import ClassifierCorrection
from robot_rl.policies.nets.encoder import EncoderSpec
from robot_rl.policies.store import load_policy_files

SIZE = 16


def frames(center: float, count: int, seed: int) -> Tensor:
    """Features around a point on the first axis."""
    found = 0.3 * torch.randn(count, SIZE, generator=torch.Generator().manual_seed(seed))
    found[:, 0] += center
    return found


def trained() -> SuccessClassifier:
    """Knows success at 2 and none at -2; what lies elsewhere it has not seen."""
    torch.manual_seed(0)
    classifier = SuccessClassifier(EncoderSpec(SIZE), hidden=64, examples=200)
    success = torch.arange(200) < 100
    classifier.example_features.copy_(torch.cat([frames(2.0, 100, 0), frames(-2.0, 100, 1)]))
    classifier.example_success.copy_(success)
    optimizer = torch.optim.Adam(classifier.head.parameters(), 1e-2)
    for _ in range(200):
        logits = classifier.logits(classifier.example_features)
        loss = nn.functional.binary_cross_entropy_with_logits(logits, success.float())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return classifier.eval()


def judged(classifier: SuccessClassifier, features: Tensor) -> float:
    """Fraction of frames in which success is detected."""
    with torch.no_grad():
        return float((classifier.logits(features) > classifier.threshold).float().mean())


def nearly(seed: int, count: int = 20) -> Tensor:
    """Looks like success, but for the second axis."""
    found = frames(2.0, count, seed)
    found[:, 1] += 3.0
    return found


def test_a_false_alarm_is_not_repeated_and_success_is_still_found() -> None:
    classifier = trained()
    assert judged(classifier, nearly(5, 200)) > 0.9
    ClassifierCorrection(classifier).learn(nearly(6), success=False)
    assert judged(classifier, nearly(6)) == 0.0
    assert judged(classifier, nearly(5, 200)) < 0.1
    assert judged(classifier, frames(2.0, 200, 7)) > 0.9


def test_a_missed_success_is_found_afterwards() -> None:
    classifier = trained()
    classifier.threshold.fill_(0.5)
    missed = frames(-0.5, 5, 8)
    assert judged(classifier, missed) < 0.5
    ClassifierCorrection(classifier).learn(missed, success=True)
    assert judged(classifier, missed) == 1.0
    assert judged(classifier, frames(-2.0, 200, 9)) < 0.05


def test_frames_refused_once_stay_refused_after_later_corrections() -> None:
    classifier = trained()
    correction = ClassifierCorrection(classifier)
    correction.learn(nearly(6), success=False)
    missed = nearly(10)
    missed[:, 1] -= 1.5
    correction.learn(missed, success=True)
    assert judged(classifier, nearly(6)) == 0.0


def test_the_corrected_classifier_is_saved_with_its_examples(tmp_path: Path) -> None:
    classifier = trained()
    ClassifierCorrection(classifier).learn(nearly(6), success=False)
    classifier.save(tmp_path, {"environment": {}})
    loaded, _ = load_policy_files(tmp_path)
    assert isinstance(loaded, SuccessClassifier)
    assert torch.equal(loaded.example_features, classifier.example_features)
    assert torch.equal(loaded.threshold, classifier.threshold)
    # It knows which of its examples are corrections: they stay half of those that it learns from.
    assert loaded.corrected == classifier.corrected == 20
    ClassifierCorrection(loaded).learn(frames(0.0, 5, 11), success=True)
    assert loaded.corrected == 25
    assert judged(loaded, nearly(6)) == 0.0


def test_a_classifier_without_examples_is_refused() -> None:
    with pytest.raises(ValueError, match="train it again"):
        ClassifierCorrection(SuccessClassifier(EncoderSpec(SIZE), hidden=4))
