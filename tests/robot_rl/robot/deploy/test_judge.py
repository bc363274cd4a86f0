"""A classifier judges the episode that runs, not the one before."""

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from robot_rl.envs.observation import ObservationSpec
from robot_rl.hardware.cameras.reader import CameraImage
from robot_rl.hardware.spec import CameraSpec
from robot_rl.policies.classifier import SuccessClassifier
from robot_rl.policies.nets.encoder import EncoderSpec
from robot_rl.robot.deploy.judge import ClassifierJudge

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


@pytest.mark.parametrize(("since", "success"), [(99, True), (100, True), (101, False)])
def test_an_image_from_before_the_episode_shows_no_success(since: int, success: bool) -> None:
    classifier = SuccessClassifier(EncoderSpec(0, ("front",), SIZE), hidden=4)
    classifier.threshold.fill_(-1e9)
    state: Any = None
    reader: Any = Reader()
    observed, robot = ObservationSpec((), (), ("front",), SIZE), robot_with("front", *SIZE)
    judge = ClassifierJudge(classifier, observed, robot, reader)
    assert judge(state, since) is success


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
def test_a_classifier_for_other_cameras_is_refused(robot: Any, message: str) -> None:
    classifier = SuccessClassifier(EncoderSpec(0, ("front",), SIZE), hidden=4)
    reader: Any = Reader()
    with pytest.raises(ValueError, match=message):
        ClassifierJudge(classifier, ObservationSpec((), (), ("front",), SIZE), robot, reader)
