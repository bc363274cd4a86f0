"""A classifier judges the episode that runs, not the one before."""

from typing import Any

import numpy as np
import pytest

from robot_rl.envs.observation import ObservationSpec
from robot_rl.hardware.cameras.reader import CameraImage
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


@pytest.mark.parametrize(("since", "success"), [(99, True), (100, True), (101, False)])
def test_an_image_from_before_the_episode_shows_no_success(since: int, success: bool) -> None:
    classifier = SuccessClassifier(EncoderSpec(0, ("front",), SIZE), hidden=4)
    classifier.threshold.fill_(-1e9)
    robot: Any = None
    state: Any = None
    reader: Any = Reader()
    judge = ClassifierJudge(classifier, ObservationSpec((), (), ("front",), SIZE), robot, reader)
    assert judge(state, since) is success
