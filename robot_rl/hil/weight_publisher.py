"""Decides when new weights are sent to which actors, and numbers their versions."""

from collections.abc import Iterable
from typing import Final

from robot_rl.hardware.clock import MS, Clock
from robot_rl.hil.link.messages import Weights, pack_tensors
from robot_rl.policies.finetuned.finetuned_policy import FinetunedPolicy

_ASSUMED_LOST: Final = 2000 * MS
"""Time after which a version that no step has used counts as lost, ns."""


class WeightPublisher:
    """Numbers versions. Only one at a time is on its way to an actor, so a slow one skips to the newest."""

    def __init__(
        self, networks: FinetunedPolicy, learner: str, every: int, clock: Clock, actors: int = 1
    ) -> None:
        """Publish `networks` of the learner with this id (a uuid), every `every` updates."""
        self.version = 0
        self._learner = learner
        self._networks, self._every, self._clock = networks, every, clock
        # The actors start with the current base, so an unchanged base is not sent.
        self._base = {name: value.clone() for name, value in networks.base.state_dict().items()}
        self._warm, self._since = False, 0
        self._used, self._sent, self._sent_at = [0] * actors, [0] * actors, [0] * actors
        """By actor: newest version used, newest version sent, and when it was sent [ns]."""

    def count_updates(self, count: int) -> None:
        """Report `count` more updates."""
        self._since += count

    def mark_used(self, actor: int, version: int) -> None:
        """Report that an actor made a step with this version."""
        self._used[actor] = version

    def due(self, warm: bool, connected: Iterable[int]) -> list[int]:
        """Those of the connected actors to which a new version is to be sent now.

        `warm` is whether the trained networks may act. An actor whose last version is still on its way gets
        the next one.
        """
        if self._since < self._every and warm == self._warm:
            return []
        return [actor for actor in connected if self._arrived(actor)]

    def next(self, warm: bool, actors: Iterable[int]) -> Weights:
        """The current networks, as a new version for these actors."""
        self.version += 1
        self._since, self._warm = 0, warm
        for actor in actors:
            self._sent[actor], self._sent_at[actor] = self.version, self._clock.now()
        return self.current(warm)

    def current(self, warm: bool) -> Weights:
        """The current networks, for a new actor."""
        tensors = self._networks.weights_besides(self._base)
        return Weights(learner=self._learner, version=self.version, warm=warm, tensors=pack_tensors(tensors))

    def _arrived(self, actor: int) -> bool:
        used = self._used[actor] >= self._sent[actor]
        return used or self._clock.now() - self._sent_at[actor] > _ASSUMED_LOST
