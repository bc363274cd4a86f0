"""Success by a classifier, for a robot without a sensor of it."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch

from robot_rl.envs.observation import IMAGE_PREFIX, ObservationSpec, make_observation
from robot_rl.envs.robot_state import RobotState
from robot_rl.factory import policy_directory
from robot_rl.hardware.cameras.reader import FrameReader, StaleFrame
from robot_rl.hardware.client import RobotClient
from robot_rl.hardware.connection import RobotError
from robot_rl.hardware.protocol.messages import State
from robot_rl.hardware.protocol.security import ClientKeys
from robot_rl.hardware.spec import RobotSpec
from robot_rl.policies.classifier import SuccessClassifier
from robot_rl.policies.store import load_policy_files
from robot_rl.robot.deploy.cameras import camera_reader


def load_classifier(path: str) -> tuple[SuccessClassifier, ObservationSpec]:
    """Of a run of `method=classifier`, with what its dataset observed.

    Raises:
        ValueError: there is none.
    """
    networks, meta = load_policy_files(policy_directory(Path(path)))
    if not isinstance(networks, SuccessClassifier):
        raise ValueError(f"{path} holds no classifier; `robot-rl train method=classifier` makes one")
    return networks.eval(), ObservationSpec.from_dict(meta["environment"]["observation_spec"])


@contextmanager
def classifier_judge(
    path: str, robot: RobotClient, address: str, period: float, keys: ClientKeys | None, insecure: bool
) -> Iterator["ClassifierJudge"]:
    """A judge of a robot with images of its own; arguments as of `camera_reader`.

    Raises:
        ValueError: there is no classifier, or the robot does not measure what it looks at.
        RobotError: a camera gives no image.
    """
    classifier, observed = load_classifier(path)
    with camera_reader(robot, address, classifier.spec.cameras, period, keys, insecure) as frames:
        yield ClassifierJudge(classifier, observed, robot.spec, frames)


class ClassifierJudge:
    """Says when the task is done, for `RealArmEnv`: it looks at the newest images, or at the state."""

    def __init__(
        self,
        classifier: SuccessClassifier,
        observed: ObservationSpec,
        robot: RobotSpec,
        frames: FrameReader | None,
    ) -> None:
        """Take images from `frames`, which stays the caller's.

        Raises:
            ValueError: the robot does not measure what the classifier looks at.
        """
        self._classifier, self._frames = classifier, frames
        self._observed = ObservationSpec(
            observed.state_keys, observed.state_dims, classifier.spec.cameras, observed.image_size
        )
        self._senses = RobotState(robot, self._observed) if classifier.spec.state_size else None

    @torch.no_grad()
    def __call__(self, state: State) -> bool:
        """Whether the newest frame shows success.

        Raises:
            RobotError: there is no fresh image.
        """
        obs = {"state": torch.zeros(1, 0)}
        if self._senses is not None:
            seen = make_observation(dict(self._senses.raw(state)), self._observed)
            obs["state"] = torch.from_numpy(seen["state"][None])
        for camera in self._classifier.spec.cameras:
            assert self._frames is not None
            try:
                image = self._frames.newest(camera).image
            except StaleFrame as stale:
                raise RobotError(f"the judge of success: {stale}") from stale
            if image.shape != (*self._observed.image_size, 3):
                raise RobotError(
                    f"camera {camera} gives images of {image.shape}, the classifier knows "
                    f"{(*self._observed.image_size, 3)}"
                )
            obs[IMAGE_PREFIX + camera] = torch.from_numpy(image[None].copy())
        return bool(self._classifier.judge(obs))
