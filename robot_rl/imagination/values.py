"""Values of states that a world model predicts, from which targets of imagined chunks bootstrap.

A base in this process is queried at predicted states or features (`QueriedValues`). For one behind a server,
and for one that uses images where only states are predicted, V regresses what the critics' own targets
bootstrap from at real states, of which the replay has samples of the base (`LearnedValues`):

    L_V = (V(s') - max over stored samples and their corrections A' of min_{j in subset} Q'_j(s', A'))^2
"""

import math
from collections.abc import Mapping
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from robot_rl.data.replay_buffer import Batch
from robot_rl.imagination.layout import Layout
from robot_rl.learning.augmentation import augment_images
from robot_rl.learning.critics import gradient_step
from robot_rl.learning.learner import CandidatesLearner, ChunkLearner
from robot_rl.learning.off_policy import observation
from robot_rl.policies.bases.base_policy import BasePolicy, Chunk
from robot_rl.policies.chunk_runner import sample_base
from robot_rl.policies.nets.actors import trunk
from robot_rl.policies.nets.encoder import FEATURE_FLOOR, StateNorm

_HIDDEN = (256, 256)
_LR = 1e-3
"""Above the critics' learning rate, so that V follows them."""


class StateValues(Protocol):
    """Values of states."""

    def __call__(self, frames: Tensor, generator: torch.Generator) -> Tensor:
        """Values [B] of the last of two frames [B, 2, S]; the same state of the generator gives the same."""
        ...


class BaseSampler:
    """Queries the base at states, or its action head at features."""

    def __init__(self, base: BasePolicy, samples: int, length: int, layout: Layout) -> None:
        """Build the sampler.

        Args:
            base: the base policy.
            samples: samples N of an observation.
            length: steps h of a chunk that are executed; 1 for a method that learns from single actions.
            layout: of the model's vectors.
        """
        self.base, self.samples, self.length, self.layout = base, samples, length, layout
        self.queries = 0
        """Observations for which the base was sampled."""

    @property
    def is_queryable(self) -> bool:
        """Whether the base can be asked at predicted states; of features one in this process is."""
        return self.base.is_queryable or (bool(self.layout.frames) and not self.base.is_remote)

    @torch.no_grad()
    def __call__(self, frames: Tensor, generator: torch.Generator) -> Chunk:
        """Executed parts [B, N, h, A] of samples for frames [B, 2, S], and their noise."""
        spec, noise, count = self.base.spec, None, 1
        if spec.noise_shape is not None:
            count = self.samples
            noise = self.base.draw_noise(len(frames), count, generator)
        seen = (
            self.layout.observation(frames) if self.layout.frames else {"state": frames[:, -spec.obs_steps :]}
        )
        self.queries += len(frames)
        drawn = sample_base(self.base, seen, noise, count)
        return drawn.executed(self.length)


class QueriedValues:
    """The critics' values of what the policy does with new samples of the base."""

    def __init__(self, learner: ChunkLearner, sample_base: BaseSampler) -> None:
        self.learner, self.sample_base = learner, sample_base

    def __call__(self, frames: Tensor, generator: torch.Generator) -> Tensor:
        samples = self.sample_base(frames, generator)
        return self.learner.next_value(self.sample_base.layout.observation(frames), samples, generator)


class LearnedValues(nn.Module):
    """V(s), which learns from each real batch what the critics bootstrap from there."""

    def __init__(self, learner: CandidatesLearner, layout: Layout, size: int, seed: int) -> None:
        """Build the network.

        Args:
            learner: whose bootstrap it learns.
            layout: of the model's vectors.
            size: of such a vector, S.
            seed: of the weights.
        """
        super().__init__()
        self.learner, self.layout = learner, layout
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            self.net = nn.Sequential(trunk(size, _HIDDEN), nn.Linear(_HIDDEN[-1], 1))
        self.norm = StateNorm(size)
        self.optimizer = torch.optim.AdamW(self.net.parameters(), _LR, fused=True)
        self.updates = 0

    def fit_norm(self, vectors: Tensor) -> None:
        """Standardise by vectors [T, S]; features that hardly change stay small, as in critics' encoders."""
        self.norm.fit(vectors.numpy())
        self.norm.std[self.layout.state :].clamp_(min=FEATURE_FLOOR)

    @torch.no_grad()
    def forward(self, frames: Tensor, generator: torch.Generator) -> Tensor:
        del generator
        return self._value(frames[:, -1])

    def update(self, real: Batch, generator: torch.Generator) -> None:
        """One gradient step towards the learner's bootstrap at the next states of a real batch."""
        target = self.learner.bootstrap_value(augment_images(real, generator), generator)
        seen = self.layout.vectors(observation(real, "next."))
        loss = (self._value(seen) - target).square().mean()
        gradient_step(self.optimizer, loss, list(self.net.parameters()), math.inf)
        self.updates += 1

    @torch.no_grad()
    def complete(self, imagined: Batch) -> Batch:
        """Imagined transitions with whole targets, R + gamma^len V(s'), from which nothing bootstraps."""
        value = self._value(self.layout.newest(observation(imagined, "next.")))
        reward = imagined["reward"] + imagined["discount"] * value
        return {**imagined, "reward": reward, "discount": torch.zeros_like(reward)}

    def checkpoint(self) -> dict[str, Any]:
        """Everything that a resumed run needs."""
        return {
            "networks": self.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "updates": self.updates,
        }

    def restore(self, state: Mapping[str, Any]) -> None:
        """Go on from what `checkpoint` returned."""
        self.load_state_dict(state["networks"])
        self.optimizer.load_state_dict(state["optimizer"])
        self.updates = state["updates"]

    def _value(self, state: Tensor) -> Tensor:
        value: Tensor = self.net(self.norm(state))
        return value.squeeze(-1)
