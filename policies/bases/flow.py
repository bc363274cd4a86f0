"""Flow matching (Lipman et al. 2022, arXiv 2210.02747) on straight paths (arXiv 2209.03003).

Training draws a time t and noise z, puts the chunk x_1 at

    x_t = (1 - t) z + t x_1,        z ~ N(0, I), t ~ U[0, 1]        (eq. 22 with sigma_min = 0)

and regresses the velocity x_1 - z (eq. 23). Inference starts at the given noise and integrates
dx/dt = v(x, t) from t = 0 to 1 by Euler's method.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from robot_rl.policies.bases.generative import GenerativeConfig, GenerativePolicy, begin_with
from robot_rl.policies.bases.imitation import check_positive

TIME_SCALE = 64.0
"""The network gets TIME_SCALE * t, the range for which its sinusoidal embedding is made."""


@dataclass
class FlowConfig(GenerativeConfig):
    """Flow-matching policy."""

    name: str = "flow"
    """Registered name of this kind of base policy."""
    inference_steps: int = 10
    """Euler steps of each prediction."""


class FlowPolicy(GenerativePolicy):
    """Flow-matching policy whose network predicts the velocity.

    Raises:
        ValueError: if the configuration is invalid.
    """

    config: FlowConfig

    def __init__(
        self,
        config: FlowConfig,
        state_size: int,
        action_size: int,
        cameras: Sequence[str] = (),
        image_size: Sequence[int] | None = None,
    ) -> None:
        super().__init__(config, state_size, action_size, cameras, image_size)
        check_positive(config, "inference_steps")
        steps = torch.arange(config.inference_steps) / config.inference_steps
        self.register_buffer("timesteps", TIME_SCALE * steps, persistent=False)

    def _draw_times(self, batch: int, generator: torch.Generator | None) -> Tensor:
        return TIME_SCALE * torch.rand(batch, generator=generator)

    def _interpolate(self, clean: Tensor, noise: Tensor, times: Tensor) -> tuple[Tensor, Tensor]:
        return torch.lerp(noise, clean, times[:, None, None] / TIME_SCALE), clean - noise

    def _integrate(self, x: Tensor, conditions: Iterable[Tensor], prefix: Tensor | None) -> Tensor:
        for condition in conditions:
            x = begin_with(prefix, x)
            x = x.add(self.denoiser(x, condition), alpha=1 / self.config.inference_steps)
        return begin_with(prefix, x)
