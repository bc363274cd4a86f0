"""Base class of policies trained by behaviour cloning: configuration, normalisation, image encoders."""

from abc import abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar, NamedTuple, Self

import torch
from numpy.typing import ArrayLike
from torch import Tensor, nn

from robot_rl.policies.bases.base_policy import (
    BasePolicy,
    BaseSpec,
    Chunk,
    ObservationHistory,
    check_images,
    check_observation,
)
from robot_rl.policies.nets.encoder import ENCODERS
from robot_rl.policies.nets.normalizer import ACTION_MIN_RANGE, OBSERVATION_BOUND, STATE_MIN_RANGE, Normalizer
from robot_rl.policies.nets.vision import FEATURE_SIZE, check_image_size


@dataclass
class ImitationConfig:
    """Options of all base policies."""

    name: str
    """Registered name of this kind of base policy."""
    horizon: int = 8
    """Control steps H that the policy predicts at once (its chunk)."""
    execute: int = 4
    """Control steps h of each chunk that are executed, at most H."""
    obs_steps: int = 1
    """Latest observations To that the policy sees."""
    encoder: str = "conv"
    """Encoder of each camera's images: `conv`, `spatial` (spatial softmax) or `vit`."""


class Totals(NamedTuple):
    """What the means in the loss of a batch divide by."""

    windows: int
    steps: Tensor
    """Control steps whose actions count, an integer scalar."""


class ImitationPolicy(BasePolicy):
    """A base policy that behaviour cloning can train.

    Args:
        config: its options.
        state_size: size S of the state.
        action_size: size A of an action.
        cameras: cameras that it uses, each with its own encoder, trained with the policy.
        image_size: height and width of the images in pixels.

    Raises:
        ValueError: if the configuration is invalid.
    """

    config: ImitationConfig
    """The configuration that the policy was built from."""
    takes_noise: ClassVar[bool]
    """Whether the policy has a latent noise input, of the shape [H, A] of a chunk."""
    takes_instruction: ClassVar[bool] = False
    """Whether the policy reads instructions."""

    def __init__(
        self,
        config: ImitationConfig,
        state_size: int,
        action_size: int,
        cameras: Sequence[str] = (),
        image_size: Sequence[int] | None = None,
    ) -> None:
        super().__init__()
        self.config = config
        self.spec = BaseSpec(
            state_size=state_size,
            action_size=action_size,
            horizon=config.horizon,
            execute=config.execute,
            obs_steps=config.obs_steps,
            noise_shape=(config.horizon, action_size) if self.takes_noise else None,
            deterministic=True,
            cameras=tuple(cameras),
            image_size=checked_image_size(image_size) if cameras else None,
            instruction=self.takes_instruction,
        )
        self._check_config()
        self.state_normalizer = Normalizer(state_size)
        self.action_normalizer = Normalizer(action_size)
        self.vision, self.frame_size = self._build_vision(image_size)
        """Encoders of the images, and size F of the encoded observation of one step."""
        self._build_networks()

    def _check_config(self) -> None:
        """Check the configuration; raises ValueError if it is invalid."""
        config = self.config
        check_positive(config, "horizon", "execute", "obs_steps")
        if config.execute > config.horizon:
            raise ValueError(f"execute is {config.execute}; it must not exceed horizon, {config.horizon}")
        if config.encoder not in ENCODERS:
            raise ValueError(f"encoder is {config.encoder!r}; choose from {', '.join(ENCODERS)}")

    def _build_networks(self) -> None:
        """Build the networks behind the encoders."""

    @classmethod
    def for_instructions(cls, config: ImitationConfig, instructions: Iterable[str]) -> ImitationConfig:
        """The configuration for data with these instructions."""
        del instructions
        return config

    def load_pretrained(self) -> None:
        """Load the pretrained weights that the configuration names, into a new policy.

        Raises:
            ValueError: if they do not fit.
        """

    def unfreeze(self) -> Self:
        """Let all weights learn that learn in a new policy of this kind; returns the policy."""
        return self.requires_grad_(True).train()

    def _build_vision(self, image_size: Sequence[int] | None) -> tuple[nn.ModuleList, int]:
        """Encoders of the spec's cameras, and the size F of an encoded observation."""
        cameras, encoder = self.spec.cameras, ENCODERS[self.config.encoder]
        encoders = nn.ModuleList(encoder(checked_image_size(image_size)) for _ in cameras)
        return encoders, self.spec.state_size + len(cameras) * FEATURE_SIZE

    def sample(
        self,
        obs: ObservationHistory,
        *,
        noise: Tensor | None = None,
        num_samples: int = 1,
        generator: torch.Generator | None = None,
    ) -> Chunk:
        """See `BasePolicy.sample`; without gradients."""
        features = self.features(obs)
        return self.sample_from_features(features, noise=noise, num_samples=num_samples, generator=generator)

    @property
    def feature_size(self) -> int:
        """To * F, all that the network behind the encoders reads."""
        return self.spec.obs_steps * self.frame_size

    @torch.no_grad()
    def features(self, obs: ObservationHistory) -> Tensor:
        """Encoded observations [B, To * F], without gradients."""
        return self._encode(obs).flatten(1)

    def features_of_state(self, state: Tensor) -> Tensor:
        """The normalised state [B, S]."""
        return self.state_normalizer.normalize(state.to(self.device), bound=OBSERVATION_BOUND)

    def loss(self, batch: Mapping[str, Tensor], generator: torch.Generator | None = None) -> Tensor:
        """Behaviour-cloning loss, a scalar.

        Args:
            batch: `state` [B, To, S]; `images.<camera>` uint8 [B, To, H, W, 3]; `actions` [B, H, A]
                in [-1, 1]; `instruction` uint8 [B, To, L] for a policy that reads it;
                `mask` [B, H], 1 where the action is real and 0 (ignored) past the episode's end.
            generator: CPU generator of all random draws.
        """
        whole = {**batch, **self.draw(len(batch["state"]), generator)}
        return self.partial_loss(whole, self.totals(whole))

    @abstractmethod
    def draw(self, batch: int, generator: torch.Generator | None = None) -> dict[str, Tensor]:
        """Everything random in the loss of B windows, by name, each [B, …]."""

    @abstractmethod
    def partial_loss(self, batch: Mapping[str, Tensor], totals: Totals) -> Tensor:
        """Share of some windows in the loss of a batch; the shares of all its windows add up to the loss.

        Args:
            batch: as for `loss`, with what `draw` gave for these windows.
            totals: those of the whole batch.
        """

    def totals(self, batch: Mapping[str, Tensor]) -> Totals:
        """Totals of a batch, of which `mask` and what `draw` gave are read."""
        return Totals(len(batch["mask"]), self._counted(batch).sum())

    def _counted(self, batch: Mapping[str, Tensor]) -> Tensor:
        """Which steps count in the loss, bool [B, H, 1]."""
        return self._real_steps(batch)

    def _real_steps(self, batch: Mapping[str, Tensor]) -> Tensor:
        return batch["mask"].to(self.device).bool().unsqueeze(-1)

    def fit_normalizers(self, states: ArrayLike | Tensor, actions: ArrayLike | Tensor) -> None:
        """Fit the normalisers to all states [T, S] and actions [T, A] of the demonstrations.

        Raises:
            ValueError: if sizes differ from the policy's, or data is empty or not finite.
        """
        state = Normalizer.fit(states, min_range=STATE_MIN_RANGE)
        action = Normalizer.fit(actions, min_range=ACTION_MIN_RANGE)
        for name, fitted, size in (
            ("states", state, self.spec.state_size),
            ("actions", action, self.spec.action_size),
        ):
            if fitted.center.numel() != size:
                raise ValueError(f"{name} have {fitted.center.numel()} dimensions, the policy {size}")
        self.state_normalizer.load_state_dict(state.state_dict())
        self.action_normalizer.load_state_dict(action.state_dict())

    def _encode(self, obs: ObservationHistory) -> Tensor:
        """Encode observations as [B, To, F]: normalised, clamped state, then features of each image."""
        cameras = check_images(obs, self.spec)
        state = check_observation(obs, self.spec).to(self.device, torch.float32)
        parts = [self.features_of_state(state)]
        for encoder, images in zip(self.vision, cameras, strict=True):
            features = encoder(images.to(self.device).flatten(0, 1))
            parts.append(features.unflatten(0, state.shape[:2]))
        return torch.cat(parts, dim=-1)

    def _take_noise(
        self, noise: Tensor | None, batch: int, num_samples: int, generator: torch.Generator | None
    ) -> Tensor:
        """Check the noise [B, N, H, A] given to `sample`, or draw it if None."""
        check_num_samples(num_samples)
        if noise is None:
            return self.draw_noise(batch, num_samples, generator)
        shape = (batch, num_samples, self.spec.horizon, self.spec.action_size)
        if tuple(noise.shape) != shape:
            raise ValueError(f"noise has shape {tuple(noise.shape)}; this call needs {shape}, [B, N, H, A]")
        return noise.to(self.device, torch.float32)

    def _real_actions(
        self, batch: Mapping[str, Tensor], given: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        """Normalised actions [B, H, A], 0 where padded, and the mask [B, H, 1] of real ones.

        Networks see the padding too, so it must be constant. Where `given` [B, H, 1] is set, actions are as
        they were executed, also those that are not imitated.
        """
        mask = self._real_steps(batch)
        actions = self.action_normalizer.normalize(batch["actions"].to(self.device))
        return torch.where(mask if given is None else mask | given, actions, 0.0), mask

    def _unnormalize(self, actions: Tensor) -> Tensor:
        """Predicted actions [..., A] in the environment's units, clamped to [-1, 1]."""
        return self.action_normalizer.unnormalize(actions).clamp_(-1.0, 1.0)


def checked_image_size(size: Sequence[int] | None) -> tuple[int, int]:
    """Height and width of the images. Raises ValueError if they are missing or too small to be encoded."""
    if size is None or len(size) != 2:
        raise ValueError(f"image_size is {size}; a policy with cameras needs their height and width")
    check_image_size(size[0], size[1])
    return size[0], size[1]


def masked_mean(error: Tensor, mask: Tensor, steps: Tensor) -> Tensor:
    """Mean of [B, H, A] over the steps where the mask [B, H, 1] is set; 0 if it is set nowhere.

    `steps` says in how many steps it is set, here and in the other parts of the batch.
    """
    return (error * mask).sum() / (steps * error.shape[-1]).clamp(min=1)


def check_num_samples(num_samples: int) -> None:
    """Raise ValueError if fewer than one sample is asked for."""
    if num_samples < 1:
        raise ValueError(f"num_samples is {num_samples}; ask for at least one")


def check_positive(config: object, *names: str) -> None:
    """Raise ValueError if one of these options is less than 1."""
    for name in names:
        if getattr(config, name) < 1:
            raise ValueError(f"{name} is {getattr(config, name)}; it must be at least 1")
