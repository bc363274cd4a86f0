"""Success classifier: labels, splits, threshold, error rates on held-out episodes, resumption."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from robot_rl.data.writer import DatasetWriter
from robot_rl.envs.observation import ObservationSpec
from robot_rl.errors import UserError
from robot_rl.learning.success_detection import (
    LabelledFrames,
    calibration,
    detection_rates,
    label,
    split,
    threshold_for,
)
from robot_rl.policies.classifier import SuccessClassifier
from robot_rl.policies.nets.encoder import EncoderSpec
from robot_rl.robot.deploy.judge import load_classifier
from tests.conftest import RunCommand

SIZE = 84
DIM = {"name": "x", "kind": "delta", "unit": "m", "scale": 0.05, "frame": "base"}
ENVIRONMENT: dict[str, Any] = {
    "task": "lift",
    "action_spec": [DIM],
    "observation_spec": {
        "state_keys": ["pos"],
        "state_dims": [1],
        "cameras": ["front"],
        "image_size": [SIZE, SIZE],
    },
}
EPISODES, STEPS = 20, 12
SMALL = ("task=lift", "method=classifier", "threads=1", "method.batch_size=16", "method.hidden=16")


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return written(tmp_path_factory.mktemp("classifier") / "robot.zarr")


def written(path: Path, every: int = 2, cameras: Sequence[str] = ("front",)) -> Path:
    """Some episodes succeed: a bright square moves down and turns red; in others it stays grey."""
    seen = {**ENVIRONMENT["observation_spec"], "cameras": list(cameras)}
    writer = DatasetWriter(path, {**ENVIRONMENT, "observation_spec": seen}, {"recorded": {"robot": "arm"}})
    rng = np.random.default_rng(0)
    for number in range(EPISODES):
        success = number % every == 0
        images = rng.integers(0, 60, (STEPS, SIZE, SIZE, 3), np.uint8)
        column = int(rng.integers(10, 60))
        for step, image in enumerate(images):
            square = image[4 * step + 10 : 4 * step + 26, column : column + 16]
            square[:] = (255, 0, 0) if success and step == STEPS - 1 else 160
        writer.append(
            {
                "pos": np.arange(STEPS, dtype=np.float32)[:, None],
                **{f"images.{camera}": images for camera in cameras},
                "action": np.zeros((STEPS, 1), np.float32),
                "applied_action": np.zeros((STEPS, 1), np.float32),
                "reward": (np.arange(STEPS) == STEPS - 1).astype(np.float32) * success,
                "terminated": (np.arange(STEPS) == STEPS - 1) & success,
                "truncated": (np.arange(STEPS) == STEPS - 1) & (not success),
            },
            success=success,
            seed=number,
        )
    return path


def trained(robot_rl: RunCommand, dataset: Path, runs: Path, name: str, *more: str) -> Path:
    robot_rl("train", *SMALL, f"data={dataset}", f"runs_dir={runs}", f"name={name}", *more)
    return runs / name


def test_last_steps_of_successful_episodes_are_labelled_and_those_before_excluded() -> None:
    episodes = [slice(0, 5), slice(5, 8), slice(8, 10)]
    shown, other = label(np.array([True, False, True]), episodes, success_steps=2, unclear_steps=1)
    assert shown.tolist() == [0, 0, 0, 1, 1, 0, 0, 0, 1, 1]
    assert other.tolist() == [1, 1, 0, 0, 0, 1, 1, 1, 0, 0]


def test_split_uses_each_episode_once_and_is_stratified_by_success() -> None:
    success = np.arange(30) % 3 == 0
    parts = split(success, 0.4, seed=1)
    assert sorted(np.concatenate(parts).tolist()) == list(range(30))
    assert [int(success[part].sum()) for part in parts] == [6, 2, 2]
    assert [len(part) for part in parts] == [18, 6, 6]
    with pytest.raises(ValueError, match="2 successful episodes are too few"):
        split(np.arange(30) < 2, 0.4, seed=1)


def test_calibration_counts_the_successes_among_frames_of_similar_predictions() -> None:
    probability = np.array([0.01, 0.03, 0.55, 0.57, 0.59, 1.0 - 1e-12])
    success = np.array([False, False, True, False, True, True])
    low, middle, high = calibration(np.log(probability / (1 - probability)), success)
    assert (low.frames, low.successes) == (2, 0)
    assert (middle.frames, middle.successes) == (3, 2)
    assert middle.probability == pytest.approx(0.57)
    assert (high.frames, high.successes) == (1, 1)


@pytest.mark.parametrize(
    ("part", "threshold"), [(0.0, 3.0), (0.24, 3.0), (0.25, 2.0), (0.5, 0.5), (0.75, 0.0)]
)
def test_threshold_keeps_the_allowed_fraction_of_false_alarms(part: float, threshold: float) -> None:
    highest = np.array([2.0, -1.0, 3.0, 0.5])
    assert threshold_for(highest, part) == threshold
    assert (highest > threshold).sum() <= part * len(highest)


def test_classifier_detects_success_in_held_out_episodes(
    robot_rl: RunCommand, dataset: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = trained(robot_rl, dataset, tmp_path, "good", "method.steps=60", "method.unclear_steps=2")
    report = json.loads((run / "classifier.json").read_text())
    assert (report["episodes"], report["calibrated_by"], report["successes"]) == (4, 4, 2)
    assert (report["found"], report["false_alarms"], report["false_frames"]) == (2, 0, 0)
    assert report["frames"] == 2 * STEPS + 2 * (STEPS - 3)
    assert (report["detections"], report["right"]) == (2, 2)
    assert report["recall_interval"] == report["precision_interval"]
    assert report["recall_interval"] == [pytest.approx(0.342, abs=1e-3), 1.0]
    bins = report["calibration"]
    assert sum(part["frames"] for part in bins) == report["frames"] + 2
    assert sum(part["successes"] for part in bins) == 2
    assert report["false_alarm_interval"][1] < 0.6
    said = capsys.readouterr().out
    assert "false alarms in 0" in said
    assert "2 of 2 successes found (95 % [0.342, 1.000]), 0 of them early" in said
    robot_rl("report", f"run={run}")
    page = (run / "report.html").read_text()
    for text in ("Detections that are right", "2 of 2", "34.2 – 100.0 %", "predicted probability"):
        assert text in page
    classifier, observed = load_classifier(str(run))
    assert observed == ObservationSpec.from_dict(ENVIRONMENT["observation_spec"])  # type: ignore[arg-type]
    assert float(classifier.threshold) == pytest.approx(report["threshold"])
    assert classifier.spec.state_size == 0, "where the arm is must not decide"
    for color, shows in (((255, 0, 0), True), (160, False)):
        image = np.full((1, SIZE, SIZE, 3), 30, np.uint8)
        image[0, 54:70, 30:46] = color
        obs = {"state": torch.zeros(1, 1), "images.front": torch.from_numpy(image)}
        assert bool(classifier(obs) > classifier.threshold) is shows


def test_resumed_training_ends_in_the_same_weights(
    robot_rl: RunCommand, dataset: Path, tmp_path: Path
) -> None:
    runs = [
        trained(robot_rl, dataset, tmp_path, name, "method.steps=6", f"checkpoint_every={every}")
        for name, every in (("whole", 6), ("parts", 3))
    ]
    # As if it had been stopped in the middle.
    newest = sorted((runs[1] / "checkpoints").iterdir())[-1]
    for path in sorted(newest.rglob("*"), reverse=True):
        path.rmdir() if path.is_dir() else path.unlink()
    newest.rmdir()
    trained(robot_rl, dataset, tmp_path, "parts", "method.steps=6", "checkpoint_every=3")
    first, second = (load_classifier(str(run))[0].state_dict() for run in runs)
    assert all(torch.equal(first[name], second[name]) for name in first)


def test_classifiers_and_policies_are_not_loaded_as_each_other(
    robot_rl: RunCommand, dataset: Path, tmp_path: Path, base_run: Path
) -> None:
    run = trained(robot_rl, dataset, tmp_path, "short", "method.steps=1", "method.encoder=state")
    with pytest.raises(UserError, match="holds a SuccessClassifier, which does not act"):
        robot_rl("eval", f"policy={run}")
    with pytest.raises(ValueError, match="holds no classifier"):
        load_classifier(str(base_run))


def test_datasets_without_images_or_episodes_are_refused(
    robot_rl: RunCommand, demonstrations: Path, tmp_path: Path
) -> None:
    with pytest.raises(UserError, match=r"has no images: choose method\.encoder=state"):
        trained(robot_rl, demonstrations, tmp_path, "blind")
    with pytest.raises(UserError, match="add data="):
        robot_rl("train", *SMALL, f"runs_dir={tmp_path}", "name=none")
    assert not list(tmp_path.iterdir())


def test_cameras_of_the_task_choose_among_those_of_the_dataset(robot_rl: RunCommand, tmp_path: Path) -> None:
    data = written(tmp_path / "both.zarr", cameras=("side", "front"))
    for options, cameras in (((), ("side", "front")), (("task.cameras=[front]",), ("front",))):
        name = f"run{len(cameras)}"
        more = ("method.steps=1", f"task.image_size=[{SIZE},{SIZE}]", *options)
        classifier, seen = load_classifier(str(trained(robot_rl, data, tmp_path, name, *more)))
        assert classifier.spec.cameras == seen.cameras == cameras


def test_a_task_or_camera_that_the_dataset_lacks_is_refused(
    robot_rl: RunCommand, dataset: Path, demonstrations: Path, tmp_path: Path
) -> None:
    with pytest.raises(UserError, match="is of task lift, and task=can: choose that one"):
        trained(robot_rl, demonstrations, tmp_path, "other", "task=can", "method.encoder=state")
    for options, message in (
        (("task=can",), "is of a real robot: add task=robot"),
        (("task.cameras=[front,side]",), "has no images of side: it has those of front"),
        (
            ("task.cameras=[front]", "task.image_size=[32,32]"),
            r"has images of \[84, 84\]: set task.image_size",
        ),
    ):
        with pytest.raises(UserError, match=message):
            trained(robot_rl, dataset, tmp_path, "other", *options)
    assert not list(tmp_path.iterdir())


def test_a_base_is_refused_since_no_policy_is_trained(robot_rl: RunCommand, tmp_path: Path) -> None:
    for base in ("base=flow", "base.width=99", f"base={tmp_path}"):
        with pytest.raises(UserError, match="method=classifier trains no policy, and needs no base"):
            robot_rl("train", "method=classifier", f"data={tmp_path / 'none'}", base)


def test_a_detection_before_the_success_is_early() -> None:
    episodes = [slice(0, 6), slice(6, 12)]
    shown, other = label(np.array([True, True]), episodes, success_steps=1, unclear_steps=3)
    # The first is detected in its last frame alone, the second in the one before too.
    logits = np.zeros(12, np.float32)
    logits[[5, 10, 11]] = 1
    frames = LabelledFrames({}, shown, other, episodes)
    rates = detection_rates(frames, episodes, [logits[rows] for rows in episodes], threshold=0.5)
    assert (rates.found, rates.early, rates.false_alarms) == (2, 1, 0)


def test_a_dataset_that_shows_success_alone_is_refused(robot_rl: RunCommand, tmp_path: Path) -> None:
    dataset = written(tmp_path / "robot.zarr", every=1)
    with pytest.raises(UserError, match="too few frames without success"):
        trained(robot_rl, dataset, tmp_path, "good", f"method.unclear_steps={STEPS}")
    assert not (tmp_path / "good").exists()


def test_success_is_a_logit_above_the_threshold() -> None:
    classifier = SuccessClassifier(EncoderSpec(1), hidden=4).eval()
    obs = {"state": torch.linspace(-2, 2, 9)[:, None]}
    with torch.no_grad():
        logits = classifier(obs)
        classifier.threshold.fill_(float(logits.median()))
        assert (classifier(obs) > classifier.threshold).sum() == 4
