"""Pretrained encoders of images and of sentences, from a directory of Hugging Face transformers.

A saved policy needs neither the directory nor a download: what describes an encoder is in its configuration,
and the weights and the tokenizer are among its own.
"""

import json
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from types import ModuleType
from typing import Any, Final

import numpy as np
import torch
import torch.nn.functional as F
from safetensors import SafetensorError
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from robot_rl.policies.nets.language import Tokenizer

GRID: Final = 4
"""Rows and columns of the tokens of an image."""
MOST_TOKENS: Final = 64
"""Longest instruction, in tokens."""
IMAGE_ENCODERS: Final = (
    "clip",
    "clip_vision_model",
    "dinov2",
    "resnet",
    "siglip",
    "siglip_vision_model",
    "vit",
)
"""Types of models of images, as `config.json` names them."""
TEXT_ENCODERS: Final = ("bert", "clip", "clip_text_model", "distilbert", "roberta", "t5")
_PADDING: Final = -1
_TOKENIZER: Final = "tokenizer.json"
_UNUSED: Final = ("auto_map", "dtype", "torch_dtype", "quantization_config", "attn_implementation")
"""Settings that a configuration may have and that do not apply here."""


def describe_image_encoder(directory: str) -> dict[str, Any]:
    """What a policy's configuration keeps of a pretrained image encoder: `config`, `image_size`.

    Raises:
        ValueError: if the directory does not hold one.
    """
    processor = _read_json(directory, "preprocessor_config.json")
    size = processor.get("crop_size") or processor.get("size")
    if isinstance(size, dict):
        both = [size.get(name, size.get("shortest_edge")) for name in ("height", "width")]
    else:
        both = [size, size]
    if not all(isinstance(side, int) and side > 0 for side in both):
        raise ValueError(f"{directory}/preprocessor_config.json names no size of the images")
    return {"config": _config(directory, IMAGE_ENCODERS), "image_size": both}


def describe_text_encoder(directory: str, instructions: Iterable[str]) -> dict[str, Any]:
    """What a policy's configuration keeps of a pretrained text encoder: `config`, `tokenizer_bytes`.

    Raises:
        ValueError: if the directory does not hold one, or it cannot read one of the instructions.
    """
    config, content = _config(directory, TEXT_ENCODERS), _read(directory, _TOKENIZER)
    described = {"config": config, "tokenizer_bytes": len(content)}
    tokenizer = PretrainedTokenizer(lambda: content, _vocabulary(config))
    for text in instructions:
        tokenizer.numbers_of(text)
    return described


class PretrainedEncoder(nn.Module):
    """A model of transformers, without what it has for other purposes."""

    tower: nn.Module
    PART: str
    """Attribute of the wanted part of a model of images and text."""

    def __init__(self, described: Mapping[str, Any], known: tuple[str, ...]) -> None:
        """Build it with random weights. Raises ValueError if transformers cannot build it."""
        super().__init__()
        given = {name: value for name, value in described["config"].items() if name not in _UNUSED}
        if given.get("model_type") not in known:
            raise ValueError(f"{given.get('model_type')!r} is no known type of a pretrained encoder")
        library = _transformers()
        try:
            config = library.AutoConfig.for_model(**given)
            model = library.AutoModel.from_config(config, dtype=torch.float32, trust_remote_code=False)
        except Exception as error:  # of many classes, some of them of transformers' own dependencies
            raise ValueError(f"transformers cannot build the pretrained encoder: {_line(error)}") from error
        self.tower = self._part(model)
        self._constants: list[nn.Parameter] = []
        """Weights that are not trained."""

    def freeze_constants(self) -> None:
        """Keep the weights as they are that are not to be trained."""
        for weights in self._constants:
            weights.requires_grad_(False)

    def load(self, directory: str) -> None:
        """Take over the weights in a directory.

        Raises:
            ValueError: if one is missing or of another shape.
        """
        try:
            model, found = _transformers().AutoModel.from_pretrained(
                directory,
                dtype=torch.float32,
                local_files_only=True,
                trust_remote_code=False,
                use_safetensors=True,
                output_loading_info=True,
            )
            tower = self._part(model)
            # Weights for other purposes may be missing.
            used = {id(weights) for name, weights in tower.named_parameters() if "pooler" not in name}
            names = {
                name
                for name, weights in model.named_parameters(remove_duplicate=False)
                if id(weights) in used
            }
            if lost := sorted(names & set(found["missing_keys"])):
                raise ValueError(f"it lacks weights of its encoder: {lost[0]}")
            self.tower.load_state_dict(tower.state_dict())
        except (OSError, ValueError, RuntimeError, SafetensorError) as error:
            raise ValueError(f"{directory}: {_line(error)}") from error

    def _part(self, model: nn.Module) -> nn.Module:
        config: Any = model.config
        if getattr(config, "is_encoder_decoder", False):
            model = model.get_encoder()  # type: ignore[operator]
        part: nn.Module = getattr(model, self.PART, model)
        return part


class PretrainedImages(PretrainedEncoder):
    """Images uint8 [B, H, W, 3] and a context, which it ignores -> tokens [B, GRID * GRID, F].

    Images are resized to what the encoder's processor makes of them. It is trained further with the policy.
    """

    PART = "vision_model"
    mean: Tensor
    std: Tensor

    def __init__(self, described: Mapping[str, Any], feature_size: int) -> None:
        """Build it for features of size F. Raises ValueError if its features are not of a map."""
        super().__init__(described, IMAGE_ENCODERS)
        rows, columns = described["image_size"]
        self.image_size = (int(rows), int(columns))
        config: Any = self.tower.config
        self._patch = getattr(config, "patch_size", None)
        trained = getattr(config, "image_size", self.image_size)
        trained = (trained, trained) if isinstance(trained, int) else tuple(trained)
        # DINOv2 does so by itself.
        interpolates = trained != self.image_size and config.model_type != "dinov2"
        self._options = {"interpolate_pos_encoding": True} if interpolates else {}
        self.register_buffer("mean", torch.zeros(3, 1, 1))
        self.register_buffer("std", torch.ones(3, 1, 1))
        self.tower.eval()
        try:
            seen = self._map(torch.zeros(1, 3, *self.image_size))
        except (RuntimeError, TypeError, ValueError) as error:
            raise ValueError(f"the pretrained encoder of images cannot be used: {_line(error)}") from error
        # What is for other purposes, such as a pooled output, gets no gradient.
        seen.sum().backward()
        self._constants = [weights for weights in self.tower.parameters() if weights.grad is None]
        self.freeze_constants()
        self.tower.zero_grad(set_to_none=True)
        self.head = nn.Sequential(nn.Linear(seen.shape[1], feature_size), nn.LayerNorm(feature_size))
        self.positions = nn.Parameter(0.02 * torch.randn(GRID * GRID, feature_size))

    def load(self, directory: str) -> None:
        super().load(directory)
        processor = _read_json(directory, "preprocessor_config.json")
        for name, default in (("mean", 0.0), ("std", 1.0)):
            values = processor.get(f"image_{name}", [default] * 3)
            try:
                getattr(self, name).copy_(torch.tensor(values).view(3, 1, 1))
            except (RuntimeError, TypeError, ValueError) as error:
                raise ValueError(f"{directory}/preprocessor_config.json: image_{name} is {values}") from error

    def train(self, mode: bool = True) -> "PretrainedImages":
        super().train(mode)
        # Statistics of a policy's small batches, or parts of them, are worse than the pretrained ones.
        for module in self.tower.modules():
            if isinstance(module, _BatchNorm):
                module.eval()
        return self

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
        hidden: Tensor = self.tower(pixel_values=pixels, **self._options).last_hidden_state
        if self._patch is None:
            return hidden
        rows, columns = (side // self._patch for side in self.image_size)
        # Those of patches are the last ones.
        return hidden[:, -rows * columns :].transpose(1, 2).unflatten(2, (rows, columns))


class PretrainedSentence(PretrainedEncoder):
    """Tokens int64 [B, MOST_TOKENS] of a `PretrainedTokenizer` -> [B, F]; the encoder is not trained."""

    PART = "text_model"
    tokenizer_file: Tensor

    def __init__(self, described: Mapping[str, Any], feature_size: int) -> None:
        """Build it for features of size F."""
        super().__init__(described, TEXT_ENCODERS)
        self._constants = list(self.tower.parameters())
        self.freeze_constants()
        self.register_buffer("tokenizer_file", torch.zeros(described["tokenizer_bytes"], dtype=torch.uint8))
        config: Any = self.tower.config
        self.vocabulary = int(config.vocab_size)
        self.head = nn.Linear(config.hidden_size, feature_size)

    def load(self, directory: str) -> None:
        super().load(directory)
        content = np.frombuffer(_read(directory, _TOKENIZER), np.uint8)
        self.tokenizer_file.copy_(torch.from_numpy(content.copy()))

    def tokenizer(self) -> "PretrainedTokenizer":
        """Its tokenizer, which is read when it is used first."""
        return PretrainedTokenizer(lambda: self.tokenizer_file.cpu().numpy().tobytes(), self.vocabulary)

    def forward(self, numbers: Tensor) -> Tensor:
        texts = numbers[:, : int((numbers != _PADDING).sum(1).amax())]
        mask = texts != _PADDING
        with torch.no_grad():
            self.tower.eval()
            hidden = self.tower(input_ids=texts.clamp(min=0), attention_mask=mask.long()).last_hidden_state
        kept = mask.unsqueeze(-1)
        sentence: Tensor = self.head((hidden * kept).sum(1) / kept.sum(1))
        return sentence


class PretrainedTokenizer(Tokenizer):
    """Turns observed instructions into numbers of a pretrained encoder's tokens."""

    def __init__(self, read: Callable[[], bytes], vocabulary: int) -> None:
        """`read` gives the file of the tokenizer, `vocabulary` is the number of tokens of the encoder."""
        super().__init__(())
        self._read, self._vocabulary = read, vocabulary
        self._tokens: Any = None

    def numbers_of(self, text: str) -> list[int]:
        """Numbers of a text's tokens, padded to `MOST_TOKENS`.

        Raises:
            ValueError: if there are too many or none, or the tokenizer is not that of the encoder.
        """
        if self._tokens is None:
            self._tokens = _read_tokenizer(self._read())
        numbers: list[int] = self._tokens.encode(text).ids if text.strip() else []
        if not 0 < len(numbers) <= MOST_TOKENS:
            raise ValueError(f"instruction {text!r:.80} has {len(numbers)} tokens; give 1 to {MOST_TOKENS}")
        if max(numbers) >= self._vocabulary:
            raise ValueError(f"{_TOKENIZER} has more tokens than the text encoder, {self._vocabulary}")
        return numbers + [_PADDING] * (MOST_TOKENS - len(numbers))


def _read_tokenizer(content: bytes) -> Any:
    _transformers()  # has the library of tokenizers
    from tokenizers import Tokenizer as Tokens

    try:
        tokens = Tokens.from_str(content.decode())
    except Exception as error:  # the library has no class of its own
        raise ValueError(f"{_TOKENIZER} is damaged: {_line(error)}") from error
    tokens.no_padding()
    tokens.no_truncation()
    return tokens


def _transformers() -> ModuleType:
    """The library. Raises ValueError if it is not there."""
    try:
        import transformers
    except ImportError as error:
        raise ValueError(
            "a pretrained encoder needs transformers, which is not here: pip install transformers"
        ) from error
    library: ModuleType = transformers
    return library


def _config(directory: str, known: tuple[str, ...]) -> dict[str, Any]:
    config = _read_json(directory, "config.json")
    if (kind := config.get("model_type")) not in known:
        raise ValueError(f"{directory} holds a model of type {kind!r:.40}; known are {', '.join(known)}")
    return config


def _vocabulary(config: Mapping[str, Any]) -> int:
    part = config.get("text_config", config)
    size = part.get("vocab_size") if isinstance(part, Mapping) else None
    if not isinstance(size, int):
        raise ValueError("config.json of the text encoder names no vocab_size")
    return size


def _line(error: Exception) -> str:
    return str(error).strip().partition("\n")[0] or type(error).__name__


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
