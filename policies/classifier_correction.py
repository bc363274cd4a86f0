"""Learns from frames that a success classifier judged wrongly, while it is in use.

Only the head learns, from stored features of the frames that it was trained on and of the corrected ones,
which takes a fraction of a second. The encoder stays as it is.
"""

import torch
from torch import Tensor, nn

from robot_rl.policies.classifier import SuccessClassifier

_STEPS = 300
"""Gradient steps for each correction."""
_BATCH = 128
_LR = 1e-3


class ClassifierCorrection:
    """Corrects a classifier by what a person says of episodes that it has judged."""

    def __init__(self, classifier: SuccessClassifier, seed: int = 0) -> None:
        """Correct `classifier` in place.

        Raises:
            ValueError: if it has no examples of its training.
        """
        if not len(classifier.example_features):
            raise ValueError(
                "the classifier is of an earlier version and has no examples to learn from: train it again"
            )
        self.classifier = classifier
        self._generator = torch.Generator().manual_seed(seed)

    def learn(self, features: Tensor, *, success: bool) -> None:
        """Learn from frames with these features [n, F] whether they show success.

        The threshold is then above what the classifier says of all corrected frames that show none.
        """
        classifier = self.classifier
        # Saved with the classifier, which may be corrected again later.
        labels = torch.full((len(features),), success)
        classifier.example_features = torch.cat([classifier.example_features, features])
        classifier.example_success = torch.cat([classifier.example_success, labels])
        classifier.corrected += len(features)
        optimizer = torch.optim.AdamW(classifier.head.parameters(), _LR)
        shows = torch.arange(_BATCH) < _BATCH // 2
        pools = [pool for kind in (True, False) for pool in self._pools(_BATCH // 2, success=kind)]
        for _ in range(_STEPS):
            batch = torch.cat(
                [rows[torch.randint(len(rows), (size,), generator=self._generator)] for rows, size in pools]
            )
            loss = nn.functional.binary_cross_entropy_with_logits(classifier.logits(batch), shows.float())
            optimizer.zero_grad(set_to_none=True)
            loss.backward()
            optimizer.step()
        # Also after a missed success: learning from it may raise earlier false alarms again.
        refused = self._corrected(success=False)
        if len(refused):
            with torch.no_grad():
                highest = classifier.logits(refused).max()
                classifier.threshold.copy_(torch.maximum(classifier.threshold, highest))

    def _pools(self, count: int, *, success: bool) -> list[tuple[Tensor, int]]:
        """Features of examples with this label, and how many of `count` are drawn from them.

        Half of them are drawn from the corrected ones, if there are some.
        """
        classifier = self.classifier
        alike = classifier.example_features[classifier.example_success == success]
        corrected = self._corrected(success=success)
        if not len(corrected):
            return [(alike, count)]
        return [(alike, count - count // 2), (corrected, count // 2)]

    def _corrected(self, *, success: bool) -> Tensor:
        """Features of the corrected frames with this label."""
        classifier = self.classifier
        begin = len(classifier.example_features) - classifier.corrected
        labels = classifier.example_success[begin:]
        return classifier.example_features[begin:][labels == success]
