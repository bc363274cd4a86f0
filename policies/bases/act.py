"""ACT (Zhao et al. 2023, arXiv 2304.13705): a transformer that predicts the whole chunk at once.

It is the decoder of a conditional VAE. In training the decoder gets a style z from a posterior
q(z | state, actions), kept close to N(0, I), so that it need not average over different ways of doing the
task. At inference z = 0: the policy has no noise that RL could steer.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from robot_rl.policies.bases.base_policy import Chunk, check_features
from robot_rl.policies.bases.imitation import (
    ImitationConfig,
    ImitationPolicy,
    Totals,
    check_num_samples,
    check_positive,
    masked_mean,
)


@dataclass
class ACTConfig(ImitationConfig):
    """Action chunking with transformers."""

    name: str = "act"
    """Registered name of this kind of base policy."""
    width: int = 64
    """Width of the tokens, a multiple of `heads`."""
    heads: int = 4
    """Attention heads."""
    layers: int = 2
    """Layers of the posterior, and of the decoder's encoder and decoder each."""
    latent_size: int = 32
    """Size Z of the style variable z."""
    kl_weight: float = 10.0
    """Weight of KL(q(z | state, actions) || N(0, I)) in the loss."""


class ACTPolicy(ImitationPolicy):
    """Action chunking with transformers, without a noise input.

    Raises:
        ValueError: if the configuration is invalid.
    """

    config: ACTConfig
    takes_noise = False

    def _check_config(self) -> None:
        super()._check_config()
        config = self.config
        check_positive(config, "width", "heads", "layers", "latent_size")
        if config.width % config.heads:
            raise ValueError(f"width is {config.width}; it must be a multiple of heads, {config.heads}")

    def _build_networks(self) -> None:
        action_size = self.spec.action_size
        self.posterior = Posterior(self.config, self.spec.state_size, action_size)
        self.decoder = ChunkDecoder(self.config, self.frame_size, action_size)

    def draw(self, batch: int, generator: torch.Generator | None = None) -> dict[str, Tensor]:
        return {"style": torch.randn((batch, self.config.latent_size), generator=generator)}

    def partial_loss(self, batch: Mapping[str, Tensor], totals: Totals) -> Tensor:
        """Mean absolute error over the real actions, and the weighted KL (algorithm 1 of the paper)."""
        frames = self._encode(batch)
        actions, mask = self._real_actions(batch)
        # The posterior sees no images, as in the paper: the actions show the style.
        state = frames[..., : self.spec.state_size]
        mean, log_var = self.posterior(state, actions, mask.squeeze(-1))
        style = mean + (0.5 * log_var).exp() * batch["style"].to(self.device)
        kl = 0.5 * (log_var.exp() + mean.square() - 1 - log_var).sum(dim=1).sum() / totals.windows
        error = (self.decoder(frames, style) - actions).abs()
        return masked_mean(error, mask, totals.steps) + self.config.kl_weight * kl

    @torch.no_grad()
    def sample_from_features(
        self,
        features: Tensor,
        *,
        noise: Tensor | None = None,
        num_samples: int = 1,
        generator: torch.Generator | None = None,
    ) -> Chunk:
        """See `BasePolicy.sample_from_features`. All samples of an observation are the same."""
        del generator
        if noise is not None:
            raise ValueError("an act policy takes no noise; call it without, or train base=diffusion or flow")
        check_num_samples(num_samples)
        frames = check_features(features, self.feature_size).unflatten(1, (self.spec.obs_steps, -1))
        predicted = self.decoder(frames, frames.new_zeros(len(frames), self.config.latent_size))
        return Chunk(self._unnormalize(predicted).unsqueeze(1).repeat(1, num_samples, 1, 1), None)


class Posterior(nn.Module):
    """q(z | state, actions): [B, To, S], [B, H, A], mask [B, H] -> mean and log variance [B, Z]."""

    def __init__(self, config: ACTConfig, state_size: int, action_size: int) -> None:
        super().__init__()
        self.from_state = nn.Linear(state_size, config.width)
        self.from_action = nn.Linear(action_size, config.width)
        self.positions = _learned(1 + config.obs_steps + config.horizon, config.width)
        self.transformer = _transformer_encoder(config)
        self.head = nn.Linear(config.width, 2 * config.latent_size)

    def forward(self, state: Tensor, actions: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
        tokens = torch.cat([self.from_state(state), self.from_action(actions)], dim=1)
        # The first token is empty; the output is read there (a CLS token).
        tokens = nn.functional.pad(tokens, (0, 0, 1, 0)) + self.positions
        padding = nn.functional.pad(~mask, (1 + state.shape[1], 0), value=False)
        hidden = self.transformer(tokens, src_key_padding_mask=padding)[:, 0]
        mean, log_var = self.head(hidden).chunk(2, dim=-1)
        return mean, log_var


class ChunkDecoder(nn.Module):
    """p(actions | observation, z): frames [B, To, F] and style z [B, Z] -> normalised actions [B, H, A]."""

    def __init__(self, config: ACTConfig, frame_size: int, action_size: int) -> None:
        super().__init__()
        self.from_frame = nn.Linear(frame_size, config.width)
        self.from_style = nn.Linear(config.latent_size, config.width)
        self.positions = _learned(config.obs_steps + 1, config.width)
        self.encoder = _transformer_encoder(config)
        self.queries = _learned(config.horizon, config.width)
        layer = nn.TransformerDecoderLayer(**_layer(config))
        self.decoder = nn.TransformerDecoder(layer, config.layers, nn.LayerNorm(config.width))
        self.head = nn.Linear(config.width, action_size)

    def forward(self, frames: Tensor, style: Tensor) -> Tensor:
        tokens = torch.cat([self.from_frame(frames), self.from_style(style).unsqueeze(1)], dim=1)
        memory = self.encoder(tokens + self.positions)
        queries = self.queries.expand(len(frames), -1, -1)
        predicted: Tensor = self.head(self.decoder(queries, memory))
        return predicted


def _layer(config: ACTConfig) -> dict:
    """Arguments of torch's transformer layers, with pre-norm, which needs no warm-up.

    No dropout, unlike the paper's 0.1: it would draw from torch's global generator, and the averaged weights,
    which act, are regularised already.
    """
    return {
        "d_model": config.width,
        "nhead": config.heads,
        "dim_feedforward": 4 * config.width,
        "dropout": 0.0,
        "activation": "gelu",
        "batch_first": True,
        "norm_first": True,
    }


def _transformer_encoder(config: ACTConfig) -> nn.TransformerEncoder:
    layer = nn.TransformerEncoderLayer(**_layer(config))
    return nn.TransformerEncoder(layer, config.layers, nn.LayerNorm(config.width), enable_nested_tensor=False)


def _learned(tokens: int, width: int) -> nn.Parameter:
    return nn.Parameter(0.02 * torch.randn(tokens, width))
