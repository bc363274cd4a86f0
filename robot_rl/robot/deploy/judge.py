"""Judges success with a classifier, for robots without a success sensor."""

from collections import deque
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Final

import torch
from torch import Tensor

from robot_rl.envs.observation import IMAGE_PREFIX, ObservationSpec, make_observation
from robot_rl.envs.real_arm import Judge
from robot_rl.envs.robot_state import SUCCESS, RobotState
from robot_rl.hardware.cameras.reader import FrameReader, StaleFrame, camera_reader
from robot_rl.hardware.client import RobotClient
from robot_rl.hardware.connection import RobotError
from robot_rl.hardware.protocol.messages import State
from robot_rl.hardware.protocol.security import ClientKeys
from robot_rl.hardware.spec import RobotSpec
from robot_rl.policies.classifier import SuccessClassifier
from robot_rl.policies.store import load_policy_files
from robot_rl.robot.deploy.cameras import check_cameras
from robot_rl.robot.operators.person import Person
from robot_rl.saved_policies.loading import policy_directory

KEPT: Final = 20
"""Newest frames of an episode whose features are kept."""


def load_classifier(path: str) -> tuple[SuccessClassifier, ObservationSpec]:
    """Load the classifier of a `method=classifier` run, and the spec of what it observes.

    Raises:
        ValueError: if the run has no classifier.
    """
    networks, meta = load_policy_files(policy_directory(Path(path)))
    if not isinstance(networks, SuccessClassifier):
        raise ValueError(f"{path} holds no classifier; `robot-rl train method=classifier` trains one")
    data = ObservationSpec.from_dict(meta["environment"]["observation_spec"])
    cameras = networks.spec.cameras
    return networks.eval(), ObservationSpec(data.state_keys, data.state_dims, cameras, data.image_size)


def success_judge(
    classifier: str | None,
    robot: RobotClient,
    address: str,
    period: float,
    keys: ClientKeys | None,
    insecure: bool,
    person: Person | None,
    resources: ExitStack,
) -> Judge | None:
    """Make the judge of success: a classifier and a person's mark, or the mark alone without a sensor.

    Args:
        classifier: directory of a classifier; None for none.
        robot, address, period, keys, insecure: as for `camera_reader`.
        person: person at a device, whose mark counts as well.
        resources: closes the classifier's camera reader.

    Returns:
        None if the robot has a sensor, or there is neither sensor, classifier nor person.

    Raises:
        ValueError: if there is no such classifier, or the robot does not measure its inputs.
        RobotError: if a camera gives no image.
    """
    if classifier:
        looks = classifier_judge(classifier, robot, address, period, keys, insecure)
        return ClassifierOrPerson(resources.enter_context(looks), person)
    if person is None or SUCCESS in robot.spec.sensors:
        return None
    return lambda *_: person.succeeded


class ClassifierOrPerson:
    """Success by a classifier or by a person's mark."""

    def __init__(self, classifier: "ClassifierJudge", person: Person | None) -> None:
        self.classifier, self._person = classifier, person
        self.missed = False
        """Whether the classifier has missed the success that the person marked."""

    def __call__(self, state: State, since: int) -> bool:
        seen, marked = self.classifier(state, since), bool(self._person and self._person.succeeded)
        self.missed = marked and not seen
        return seen or marked


@contextmanager
def classifier_judge(
    path: str, robot: RobotClient, address: str, period: float, keys: ClientKeys | None, insecure: bool
) -> Iterator["ClassifierJudge"]:
    """Yield a judge with its own camera reader; arguments as for `camera_reader`.

    Raises:
        ValueError: if there is no classifier, or the robot does not measure its inputs.
        RobotError: if a camera gives no image.
    """
    classifier, observed = load_classifier(path)
    check_cameras(robot.spec, observed, "the classifier")
    with camera_reader(robot, address, classifier.spec.cameras, period, keys, insecure) as frames:
        yield ClassifierJudge(classifier, observed, robot.spec, frames)


class ClassifierJudge:
    """Judge for `RealArmEnv` that classifies the newest images or the state."""

    def __init__(
        self,
        classifier: SuccessClassifier,
        observed: ObservationSpec,
        robot: RobotSpec,
        frames: FrameReader | None,
    ) -> None:
        """Create the judge; the caller keeps ownership of `frames`.

        Raises:
            ValueError: if the robot does not measure the classifier's inputs.
        """
        self.classifier, self._frames, self._observed = classifier, frames, observed
        self._since = -1
        self._features: deque[Tensor] = deque(maxlen=KEPT)
        self._robot_state = RobotState(robot, observed) if classifier.spec.state_size else None

    @torch.no_grad()
    def __call__(self, state: State, since: int) -> bool:
        """Whether the newest images or state show success; images from before `since` [ns] do not.

        Raises:
            RobotError: if there is no fresh image.
        """
        if since != self._since:
            self._since = since
            self._features.clear()
        obs = {"state": torch.zeros(1, 0)}
        if self._robot_state is not None:
            seen = make_observation(dict(self._robot_state.raw(state)), self._observed)
            obs["state"] = torch.from_numpy(seen["state"][None])
        for camera in self.classifier.spec.cameras:
            assert self._frames is not None
            try:
                newest = self._frames.newest(camera)
            except StaleFrame as stale:
                raise RobotError(f"the judge of success: {stale}") from stale
            if newest.t_capture < since:
                # Of the episode before, perhaps of its success.
                return False
            image = newest.image
            obs[IMAGE_PREFIX + camera] = torch.from_numpy(image[None].copy())
        features = self.classifier.features(obs)
        self._features.append(features)
        return bool(self.classifier.logits(features) > self.classifier.threshold)

    @property
    def newest_features(self) -> Tensor:
        """Features [n, F] of the newest frames of the last episode that was judged, at most `KEPT`."""
        return torch.cat([self.classifier.example_features[:0], *self._features])
