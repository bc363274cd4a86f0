"""The versions of the weights that an actor gets."""

from typing import Final

import torch

from robot_rl.hardware.clock import MS, Clock
from robot_rl.hil.link.messages import Weights, pack_tensors
from robot_rl.policies.finetuned.finetuned_policy import FinetunedPolicy

_LOST: Final = 2000 * MS
"""A version that no step has acted with for so long may never have arrived."""


class WeightPublisher:
    """Counts versions, and lets one be on its way at a time: an actor that is slow gets the newest."""

    def __init__(self, networks: FinetunedPolicy, learner: str, every: int, clock: Clock) -> None:
        """Every `every` updates there is a new version of the networks of the learner of this uuid."""
        self.version = 0
        self._learner = learner
        self._networks, self._every, self._clock = networks, every, clock
        # An actor has the base as it is now.
        self._base = {name: value.clone() for name, value in networks.base.state_dict().items()}
        self._warm, self._since = False, 0
        self._used, self._sent = 0, 0

    def updated(self, count: int) -> None:
        """So many updates were made."""
        self._since += count

    def used(self, version: int) -> None:
        """A step has acted with this version."""
        self._used = version

    def due(self, warm: bool) -> bool:
        """Whether a new version shall be sent."""
        arrived = self._used == self.version or self._clock.now() - self._sent > _LOST
        return arrived and (self._since >= self._every or warm != self._warm)

    def next(self, warm: bool) -> Weights:
        """The networks as they are, as a new version."""
        self.version += 1
        self._since, self._warm, self._sent = 0, warm, self._clock.now()
        return self.current(warm)

    def current(self, warm: bool) -> Weights:
        """The networks as they are, for an actor that begins."""
        tensors = {
            name: value
            for name, value in self._networks.state_dict().items()
            if not name.startswith("base.") or not torch.equal(value, self._base[name.removeprefix("base.")])
        }
        return Weights(learner=self._learner, version=self.version, warm=warm, tensors=pack_tensors(tensors))
