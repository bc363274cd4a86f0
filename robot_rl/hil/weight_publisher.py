"""Decides when new weights are sent to the actor, and numbers their versions."""

from typing import Final

from robot_rl.hardware.clock import MS, Clock
from robot_rl.hil.link.messages import Weights, pack_tensors
from robot_rl.policies.finetuned.finetuned_policy import FinetunedPolicy

_ASSUMED_LOST: Final = 2000 * MS
"""Time after which a version that no step has used counts as lost, ns."""


class WeightPublisher:
    """Numbers versions. Only one is sent at a time, so a slow actor skips to the newest."""

    def __init__(self, networks: FinetunedPolicy, learner: str, every: int, clock: Clock) -> None:
        """Publish `networks` of the learner with this id (a uuid), every `every` updates."""
        self.version = 0
        self._learner = learner
        self._networks, self._every, self._clock = networks, every, clock
        # The actor starts with the current base, so an unchanged base is not sent.
        self._base = {name: value.clone() for name, value in networks.base.state_dict().items()}
        self._warm, self._since = False, 0
        self._used, self._sent = 0, 0

    def count_updates(self, count: int) -> None:
        """Report `count` more updates."""
        self._since += count

    def mark_used(self, version: int) -> None:
        """Report that a step was made with this version."""
        self._used = version

    def due(self, warm: bool) -> bool:
        """Whether to send a new version; `warm` is whether the trained networks may act."""
        arrived = self._used == self.version or self._clock.now() - self._sent > _ASSUMED_LOST
        return arrived and (self._since >= self._every or warm != self._warm)

    def next(self, warm: bool) -> Weights:
        """The current networks, as a new version."""
        self.version += 1
        self._since, self._warm, self._sent = 0, warm, self._clock.now()
        return self.current(warm)

    def current(self, warm: bool) -> Weights:
        """The current networks, for a new actor."""
        tensors = self._networks.weights_besides(self._base)
        return Weights(learner=self._learner, version=self.version, warm=warm, tensors=pack_tensors(tensors))
