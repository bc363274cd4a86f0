"""The interface between base policies, learned from demonstrations, and RL.

Letters in shapes: B batch, N samples per observation, H prediction horizon, h <= H executed
steps, To observation steps, S state size, A action size, D feature size.
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from robot_rl.policies.nets.encoder import FEATURES

ObservationHistory = Mapping[str, Tensor]
"""B observations, each of To steps: `state` float32 [B, To, S]; `images.<camera>` uint8 [B, To, H, W, 3];
`instruction` uint8 [B, To, L], UTF-8 padded with zeros."""


NOISE_TOLERANCE = 1e-5
"""Largest difference of two normalised actions that a GPU's order of summation may cause."""


@dataclass(frozen=True)
class BaseSpec:
    """Sizes and properties of a base policy."""

    state_size: int
    action_size: int
    horizon: int
    """Predicted steps H."""
    execute: int
    """Executed steps h of each prediction."""
    obs_steps: int
    """Observation steps To."""
    noise_shape: tuple[int, int] | None
    """Shape [Hn, Dn] of the latent noise input, or None for a policy without one."""
    deterministic: bool
    """Whether observation and noise alone determine the sample; if not, the policy draws its own noise."""
    cameras: tuple[str, ...] = ()
    """Cameras whose images the policy uses."""
    image_size: tuple[int, int] | None = None
    """Height and width of these images; None without a camera."""
    instruction: bool = False
    """Whether the policy reads the instruction."""

    def as_dict(self) -> dict:
        return asdict(self)

    def distinct(self, samples: int) -> int:
        """How many of so many samples for one observation differ: at most one without any noise."""
        return min(samples, 1) if self.noise_shape is None and self.deterministic else samples


@dataclass(frozen=True)
class Chunk:
    """Action chunks sampled from a base policy."""

    actions: Tensor
    """Normalised actions, float32 [B, N, H, A] in [-1, 1]."""
    noise: Tensor | None
    """Latent noise of each sample, float32 [B, N, Hn, Dn]; None without a noise input."""

    def __getitem__(self, rows: "Tensor | tuple[Tensor, Tensor]") -> "Chunk":
        """The samples of some rows [B], or those at rows and columns [B, N]."""
        return Chunk(self.actions[rows], None if self.noise is None else self.noise[rows])

    def executed(self, steps: int) -> "Chunk":
        """The first h actions of the samples, which are executed."""
        return Chunk(self.actions[:, :, :steps], self.noise)


class BasePolicy(nn.Module, ABC):
    """A policy learned from demonstrations, frozen while RL trains around it.

    Most consist of an encoder and an action head. Then `features` gives all that the head reads of an
    observation, so that code that stores them can sample later without images.
    """

    spec: BaseSpec
    is_remote: bool = False
    """Whether sampling asks a server, which may be slow or lost."""

    @abstractmethod
    def sample(
        self,
        obs: ObservationHistory,
        *,
        noise: Tensor | None = None,
        num_samples: int = 1,
        generator: torch.Generator | None = None,
    ) -> Chunk:
        """Draw action chunks.

        Args:
            obs: B observations.
            noise: latent noise [B, N, Hn, Dn] with N = `num_samples`; drawn from N(0, I) if None.
            num_samples: samples N per observation.
            generator: CPU generator of the noise, if none is given.

        Raises:
            ValueError: if the policy takes no noise, or if noise or observation have another shape than the
                spec says.
        """

    @property
    def feature_size(self) -> int | None:
        """Size D of the features; None for a policy that gives none."""
        return None

    def features(self, obs: ObservationHistory) -> Tensor:
        """All that the action head reads of B observations, frame after frame, float32 [B, D].

        Raises:
            ValueError: if the policy gives no features, or the observations have another shape than in the
                spec.
        """
        del obs
        raise ValueError(f"{type(self).__name__} gives no features of its observations")

    def features_of_state(self, state: Tensor) -> Tensor:
        """The first features [B, K] of a frame, those that depend on its state [B, S] alone."""
        return state[:, :0]

    def sample_from_features(
        self,
        features: Tensor,
        *,
        noise: Tensor | None = None,
        num_samples: int = 1,
        generator: torch.Generator | None = None,
    ) -> Chunk:
        """What `sample` draws for the observations that these features [B, D] are of.

        Raises:
            ValueError: as `sample`, or if the policy gives no features.
        """
        del features, noise, num_samples, generator
        raise ValueError(f"{type(self).__name__} does not sample from features")

    @property
    def max_prefix(self) -> int:
        """Largest number of committed actions that `sample_after` takes."""
        return 0

    def sample_after(
        self, obs: ObservationHistory, prefix: Tensor, *, noise: Tensor | None = None, num_samples: int = 1
    ) -> Chunk:
        """Draw chunks that begin with actions that will be executed before the chunk is ready.

        Args:
            obs: B observations.
            prefix: committed actions [B, d, A] in [-1, 1], d at most `max_prefix`.
            noise: as for `sample`.
            num_samples: samples N per observation.

        Raises:
            ValueError: as `sample`, or if the policy was not trained with prefixes of this length.
        """
        del obs, noise, num_samples
        raise ValueError(
            f"a prefix of {prefix.shape[1]} actions is given, and the base takes {self.max_prefix} at most: "
            "train it with a larger base.max_prefix"
        )

    @property
    def takes_guidance(self) -> bool:
        """Whether `sample_guided` can draw chunks."""
        return False

    def sample_guided(
        self,
        obs: ObservationHistory,
        previous: Tensor,
        committed: int,
        *,
        noise: Tensor | None = None,
        num_samples: int = 1,
    ) -> Chunk:
        """Draw chunks that are guided to go on from the previous one, without training for it.

        Args:
            obs: B observations.
            previous: what is left of the previous chunk [B, L, A] in [-1, 1], L <= H; its first action is
                meant for the step of the observation.
            committed: number d of these actions that will be executed whatever is drawn.
            noise: as for `sample`.
            num_samples: samples N per observation.

        Raises:
            ValueError: as `sample`, or if the policy takes no guidance.
        """
        del obs, previous, committed, noise, num_samples
        raise ValueError(f"{type(self).__name__} takes no guidance")

    def draw_noise(
        self, batch: int, num_samples: int = 1, generator: torch.Generator | None = None
    ) -> Tensor:
        """N(0, I) noise [B, N, Hn, Dn], drawn on the CPU: a seed gives the same noise on every device."""
        if self.spec.noise_shape is None:
            raise ValueError(f"{type(self).__name__} takes no noise")
        shape = (batch, num_samples, *self.spec.noise_shape)
        return torch.randn(shape, generator=generator).to(self.device)

    def save(self, directory: Path, meta: Mapping[str, Any]) -> None:
        """Write a policy that is not in `robot_rl.policies.registry.BASES` to a directory.

        Args:
            directory: where its loader will find it.
            meta: metadata of the caller.

        Raises:
            ValueError: if this kind of policy cannot be saved.
        """
        del directory, meta
        raise ValueError(f"{type(self).__name__} cannot be saved")

    @property
    def is_queryable(self) -> bool:
        """Whether the policy can be asked at states that only a model predicts: here, and without images."""
        return not (self.is_remote or self.spec.cameras)

    @property
    def example_instruction(self) -> str:
        """An instruction that the policy can be given."""
        return "anything"

    def check_instruction(self, text: str) -> None:
        """Check that the policy can be given this instruction, before it acts.

        Raises:
            ValueError: if it does not know a word of it.
        """
        del text

    @property
    def device(self) -> torch.device:
        return next(self.parameters()).device


def features_in(obs: ObservationHistory, base: BasePolicy) -> Tensor:
    """The base's features [B, D] that observations hold, or else those that it computes of them."""
    return obs[FEATURES] if FEATURES in obs else base.features(obs)


def check_observation(obs: ObservationHistory, spec: BaseSpec) -> Tensor:
    """Check and return the `state` of a batch of observations, [B, To, S].

    Raises:
        ValueError: if it has another shape than the spec says.
    """
    state = obs["state"]
    expected = (spec.obs_steps, spec.state_size)
    if state.ndim != 3 or tuple(state.shape[1:]) != expected:
        raise ValueError(
            f"state has shape {tuple(state.shape)}, "
            f"the policy was trained on [B, {expected[0]}, {expected[1]}]"
        )
    return state


def check_features(features: Tensor, size: int) -> Tensor:
    """Check and return a batch of features [B, D]. Raises ValueError if they have another size than D."""
    if features.ndim != 2 or features.shape[1] != size:
        raise ValueError(f"features have shape {tuple(features.shape)}, the policy takes [B, {size}]")
    return features


def check_images(obs: ObservationHistory, spec: BaseSpec) -> list[Tensor]:
    """Check and return the images of a batch, uint8 [B, To, H, W, 3] for each camera of the spec.

    Raises:
        ValueError: if images are missing or have another type or shape than the spec says.
    """
    found = []
    for camera in spec.cameras:
        images = obs.get(f"images.{camera}")
        if images is None:
            raise ValueError(f"the observation has no images.{camera}, which the policy was trained on")
        expected = (len(obs["state"]), spec.obs_steps, *(spec.image_size or ()), 3)
        if images.dtype != torch.uint8 or tuple(images.shape) != expected:
            raise ValueError(
                f"images.{camera} are {images.dtype} {tuple(images.shape)}, "
                f"the policy was trained on uint8 {expected}"
            )
        found.append(images)
    return found


def check_instructions(obs: ObservationHistory) -> Tensor:
    """Check and return the instructions of a batch, uint8 [B, To, L].

    Raises:
        ValueError: if they are missing.
    """
    instructions = obs.get("instruction")
    if instructions is None:
        raise ValueError("the observation has no instruction, which the policy was trained on")
    return instructions


def random_observations(policy: BasePolicy, batch: int) -> ObservationHistory:
    """Random observations [B, To, …] of the shapes that a policy takes, on its device."""
    spec, generator = policy.spec, torch.Generator().manual_seed(0)
    obs = {"state": torch.randn(batch, spec.obs_steps, spec.state_size, generator=generator)}
    for camera in spec.cameras:
        shape = (batch, spec.obs_steps, *(spec.image_size or ()), 3)
        obs[f"images.{camera}"] = torch.randint(0, 256, shape, dtype=torch.uint8, generator=generator)
    if spec.instruction:
        text = torch.tensor(list(policy.example_instruction.encode()), dtype=torch.uint8)
        obs["instruction"] = text.repeat(batch, spec.obs_steps, 1)
    return {name: value.to(policy.device) for name, value in obs.items()}


def is_steered_by_noise(policy: BasePolicy, obs: ObservationHistory) -> bool:
    """Whether a policy's actions depend on its noise input, and on nothing else random.

    True if for every observation in `obs` other noise gives other actions and the same noise gives the same
    actions.
    """
    if policy.spec.noise_shape is None:
        return False
    batch = obs["state"].shape[0]
    generator = torch.Generator().manual_seed(0)
    first, other = (policy.draw_noise(batch, generator=generator) for _ in range(2))
    actions = policy.sample(obs, noise=first).actions
    again = policy.sample(obs, noise=first).actions
    changed = policy.sample(obs, noise=other).actions
    repeats = (again - actions).abs().amax() <= NOISE_TOLERANCE
    steers = ((changed - actions).abs().flatten(1).amax(dim=1) > NOISE_TOLERANCE).all()
    return bool(repeats & steers)
