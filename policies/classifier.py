"""Success classifier on camera images, the reward where a robot measures none (SERL, arXiv 2401.16013).

It classifies single frames; a success ends the episode with a reward of 1.
"""

from dataclasses import asdict
from pathlib import Path
from typing import Any

import msgspec
import torch
from torch import Tensor, nn

from robot_rl.policies.nets.actors import trunk
from robot_rl.policies.nets.encoder import EncoderSpec, ObservationBatch, ObservationEncoder
from robot_rl.policies.registry import LOADERS
from robot_rl.policies.store import Record, read_weights, write_files

KIND = "classifier"


class SuccessClassifier(nn.Module):
    """Binary classifier of success: observation -> logit [B].

    With cameras it uses their images alone (`spec.state_size` is 0), because the arm's position at success is
    easier to learn than success itself.
    """

    threshold: Tensor
    example_features: Tensor
    """Features [T, F] of frames that it has learned from, for `ClassifierCorrection`."""
    example_success: Tensor
    """Whether each shows success [T]."""

    def __init__(self, spec: EncoderSpec, hidden: int, examples: int = 0, corrected: int = 0) -> None:
        super().__init__()
        self.corrected = corrected
        """How many of the examples, the last ones, are of corrections."""
        self.spec, self.hidden = spec, hidden
        self.encoder = ObservationEncoder(spec)
        self.head = nn.Sequential(trunk(self.encoder.feature_size, [hidden]), nn.Linear(hidden, 1))
        self.register_buffer("threshold", torch.zeros(()))
        """A logit above it says success; it is set by the rate of false alarms."""
        # Files of earlier versions have none.
        kept = examples > 0
        self.register_buffer(
            "example_features", torch.zeros(examples, self.encoder.feature_size), persistent=kept
        )
        self.register_buffer("example_success", torch.zeros(examples, dtype=torch.bool), persistent=kept)

    def forward(self, obs: ObservationBatch) -> Tensor:
        return self.logits(self.features(obs))

    def features(self, obs: ObservationBatch) -> Tensor:
        """Features [B, F] of B frames."""
        return self.encoder({**obs, "state": obs["state"][:, : self.spec.state_size]})

    def logits(self, features: Tensor) -> Tensor:
        """Logits [B] of features [B, F]."""
        logit: Tensor = self.head(features).squeeze(-1)
        return logit

    def save(self, directory: Path, meta: dict[str, Any]) -> None:
        """Write the classifier to a directory, in the format of policies."""
        write_files(
            directory,
            kind=KIND,
            config={
                "hidden": self.hidden,
                "examples": len(self.example_features),
                "corrected": self.corrected,
            },
            spec=asdict(self.spec),
            meta=meta,
            weights=self.state_dict(),
        )


def _load(directory: Path, record: Record) -> SuccessClassifier:
    """Load a classifier. Raises ValueError if its files are damaged."""
    try:
        spec = msgspec.convert(record.spec, EncoderSpec)
        # Files of earlier versions have neither.
        examples, corrected = (record.config.get(name, 0) for name in ("examples", "corrected"))
        classifier = SuccessClassifier(spec, record.config["hidden"], examples, corrected)
    except (KeyError, TypeError, msgspec.ValidationError) as error:
        raise ValueError(f"{directory} is damaged: {error!r}") from error
    read_weights(directory, record, classifier)
    return classifier


LOADERS[KIND] = _load
