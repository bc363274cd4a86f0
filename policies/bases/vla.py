"""A small vision-language-action policy, trained from scratch or with pretrained encoders.

After BAKU (Haldar et al. 2024, arXiv 2406.07539): one truncated ResNet-18 for all cameras, modulated by the
instruction in each block; a token for each camera, for proprioception and for the instruction; a transformer,
from whose action token a head predicts a chunk. The head is that of base=flow. Times are drawn closer to the
noise than to the data, as for pi0 (arXiv 2410.24164): where the chunk is still undecided the velocity is
hardest to predict, and a few steps of integration depend on it most.

A pretrained image encoder can take the place of the ResNet, with several tokens for each camera, and a
pretrained text encoder that of the one for the instruction.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Self

import torch
from torch import Tensor, nn

from robot_rl.policies.bases.base_policy import (
    ObservationHistory,
    check_images,
    check_instructions,
    check_observation,
)
from robot_rl.policies.bases.flow import TIME_SCALE, FlowConfig, FlowPolicy
from robot_rl.policies.bases.imitation import ImitationConfig, check_positive, checked_image_size
from robot_rl.policies.nets.film_resnet import CHANNELS_PER_GROUP, FiLMResNet
from robot_rl.policies.nets.language import SentenceEncoder, Tokenizer, vocabulary_of
from robot_rl.policies.nets.normalizer import OBSERVATION_BOUND
from robot_rl.policies.nets.pretrained import (
    PretrainedEncoder,
    PretrainedImages,
    PretrainedSentence,
    describe_image_encoder,
    describe_text_encoder,
)

NOISE_BIAS = 1.5
"""1 - t is drawn from Beta(NOISE_BIAS, 1), whose density grows towards the noise, t = 0."""


@dataclass
class VLAConfig(FlowConfig):
    """Vision-language-action policy: instructions, images and proprioception."""

    name: str = "vla"
    """Registered name of this kind of base policy."""
    horizon: int = 10
    """Control steps H that the policy predicts at once (its chunk)."""
    execute: int = 5
    """Control steps h of each chunk that are executed, at most H."""
    inference_steps: int = 5
    """Euler steps of each prediction."""
    draws: int = 8
    """Times and noises drawn for each window of a batch."""
    channels: list[int] = field(default_factory=lambda: [32, 64, 128])
    """Channels of each stage of the ResNet; ResNet-18 has [64,128,256,512]."""
    tokens_width: int = 128
    """Width of the transformer, a multiple of `heads`."""
    heads: int = 4
    """Attention heads."""
    layers: int = 3
    """Layers of the transformer."""
    bf16: bool = False
    """Compute images and transformer in bfloat16; weights and the action head stay in float32."""
    checkpointing: bool = False
    """Compute the ResNet's activations again in the backward pass: a third slower, with less memory."""
    words: list[str] = field(default_factory=list)
    """Words that instructions may have; [] for those of the dataset."""
    vision: str | None = None
    """Directory of a pretrained image encoder of transformers, to be trained further; null for a ResNet."""
    text: str | None = None
    """Directory of a pretrained text encoder of transformers, which stays as it is; null for a small one that
    is trained and knows the dataset's words alone."""
    pretrained: dict[str, Any] = field(default_factory=dict)
    """What a saved policy needs to know of these two; filled in by the training."""


class VLAPolicy(FlowPolicy):
    """Flow matching of chunks from instruction, images and state.

    Its features are what the transformer's action token says of each observed step.

    Raises:
        ValueError: if the configuration is invalid, or there is no camera.
    """

    config: VLAConfig
    takes_instruction = True

    def _check_config(self) -> None:
        super()._check_config()
        config = self.config
        check_positive(config, "tokens_width", "heads", "layers")
        if config.encoder != ImitationConfig.encoder:
            raise ValueError("base=vla has a ResNet for images: leave out base.encoder")
        wrong = [count for count in config.channels if count < 1 or count % CHANNELS_PER_GROUP]
        if wrong or not config.channels:
            raise ValueError(
                f"channels is {config.channels}; give a multiple of {CHANNELS_PER_GROUP} for each stage"
            )
        if config.tokens_width % config.heads:
            raise ValueError(
                f"tokens_width is {config.tokens_width}; it must be a multiple of heads, {config.heads}"
            )
        if not self.spec.cameras:
            raise ValueError("base=vla needs images: add task.cameras=[…] and collect the data with them")

    def _build_networks(self) -> None:
        super()._build_networks()
        config, width = self.config, self.config.tokens_width
        self.sentence: SentenceEncoder | PretrainedSentence
        if described := config.pretrained.get("text"):
            self.sentence = PretrainedSentence(described, width)
            self._tokenizer: Tokenizer = self.sentence.tokenizer()
        else:
            self.sentence = SentenceEncoder(len(config.words), width, config.heads)
            self._tokenizer = Tokenizer(config.words)
        self.from_state = nn.Linear(self.spec.state_size, width)
        # The action token first, then instruction, proprioception and cameras.
        self.action_token = nn.Parameter(0.02 * torch.randn(width))
        self.kinds = nn.Parameter(0.02 * torch.randn(2 + len(self.spec.cameras), width))
        layer = nn.TransformerEncoderLayer(
            width, config.heads, 4 * width, dropout=0.0, activation="gelu", batch_first=True, norm_first=True
        )
        self.transformer = nn.TransformerEncoder(
            layer, config.layers, nn.LayerNorm(width), enable_nested_tensor=False
        )

    @classmethod
    def for_instructions(cls, config: ImitationConfig, instructions: Iterable[str]) -> ImitationConfig:
        """The configuration with the words of these instructions, unless it names words."""
        assert isinstance(config, VLAConfig)
        if config.pretrained:
            raise ValueError("base.pretrained is filled in by the training: leave it out")
        if config.vision and (config.checkpointing or config.channels != VLAConfig().channels):
            raise ValueError(
                "base.channels and base.checkpointing are of the ResNet: leave out base.vision or them"
            )
        instructions, pretrained = sorted(set(instructions)), {}
        if config.vision:
            pretrained["vision"] = describe_image_encoder(config.vision)
        if config.text:
            pretrained["text"] = describe_text_encoder(config.text, instructions)
        words = config.words or vocabulary_of(instructions)
        if not config.text:
            known = Tokenizer(words)
            for text in instructions:
                known.numbers_of(text)
        return replace(config, words=words, pretrained=pretrained)

    def load_pretrained(self) -> None:
        config, images, sentence = self.config, self.vision[0], self.sentence
        if config.vision and isinstance(images, PretrainedImages):
            images.load(config.vision)
        if config.text and isinstance(sentence, PretrainedSentence):
            sentence.load(config.text)

    def unfreeze(self) -> Self:
        super().unfreeze()
        for part in (self.vision[0], self.sentence):
            if isinstance(part, PretrainedEncoder):
                part.freeze_constants()
        return self

    @property
    def example_instruction(self) -> str:
        return self.config.words[0]

    def check_instruction(self, text: str) -> None:
        self._tokenizer.numbers_of(text)

    def _build_vision(self, image_size: Sequence[int] | None) -> tuple[nn.ModuleList, int]:
        config, width = self.config, self.config.tokens_width
        size, again = checked_image_size(image_size), config.checkpointing
        if described := config.pretrained.get("vision"):
            return nn.ModuleList([PretrainedImages(described, width)]), width
        shared = FiLMResNet(size, config.channels, width, width, checkpointing=again)
        return nn.ModuleList([shared]), width

    def _draw_times(self, batch: int, generator: torch.Generator | None) -> Tensor:
        return TIME_SCALE * (1 - torch.rand(batch, generator=generator).pow(1 / NOISE_BIAS))

    def features_of_state(self, state: Tensor) -> Tensor:
        """None: state, images and words are mixed in one token."""
        return state[:, :0]

    def _encode(self, obs: ObservationHistory) -> Tensor:
        """What the action token says of each observed step, float32 [B, To, F]."""
        images = check_images(obs, self.spec)
        state = check_observation(obs, self.spec).to(self.device, torch.float32)
        numbers = self._tokenizer(check_instructions(obs)[:, -1]).to(self.device)
        batch, steps = state.shape[:2]
        kind = self.device.type
        # Also where training with mixed precision has enabled it for the whole policy.
        bf16 = self.config.bf16 or torch.is_autocast_enabled(kind)
        with torch.autocast(kind, torch.bfloat16, enabled=bf16):
            # A batch has few different instructions.
            distinct, which = numbers.unique(dim=0, return_inverse=True)
            sentence = self.sentence(distinct)[which].repeat_interleave(steps, 0)
            seen = torch.cat([camera.to(self.device).flatten(0, 1) for camera in images])
            views = self.vision[0](seen, sentence.repeat(len(images), 1))
            # Of each camera one token, or several.
            views = views.view(len(images), len(sentence), -1, views.shape[-1]) + self.kinds[2:, None, None]
            proprioception = self.state_normalizer.normalize(state, bound=OBSERVATION_BOUND).flatten(0, 1)
            known = torch.stack([sentence, self.from_state(proprioception)], 1) + self.kinds[:2]
            known = torch.cat([known, *views], 1)
            action = self.action_token.expand(len(known), 1, -1)
            features: Tensor = self.transformer(torch.cat([action, known], 1))[:, 0]
        return features.float().unflatten(0, (batch, steps))
