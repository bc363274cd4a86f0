"""A classifier judges the episode that runs, not the one before."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from robot_rl.envs.observation import ObservationSpec
from robot_rl.hardware.cameras.reader import CameraImage
from robot_rl.hardware.spec import CameraSpec
from robot_rl.policies.classifier import SuccessClassifier
from robot_rl.policies.nets.encoder import EncoderSpec
from robot_rl.robot.deploy.judge import KEPT, ClassifierJudge, classifier_judge

SIZE = (84, 84)


class Reader:
    """Has one image, captured at 100 ns."""

    def newest(self, name: str) -> CameraImage:
        assert name == "front"
        frame: Any = None
        return CameraImage(np.zeros((*SIZE, 3), np.uint8), 0, 100, 30.0, frame)


def robot_with(name: str, height: int, width: int) -> Any:
    """The part of a robot's spec that a judge of images reads."""
    camera = CameraSpec(name=name, serial=name, width=width, height=height, rate=30.0)
    return SimpleNamespace(cameras=(camera,), sensors=())


def judge_of(classifier: SuccessClassifier) -> ClassifierJudge:
    reader: Any = Reader()
    observed, robot = ObservationSpec((), (), ("front",), SIZE), robot_with("front", *SIZE)
    return ClassifierJudge(classifier, observed, robot, reader)


@pytest.mark.parametrize(("since", "success"), [(99, True), (100, True), (101, False)])
def test_an_image_from_before_the_episode_shows_no_success(since: int, success: bool) -> None:
    classifier = SuccessClassifier(EncoderSpec(0, ("front",), SIZE), hidden=4)
    classifier.threshold.fill_(-1e9)
    state: Any = None
    assert judge_of(classifier)(state, since) is success


def test_the_newest_features_are_of_the_last_episode_alone() -> None:
    judge = judge_of(SuccessClassifier(EncoderSpec(0, ("front",), SIZE), hidden=4))
    state: Any = None
    assert len(judge.newest_features) == 0
    for _ in range(KEPT + 3):
        judge(state, 99)
    assert len(judge.newest_features) == KEPT
    # No image of the second episode has arrived yet.
    judge(state, 101)
    assert len(judge.newest_features) == 0


@pytest.mark.parametrize(
    ("robot", "message"),
    [
        (robot_with("wrist", *SIZE), "the classifier observes camera 'front'; the robot has wrist"),
        (
            robot_with("front", 48, 64),
            "images of 'front' are 48 × 64 .*, the classifier was trained on 84 × 84",
        ),
    ],
)
def test_a_classifier_for_other_cameras_is_refused(robot: Any, message: str, tmp_path: Path) -> None:
    spec = {"state_keys": [], "state_dims": [], "cameras": ["front"], "image_size": list(SIZE)}
    classifier = SuccessClassifier(EncoderSpec(0, ("front",), SIZE), hidden=4)
    classifier.save(tmp_path, {"environment": {"observation_spec": spec}})
    client: Any = SimpleNamespace(spec=robot)
    looks = classifier_judge(str(tmp_path), client, "ipc:///nowhere", 0.05, None, insecure=False)
    with pytest.raises(ValueError, match=message), looks:
        pytest.fail("it was not refused")
