"""Pretrained encoders of images and of sentences, from a directory of Hugging Face transformers.

A saved policy needs neither the directory nor a download: what describes an encoder is in its configuration,
and the weights and the tokenizer are among its own.
"""

import json
from collections.abc import Mapping
from pathlib import Path
from types import ModuleType
from typing import Any, Final

import numpy as np
import torch
import torch.nn.functional as F
from safetensors import SafetensorError
from torch import Tensor, nn

from robot_rl.policies.nets.language import Tokenizer

GRID: Final = 4
"""Rows and columns of the tokens of an image."""
MOST_TOKENS: Final = 64
"""Longest instruction, in tokens."""
_PADDING: Final = -1
_IMAGE_SIZE: Final = 224
"""Of an encoder that does not name a size, as a convolutional one."""
_TOKENIZER: Final = "tokenizer.json"


def describe_encoder(directory: str, *, text: bool) -> dict[str, Any]:
    """What a policy's configuration keeps of a pretrained encoder of text or images.

    Raises:
        ValueError: if the directory does not hold one.
    """
    described: dict[str, Any] = {"config": _read_json(directory, "config.json")}
    if "model_type" not in described["config"]:
        raise ValueError(f"{directory}/config.json names no model_type: it is not of transformers")
    if text:
        described["tokenizer_bytes"] = len(_read(directory, _TOKENIZER))
    else:
        _read_json(directory, "preprocessor_config.json")
    return described


class PretrainedEncoder(nn.Module):
    """A model of transformers, without what it has for other purposes."""

    tower: nn.Module
    PART: str
    """Attribute of the wanted part of a model of images and text."""

    def __init__(self, described: Mapping[str, Any]) -> None:
        """Build it with random weights. Raises ValueError if transformers cannot build it."""
        super().__init__()
        library = _transformers()
        try:
            config = library.AutoConfig.for_model(**described["config"])
            model = library.AutoModel.from_config(config)
        except (ValueError, TypeError, KeyError) as error:
            reason = str(error).partition("\n")[0]
            raise ValueError(f"transformers cannot build the pretrained encoder: {reason}") from error
        self.tower = self._part(model)
        sizes = config.to_dict()
        self._sizes = {**sizes, **sizes.get(f"{self.PART.removesuffix('_model')}_config", {})}

    def load(self, directory: str) -> None:
        """Take over the weights in a directory.

        Raises:
            ValueError: if one is missing or of another shape.
        """
        try:
            model, found = _transformers().AutoModel.from_pretrained(
                directory, local_files_only=True, use_safetensors=True, output_loading_info=True
            )
        except (OSError, ValueError, RuntimeError, SafetensorError) as error:
            raise ValueError(f"{directory}: {str(error).partition(chr(10))[0]}") from error
        weights = self._part(model).state_dict()
        wanted = tuple(name for name in self.tower.state_dict() if "pooler" not in name)
        if lost := [name for name in found["missing_keys"] if name.endswith(wanted)]:
            raise ValueError(f"{directory} lacks weights of its encoder: {sorted(lost)[0]}")
        self.tower.load_state_dict(weights)

    def _part(self, model: nn.Module) -> nn.Module:
        config: Any = model.config
        if getattr(config, "is_encoder_decoder", False):
            model = model.get_encoder()  # type: ignore[operator]
        part: nn.Module = getattr(model, self.PART, model)
        return part

    def _size(self, *names: str) -> int:
        """The first of some sizes that the configuration names."""
        found = [self._sizes[name] for name in names if isinstance(self._sizes.get(name), int)]
        if not found:
            raise ValueError(f"the pretrained {self._sizes['model_type']} names no {names[0]}")
        return int(found[0])


class PretrainedImages(PretrainedEncoder):
    """Images uint8 [B, H, W, 3] and a context, which it ignores -> tokens [B, GRID * GRID, F].

    Images are resized to what the encoder was trained on. It is trained further with the policy.
    """

    PART = "vision_model"
    mean: Tensor
    std: Tensor

    def __init__(self, described: Mapping[str, Any], feature_size: int) -> None:
        super().__init__(described)
        size = self._sizes.get("image_size", _IMAGE_SIZE)
        self.image_size = (size, size) if isinstance(size, int) else tuple(size)
        self.register_buffer("mean", torch.zeros(3, 1, 1))
        self.register_buffer("std", torch.ones(3, 1, 1))
        with torch.no_grad():
            channels = self._map(torch.zeros(1, 3, *self.image_size)).shape[1]
        self.head = nn.Sequential(nn.Linear(channels, feature_size), nn.LayerNorm(feature_size))
        self.positions = nn.Parameter(0.02 * torch.randn(GRID * GRID, feature_size))

    def load(self, directory: str) -> None:
        super().load(directory)
        processor = _read_json(directory, "preprocessor_config.json")
        for name, default in (("mean", 0.0), ("std", 1.0)):
            values = torch.tensor(processor.get(f"image_{name}", [default] * 3))
            getattr(self, name).copy_(values[:, None, None])

    def forward(self, images: Tensor, context: Tensor) -> Tensor:
        del context
        # Contiguous: some builds of torch abort where BatchNorm has channels last.
        pixels = images.permute(0, 3, 1, 2).contiguous().float() / 255
        if pixels.shape[2:] != self.image_size:
            pixels = F.interpolate(pixels, self.image_size, mode="bilinear", antialias=True)
        seen = F.adaptive_avg_pool2d(self._map((pixels - self.mean) / self.std), GRID)
        tokens: Tensor = self.head(seen.flatten(2).transpose(1, 2)) + self.positions
        return tokens

    def _map(self, pixels: Tensor) -> Tensor:
        """Features [B, C, h, w] of pixels [B, 3, H, W]."""
        hidden: Tensor = self.tower(pixel_values=pixels).last_hidden_state
        if hidden.ndim == 4:
            return hidden
        # Those of patches are the last ones.
        patch = self._size("patch_size")
        rows, columns = (side // patch for side in self.image_size)
        return hidden[:, -rows * columns :].transpose(1, 2).unflatten(2, (rows, columns))


class PretrainedSentence(PretrainedEncoder):
    """Tokens int64 [B, MOST_TOKENS] of a `PretrainedTokenizer` -> [B, F]; the encoder is not trained."""

    PART = "text_model"
    tokenizer_file: Tensor

    def __init__(self, described: Mapping[str, Any], feature_size: int) -> None:
        super().__init__(described)
        self.tower.requires_grad_(False)
        self.register_buffer("tokenizer_file", torch.zeros(described["tokenizer_bytes"], dtype=torch.uint8))
        self.head = nn.Linear(self._size("hidden_size", "d_model", "dim"), feature_size)

    def load(self, directory: str) -> None:
        super().load(directory)
        content = np.frombuffer(_read(directory, _TOKENIZER), np.uint8)
        self.tokenizer_file.copy_(torch.from_numpy(content.copy()))

    def forward(self, numbers: Tensor) -> Tensor:
        # Many rows of a batch have the same instruction.
        texts, which = numbers.unique(dim=0, return_inverse=True)
        texts = texts[:, : int((texts != _PADDING).sum(1).amax())]
        mask = texts != _PADDING
        with torch.no_grad():
            self.tower.eval()
            hidden = self.tower(input_ids=texts.clamp(min=0), attention_mask=mask.long()).last_hidden_state
        kept = mask.unsqueeze(-1)
        sentence: Tensor = self.head((hidden * kept).sum(1) / kept.sum(1))
        return sentence[which]


class PretrainedTokenizer(Tokenizer):
    """Turns observed instructions into numbers of a pretrained encoder's tokens."""

    def __init__(self, sentence: PretrainedSentence) -> None:
        super().__init__(())
        self._sentence = sentence
        self._tokens: Any = None

    def numbers_of(self, text: str) -> list[int]:
        """Numbers of a text's tokens, padded to `MOST_TOKENS`.

        Raises:
            ValueError: if there are too many or none.
        """
        if self._tokens is None:
            from tokenizers import Tokenizer as Tokens

            self._tokens = Tokens.from_str(self._sentence.tokenizer_file.cpu().numpy().tobytes().decode())
            self._tokens.no_padding()
            self._tokens.no_truncation()
        numbers: list[int] = self._tokens.encode(text).ids if text.strip() else []
        if not 0 < len(numbers) <= MOST_TOKENS:
            raise ValueError(f"instruction {text!r:.80} has {len(numbers)} tokens; give 1 to {MOST_TOKENS}")
        return numbers + [_PADDING] * (MOST_TOKENS - len(numbers))


def _transformers() -> ModuleType:
    """The library. Raises ValueError if it is not there."""
    try:
        import transformers
    except ImportError as error:
        raise ValueError(
            "a pretrained encoder needs transformers, which is not here: pip install 'robot-rl[pretrained]'"
        ) from error
    library: ModuleType = transformers
    return library


def _read(directory: str, name: str) -> bytes:
    try:
        return (Path(directory) / name).read_bytes()
    except OSError as error:
        raise ValueError(
            f"{directory} has no {name} ({error.strerror}): give a directory that transformers has saved, "
            "with its processor or tokenizer"
        ) from error


def _read_json(directory: str, name: str) -> dict[str, Any]:
    try:
        content = json.loads(_read(directory, name))
    except (json.JSONDecodeError, UnicodeDecodeError) as error:
        raise ValueError(f"{directory}/{name} is damaged: {error}") from error
    if not isinstance(content, dict):
        raise ValueError(f"{directory}/{name} is damaged: no object")
    return content
