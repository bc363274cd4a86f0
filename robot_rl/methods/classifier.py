"""Trains a success classifier on labelled frames, the reward on a real robot (SERL, arXiv 2401.16013)."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.stats import binomtest
from torch import Tensor, nn

from robot_rl.learning.augmentation import augment_images
from robot_rl.learning.config import STATE_ALONE, check_counts, check_not_negative
from robot_rl.learning.learner import Result
from robot_rl.methods.method import DatasetContext, OfflineMethod
from robot_rl.policies.classifier import SuccessClassifier
from robot_rl.policies.nets.encoder import ENCODERS, EncoderSpec

_ROWS = 512
"""Frames per forward pass when measuring."""
_EXAMPLES = 4096
"""Most frames whose features are saved with the classifier, for later corrections."""
_BINS = 10
"""Number of intervals of probability in which a prediction is compared with the outcome."""


@dataclass
class ClassifierConfig:
    """Success classifier."""

    name: str = "classifier"
    """Name of the method."""
    steps: int = 2000
    """Gradient steps."""
    batch_size: int = 128
    """Frames per batch, half of them successes."""
    lr: float = 3e-4
    """Learning rate."""
    weight_decay: float = 1e-2
    """Weight decay of AdamW."""
    hidden: int = 256
    """Width of the hidden layer."""
    encoder: str = "conv"
    """Image encoder `conv`, `spatial` or `vit`; `state` uses the state and no images."""
    success_steps: int = 1
    """Last steps of a successful episode labelled as success, at least 1."""
    unclear_steps: int = 20
    """Steps before those that are excluded as ambiguous, at least 0."""
    held_out: float = 0.4
    """Fraction of held-out episodes, in (0, 1): half of them sets the threshold, half measures it."""
    false_alarms: float = 0.01
    """Largest fraction of episodes with a false alarm, in [0, 1), for which the threshold is set."""

    def __post_init__(self) -> None:
        if not 0 < self.held_out < 1:
            raise ValueError(f"method.held_out={self.held_out:g}: choose a part between 0 and 1")
        if not 0 <= self.false_alarms < 1:
            raise ValueError(
                f"method.false_alarms={self.false_alarms:g}: choose a part of at least 0 and below 1"
            )
        kinds = (*ENCODERS, STATE_ALONE)
        if self.encoder not in kinds:
            raise ValueError(f"method.encoder={self.encoder}: choose one of {', '.join(kinds)}")
        if self.batch_size < 2:
            raise ValueError(f"method.batch_size={self.batch_size}: at least 2, a success and another frame")
        check_counts(self, "steps", "hidden", "success_steps")
        check_not_negative(self, "unclear_steps")


@dataclass(frozen=True)
class LabelledFrames:
    """Frames with labels."""

    obs: Mapping[str, NDArray[Any]]
    """`state` [T, S] and `images.<camera>` [T, H, W, 3]."""
    success: NDArray[np.bool_]
    """Rows labelled as success [T]."""
    other: NDArray[np.bool_]
    """Rows labelled as no success [T]."""
    episodes: Sequence[slice]


@dataclass(frozen=True)
class Bin:
    """Frames whose predicted probabilities of success are alike."""

    probability: float
    """Mean prediction."""
    frames: int
    successes: int


@dataclass(frozen=True)
class Rates:
    """Error rates of a threshold on held-out episodes, with 95 % intervals."""

    threshold: float
    """Logit above which success is detected."""
    episodes: int
    false_alarms: int
    """Episodes with a false positive: each would end with a false reward."""
    false_alarm_interval: tuple[float, float]
    frames: int
    """Without success."""
    false_frames: int
    successes: int
    """Episodes that succeed."""
    found: int
    """Of those, episodes in which success is detected."""
    recall_interval: tuple[float, float]
    early: int
    """Of those, episodes in which it is first detected before the frames that show it: a reward too early."""
    detections: int
    """Episodes in which success is detected."""
    right: int
    """Of those, episodes in which it is first detected in a frame that shows it."""
    precision_interval: tuple[float, float]
    calibration: list[Bin]
    """Frames with a label, by predicted probability."""


def label(success: NDArray[np.bool_], episodes: Sequence[slice], config: ClassifierConfig) -> tuple[Any, Any]:
    """Label rows as success and as no success, each bool [T].

    Args:
        success: outcome of each episode [N].
        episodes: rows of each episode.
        config: numbers of success steps and unclear steps.
    """
    rows = episodes[-1].stop
    shown, other = np.zeros(rows, bool), np.ones(rows, bool)
    for succeeded, episode in zip(success, episodes, strict=True):
        if succeeded:
            first = max(episode.start, episode.stop - config.success_steps)
            shown[first : episode.stop] = True
            other[max(episode.start, first - config.unclear_steps) : episode.stop] = False
    return shown, other


class Split(NamedTuple):
    """Episode numbers of each part."""

    learn: NDArray[np.int64]
    calibrate: NDArray[np.int64]
    """Episodes that set the threshold."""
    measure: NDArray[np.int64]
    """Episodes that measure its error rates."""


def split(success: NDArray[np.bool_], held_out: float, seed: int) -> Split:
    """Split the episodes into three parts.

    The split is stratified by success.

    Raises:
        ValueError: if there are too few successes for three parts.
    """
    rng = np.random.default_rng([seed, 5])
    parts: tuple[list[int], list[int], list[int]] = ([], [], [])
    for kind in (True, False):
        numbers = rng.permutation(np.flatnonzero(success == kind))
        half = round(len(numbers) * held_out / 2)
        if kind and (half < 1 or len(numbers) - 2 * half < 1):
            raise ValueError(
                f"{len(numbers)} successful episodes are too few to learn from and to measure with: "
                "record more, or choose another method.held_out"
            )
        for part, chosen in zip(
            parts, (numbers[2 * half :], numbers[:half], numbers[half : 2 * half]), strict=True
        ):
            part.extend(chosen.tolist())
    return Split(*(np.sort(np.array(part, np.int64)) for part in parts))


def threshold_for(highest: NDArray[np.floating], false_alarms: float) -> float:
    """Lowest threshold at which at most a fraction `false_alarms` of episodes has a false alarm.

    Args:
        highest: largest logit of each episode's frames without success [N].
        false_alarms: allowed fraction of episodes.
    """
    ordered = np.sort(highest)[::-1]
    allowed = int(false_alarms * len(ordered))
    # Never below a logit of 0, where success has probability 1/2.
    return max(0.0, float(ordered[allowed]))


def choose_examples(
    success: NDArray[np.int64], other: NDArray[np.int64], count: int, seed: int
) -> NDArray[np.int64]:
    """Choose `count` rows of frames with and without success, if possible not more than half of them with."""
    rng = np.random.default_rng([seed, 6])
    shown = rng.permutation(success)[: max(count // 2, count - len(other))]
    return np.sort(np.concatenate([shown, rng.permutation(other)[: count - len(shown)]]))


def calibration(logits: NDArray[np.floating], success: NDArray[np.bool_]) -> list[Bin]:
    """Count the successes among frames of similar predictions, in tenths of probability.

    Args:
        logits: of T frames [T].
        success: whether each shows success [T].
    """
    probability = 1 / (1 + np.exp(-logits.astype(np.float64)))
    tenth = np.minimum((probability * _BINS).astype(int), _BINS - 1)
    parts = (tenth == number for number in range(_BINS))
    return [
        Bin(float(probability[part].mean()), int(part.sum()), int(success[part].sum()))
        for part in parts
        if part.any()
    ]


def _interval(count: int, of: int) -> tuple[float, float]:
    """95 % Wilson interval of a fraction; (0, 1) of nothing."""
    if not of:
        return 0.0, 1.0
    low, high = binomtest(count, of).proportion_ci(method="wilson")
    return float(low), float(high)


class ClassifierLearner:
    """Trains by binary cross-entropy on balanced batches with shifted images."""

    def __init__(
        self,
        config: ClassifierConfig,
        classifier: SuccessClassifier,
        frames: LabelledFrames,
        parts: Split,
        device: torch.device,
        seed: int,
    ) -> None:
        self.config, self.classifier, self.device = config, classifier.to(device), device
        self._frames, self._parts = frames, parts
        self._obs = {name: torch.from_numpy(values) for name, values in frames.obs.items()}
        chosen = np.zeros(len(frames.success), bool)
        for number in parts.learn:
            chosen[frames.episodes[number]] = True
        self._rows = [
            torch.from_numpy(np.flatnonzero(chosen & kind)) for kind in (frames.success, frames.other)
        ]
        self.optimizer = torch.optim.AdamW(
            classifier.parameters(), config.lr, weight_decay=config.weight_decay, fused=True
        )
        self._generator = torch.Generator().manual_seed(seed)
        success, other = (rows.numpy() for rows in self._rows)
        self._examples = choose_examples(success, other, len(classifier.example_features), seed)

    def update(self) -> dict[str, Tensor]:
        """One gradient step."""
        half = self.config.batch_size // 2
        rows = torch.cat([r[torch.randint(len(r), (half,), generator=self._generator)] for r in self._rows])
        obs = {name: values[rows].to(self.device) for name, values in self._obs.items()}
        obs = augment_images(obs, self._generator)
        shows = torch.arange(2 * half, device=self.device) < half
        logits = self.classifier(obs)
        loss = nn.functional.binary_cross_entropy_with_logits(logits, shows.float())
        self.optimizer.zero_grad(set_to_none=True)
        loss.backward()
        self.optimizer.step()
        return {"loss": loss.detach(), "accuracy": ((logits > 0) == shows).float().mean()}

    @torch.no_grad()
    def logits(self, rows: slice) -> NDArray[np.float32]:
        """Logits of a slice of frames."""
        parts = []
        for start in range(rows.start, rows.stop, _ROWS):
            part = slice(start, min(start + _ROWS, rows.stop))
            parts.append(self.classifier({name: v[part].to(self.device) for name, v in self._obs.items()}))
        return torch.cat(parts).cpu().numpy()

    def calibrate(self) -> None:
        """Set the threshold from the calibration episodes."""
        highest = []
        for number in self._parts.calibrate:
            rows = self._frames.episodes[number]
            if (other := self._frames.other[rows]).any():
                highest.append(float(self.logits(rows)[other].max()))
        self.classifier.threshold.fill_(threshold_for(np.array(highest), self.config.false_alarms))

    @torch.no_grad()
    def _keep_examples(self) -> None:
        rows, classifier = torch.from_numpy(self._examples), self.classifier
        for start in range(0, len(rows), _ROWS):
            part = rows[start : start + _ROWS]
            seen = {name: values[part].to(self.device) for name, values in self._obs.items()}
            classifier.example_features[start : start + _ROWS] = classifier.features(seen)
        classifier.example_success.copy_(torch.from_numpy(self._frames.success[self._examples]))

    def measure(self) -> Rates:
        """Error rates of the threshold on the measurement episodes."""
        frames, numbers = self._frames, self._parts.measure
        threshold = float(self.classifier.threshold)
        alarms = false_frames = others = successes = found = early = detections = 0
        logits, labels = list[NDArray[np.float32]](), list[NDArray[np.bool_]]()
        for number in numbers:
            rows = frames.episodes[number]
            seen, clear = self.logits(rows), frames.other[rows] | frames.success[rows]
            logits.append(seen[clear])
            labels.append(frames.success[rows][clear])
            taken = seen > threshold
            detections += bool(taken.any())
            false = taken & frames.other[rows]
            alarms += bool(false.any())
            false_frames += int(false.sum())
            others += int(frames.other[rows].sum())
            if (shown := frames.success[rows]).any():
                successes += 1
                found += bool(taken.any())
                early += bool(taken.any() and not shown[taken.argmax()])
        return Rates(
            threshold=threshold,
            episodes=len(numbers),
            false_alarms=alarms,
            false_alarm_interval=_interval(alarms, len(numbers)),
            frames=others,
            false_frames=false_frames,
            successes=successes,
            found=found,
            recall_interval=_interval(found, successes),
            early=early,
            detections=detections,
            right=found - early,
            precision_interval=_interval(found - early, detections),
            calibration=calibration(np.concatenate(logits), np.concatenate(labels)),
        )

    def save_policy(self, directory: Path, environment: Mapping[str, Any]) -> None:
        self.calibrate()
        self._keep_examples()
        self.classifier.save(directory, {"environment": environment, "method": self.config.name})

    def finish(self) -> Result:
        self.calibrate()
        rates = self.measure()
        return Result({"calibrated_by": len(self._parts.calibrate), **asdict(rates)}, describe(rates))

    @staticmethod
    def _without_examples(weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
        return {name: value for name, value in weights.items() if not name.startswith("example_")}

    def state_dict(self) -> dict[str, Any]:
        return {
            "classifier": self._without_examples(self.classifier.state_dict()),
            "optimizer": self.optimizer.state_dict(),
            "generator": self._generator.get_state(),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        # `save_policy` computes the examples.
        self.classifier.load_state_dict({**self.classifier.state_dict(), **state["classifier"]})
        self.optimizer.load_state_dict(state["optimizer"])
        self._generator.set_state(state["generator"])


def describe(rates: Rates) -> str:
    """Summary of error rates to print."""
    (low, high), found = rates.false_alarm_interval, rates.recall_interval
    return (
        f"{rates.episodes} episodes not learned from: false alarms in {rates.false_alarms} "
        f"(95 % [{low:.3f}, {high:.3f}]), in {rates.false_frames} of {rates.frames} frames; "
        f"{rates.found} of {rates.successes} successes found (95 % [{found[0]:.3f}, {found[1]:.3f}]), "
        f"{rates.early} of them early; threshold {rates.threshold:.2f} (logit)"
    )


class ClassifierMethod(OfflineMethod):
    """Success classifier, trained on a dataset's frames."""

    config_type = ClassifierConfig
    config: ClassifierConfig
    acts = False
    next_step = "Use it as the reward with `robot-rl deploy … success={run}`"

    def __init__(self, config: ClassifierConfig) -> None:
        self.config = config

    def build_learner(self, context: DatasetContext) -> ClassifierLearner:
        """Label the dataset's frames and split its episodes."""
        config, dataset = self.config, context.dataset
        if dataset.num_episodes == 0:
            raise ValueError(f"dataset {dataset.path} has no episode")
        spec = dataset.observation_spec
        if config.encoder == STATE_ALONE:
            encoder = EncoderSpec(spec.state_size)
        elif spec.cameras:
            encoder = EncoderSpec(0, spec.cameras, spec.image_size, config.encoder)
        else:
            raise ValueError(
                f"dataset {dataset.path} has no images: choose method.encoder=state, or record cameras"
            )
        shown, other = label(dataset.success, dataset.episodes, config)
        parts = split(dataset.success, config.held_out, context.seed)
        for numbers in (parts.learn, parts.calibrate):
            if not any(other[dataset.episodes[number]].any() for number in numbers):
                raise ValueError(
                    f"dataset {dataset.path} has too few frames without success: add failed or longer "
                    "episodes, or set fewer method.success_steps or method.unclear_steps"
                )
        obs = dataset.observations()
        seen = {name: obs[name] for name in ("state", *(f"images.{camera}" for camera in encoder.cameras))}
        frames = LabelledFrames(seen, shown, other, dataset.episodes)
        torch.manual_seed(context.seed)
        learned = [dataset.episodes[number] for number in parts.learn]
        labelled = sum(int((shown[rows] | other[rows]).sum()) for rows in learned)
        classifier = SuccessClassifier(encoder, config.hidden, min(labelled, _EXAMPLES))
        if encoder.state_size:
            classifier.encoder.norm.fit(np.concatenate([obs["state"][rows] for rows in learned]))
        return ClassifierLearner(config, classifier, frames, parts, context.device, context.seed)
