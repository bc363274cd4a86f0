"""Encoders that transformers has saved: their own weights, and policies that need them no more once saved."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from safetensors.torch import load, save
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import Whitespace

from robot_rl.methods.bc import BCConfig, BCLearner
from robot_rl.policies.bases.base_policy import is_steered_by_noise, random_observations
from robot_rl.policies.bases.vla import VLAConfig, VLAPolicy
from robot_rl.policies.nets.pretrained import (
    GRID,
    PretrainedImages,
    PretrainedSentence,
    PretrainedTokenizer,
    describe_encoder,
)
from robot_rl.policies.store import load_base, save_policy
from tests.policies.bases.test_vla import CAMERAS, SIZE, SMALL, TEXTS, observations, told, two_tasks

SMALL_TRANSFORMER = {
    "hidden_size": 16,
    "intermediate_size": 16,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
}
PATCHES = {"image_size": 32, "patch_size": 8}
IMAGES = {
    "siglip": lambda: transformers.SiglipVisionConfig(**SMALL_TRANSFORMER, **PATCHES),
    "dinov2": lambda: transformers.Dinov2Config(**SMALL_TRANSFORMER, **PATCHES),
    "vit": lambda: transformers.ViTConfig(**SMALL_TRANSFORMER, **PATCHES),
    "resnet": lambda: transformers.ResNetConfig(embedding_size=8, hidden_sizes=[8, 16], depths=[1, 1]),
    # A model of images and text.
    "clip": lambda: transformers.CLIPConfig(
        vision_config={**SMALL_TRANSFORMER, **PATCHES}, text_config={**SMALL_TRANSFORMER, "vocab_size": 20}
    ),
}
TEXT = {
    "bert": lambda: transformers.BertConfig(**SMALL_TRANSFORMER, vocab_size=20),
    "t5": lambda: transformers.T5Config(
        d_model=16, d_kv=8, d_ff=16, num_layers=1, num_heads=2, vocab_size=20, decoder_start_token_id=0
    ),
    "clip": IMAGES["clip"],
}
MEAN = [0.4, 0.5, 0.6]


def saved(folder: Path, config: Any) -> str:
    """A directory of a small random model, with a processor's file and a tokenizer."""
    torch.manual_seed(0)
    transformers.AutoModel.from_config(config).save_pretrained(folder)
    processor = {"image_mean": MEAN, "image_std": [0.2, 0.2, 0.2]}
    (folder / "preprocessor_config.json").write_text(json.dumps(processor))
    words = ["[UNK]", *dict.fromkeys(" ".join(TEXTS).split())]
    tokenizer = Tokenizer(WordLevel({word: number for number, word in enumerate(words)}, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = Whitespace()
    # As published ones do, whose padding is not wanted here.
    tokenizer.enable_padding(length=8)
    tokenizer.save(str(folder / "tokenizer.json"))
    return str(folder)


@pytest.mark.parametrize("kind", IMAGES)
def test_tokens_of_an_image_are_those_of_the_saved_encoder(kind: str, tmp_path: Path) -> None:
    directory = saved(tmp_path / kind, IMAGES[kind]())
    encoder = PretrainedImages(describe_encoder(directory, text=False), 12).eval()
    encoder.load(directory)
    images = torch.randint(0, 256, (2, *encoder.image_size, 3), dtype=torch.uint8)
    model = transformers.AutoModel.from_pretrained(directory)
    model = getattr(model, "vision_model", model).eval()
    pixels = (images.permute(0, 3, 1, 2) / 255 - torch.tensor(MEAN)[:, None, None]) / 0.2
    hidden = model(pixel_values=pixels).last_hidden_state
    if hidden.ndim == 3:
        # Of 4 x 4 patches, each is a token.
        expected = hidden[:, -GRID * GRID :]
    else:
        expected = torch.nn.functional.adaptive_avg_pool2d(hidden, GRID).flatten(2).transpose(1, 2)
    found = encoder(images, torch.zeros(2, 3))
    torch.testing.assert_close(found, encoder.head(expected) + encoder.positions, atol=1e-4, rtol=0)
    assert encoder(images[:, :20, :24], torch.zeros(2, 3)).shape == (2, GRID * GRID, 12)
    found.sum().backward()
    assert any(weights.grad is not None for weights in encoder.tower.parameters())


@pytest.mark.parametrize("kind", TEXT)
def test_a_sentence_is_what_the_saved_encoder_makes_of_it(kind: str, tmp_path: Path) -> None:
    directory = saved(tmp_path / kind, TEXT[kind]())
    encoder = PretrainedSentence(describe_encoder(directory, text=True), 12)
    encoder.load(directory)
    tokenizer = PretrainedTokenizer(encoder)
    short = TEXTS[0].split()[:3]
    numbers = torch.tensor([tokenizer.numbers_of(text) for text in (TEXTS[0], " ".join(short), TEXTS[0])])
    found = encoder(numbers)
    torch.testing.assert_close(found[0], found[2])
    model = transformers.AutoModel.from_pretrained(directory).eval()
    model = model.get_encoder() if kind == "t5" else getattr(model, "text_model", model)
    for row, text in ((0, TEXTS[0]), (1, " ".join(short))):
        known = numbers[row][: len(text.split())][None]
        hidden = model(input_ids=known).last_hidden_state
        torch.testing.assert_close(found[row], encoder.head(hidden.mean(1))[0], atol=1e-5, rtol=0)
    found.sum().backward()
    assert all(weights.grad is None for weights in encoder.tower.parameters())
    with pytest.raises(ValueError, match="has 0 tokens; give 1 to 64"):
        tokenizer.numbers_of(" ")
    with pytest.raises(ValueError, match="has 100 tokens"):
        tokenizer.numbers_of("cube " * 100)


@pytest.fixture(scope="module")
def config(tmp_path_factory: pytest.TempPathFactory) -> VLAConfig:
    folder = tmp_path_factory.mktemp("encoders")
    vision, text = saved(folder / "vit", IMAGES["vit"]()), saved(folder / "bert", TEXT["bert"]())
    found = VLAPolicy.for_instructions(replace(SMALL, vision=vision, text=text), TEXTS)
    assert isinstance(found, VLAConfig)
    return found


def new_policy(config: VLAConfig) -> VLAPolicy:
    torch.manual_seed(0)
    policy = VLAPolicy(config, 3, 2, CAMERAS, SIZE)
    policy.load_pretrained()
    return policy


def test_a_saved_policy_needs_the_directories_no_more(config: VLAConfig, tmp_path: Path) -> None:
    policy = new_policy(config).eval()
    assert is_steered_by_noise(policy, random_observations(policy, 2))
    save_policy(policy, tmp_path / "policy", {})
    for directory in (config.vision, config.text):
        assert directory
        Path(directory).rename(f"{directory}.away")
    try:
        loaded, _ = load_base(tmp_path / "policy")
    finally:
        for directory in (config.vision, config.text):
            Path(f"{directory}.away").rename(str(directory))
    noise = policy.draw_noise(3)
    actions = policy.sample(observations(), noise=noise).actions
    assert torch.equal(loaded.eval().sample(observations(), noise=noise).actions, actions)
    other = loaded.sample(observations(TEXTS[1]), noise=noise).actions
    assert not torch.equal(other, actions)
    # A word that was not in the data.
    loaded.check_instruction("stack the blue cube")


def test_training_changes_the_image_encoder_and_not_the_text_encoder(config: VLAConfig) -> None:
    policy = new_policy(config)
    windows = two_tasks()
    policy.fit_normalizers(windows.state[:, -1], windows.actions[:, 0])
    before = {name: value.clone() for name, value in policy.state_dict().items()}
    learner = BCLearner(BCConfig(batch_size=8, lr=1e-3), policy, windows, torch.device("cpu"), 0)
    for _ in range(3):
        assert torch.isfinite(learner.update()["loss"])
    changed = {name for name, value in policy.state_dict().items() if not torch.equal(value, before[name])}
    assert any(name.startswith("vision.0.tower") for name in changed)
    assert "sentence.head.weight" in changed
    assert not [name for name in changed if name.startswith("sentence.tower")]
    learner.load_state_dict(learner.state_dict())
    asked = {**observations(), "instruction": told(TEXTS[0])}
    assert learner.ema.average.sample(asked).actions.shape == (3, 1, 4, 2)


def test_directories_that_do_not_hold_an_encoder_are_refused_in_one_line(tmp_path: Path) -> None:
    directory = Path(saved(tmp_path / "bert", TEXT["bert"]()))

    def refused(words: str, *, text: bool = True) -> None:
        encoder = PretrainedSentence if text else PretrainedImages
        with pytest.raises(ValueError, match=words) as caught:
            encoder(describe_encoder(str(directory), text=text), 8).load(str(directory))
        assert "\n" not in str(caught.value)

    weights = directory / "model.safetensors"
    content = weights.read_bytes()
    weights.write_bytes(content[:100])
    refused(r"bert: .*header")
    parts = load(content)
    parts.pop("encoder.layer.0.output.dense.weight")
    weights.write_bytes(save(parts, {"format": "pt"}))
    refused(r"lacks weights of its encoder: encoder\.layer\.0\.output\.dense\.weight")
    weights.unlink()
    refused("model.safetensors")
    weights.write_bytes(content)
    (directory / "tokenizer.json").unlink()
    refused(r"has no tokenizer\.json")
    settings = json.loads((directory / "config.json").read_text())
    (directory / "config.json").write_text(json.dumps({**settings, "model_type": "unheard_of"}))
    refused("transformers cannot build the pretrained encoder", text=False)
    (directory / "config.json").write_text("{}")
    refused("names no model_type")
    (directory / "config.json").write_text("[")
    refused("is damaged")
