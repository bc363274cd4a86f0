"""The interface between base policies, learned from demonstrations, and RL.

Letters in shapes: B batch, N samples per observation, H prediction horizon, h <= H executed
steps, To observation steps, S state size, A action size.
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import asdict, dataclass

import torch
from torch import Tensor, nn

ObservationHistory = Mapping[str, Tensor]
"""B observations, each of To steps: `state` float32 [B, To, S]; `images.<camera>` uint8 [B, To, H, W, 3]."""


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
    """Whether observation and noise alone determine the sample."""
    cameras: tuple[str, ...] = ()
    """Cameras whose images the policy uses."""
    image_size: tuple[int, int] | None = None
    """Height and width of these images; None without a camera."""

    def as_dict(self) -> dict:
        return asdict(self)


@dataclass(frozen=True)
class Chunk:
    """Action chunks sampled from a base policy."""

    actions: Tensor
    """Normalised actions, float32 [B, N, H, A] in [-1, 1]."""
    noise: Tensor | None
    """Latent noise of each sample, float32 [B, N, Hn, Dn]; None without a noise input."""


class BasePolicy(nn.Module, ABC):
    """A policy learned from demonstrations, frozen while RL trains around it."""

    spec: BaseSpec

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

    def draw_noise(
        self, batch: int, num_samples: int = 1, generator: torch.Generator | None = None
    ) -> Tensor:
        """N(0, I) noise [B, N, Hn, Dn], drawn on the CPU: a seed gives the same noise on every device."""
        if self.spec.noise_shape is None:
            raise ValueError(f"{type(self).__name__} takes no noise")
        shape = (batch, num_samples, *self.spec.noise_shape)
        return torch.randn(shape, generator=generator).to(self.device)

    @property
    def device(self) -> torch.device:
        return next(self.parameters()).device


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
