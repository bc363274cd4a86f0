"""Trains a success classifier on labelled frames, the reward on a real robot (SERL, arXiv 2401.16013)."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from robot_rl.learning.augmentation import augment_images
from robot_rl.learning.config import STATE_ALONE, check_counts, check_not_negative
from robot_rl.learning.learner import Result
from robot_rl.learning.success_detection import (
    LabelledFrames,
    Rates,
    Split,
    describe,
    detection_rates,
    label,
    split,
    threshold_for,
)
from robot_rl.methods.method import DatasetContext, OfflineMethod
from robot_rl.policies.classifier import SuccessClassifier
from robot_rl.policies.nets.encoder import ENCODERS, EncoderSpec

_ROWS = 512
"""Frames per forward pass when measuring."""
_EXAMPLES = 4096
"""Most frames whose features are saved with the classifier, for later corrections."""


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
        check_not_negative(self, "unclear_steps", "lr")


def choose_examples(
    success: NDArray[np.int64], other: NDArray[np.int64], count: int, seed: int
) -> NDArray[np.int64]:
    """Choose `count` rows of frames with and without success, if possible not more than half of them with."""
    rng = np.random.default_rng([seed, 6])
    shown = rng.permutation(success)[: max(count // 2, count - len(other))]
    return np.sort(np.concatenate([shown, rng.permutation(other)[: count - len(shown)]]))


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
        episodes = [self._frames.episodes[number] for number in self._parts.measure]
        logits = [self.logits(rows) for rows in episodes]
        return detection_rates(self._frames, episodes, logits, float(self.classifier.threshold))

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
            encoder = EncoderSpec(0, context.cameras or spec.cameras, spec.image_size, config.encoder)
        else:
            raise ValueError(
                f"dataset {dataset.path} has no images: choose method.encoder=state, or record cameras"
            )
        shown, other = label(dataset.success, dataset.episodes, config.success_steps, config.unclear_steps)
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
