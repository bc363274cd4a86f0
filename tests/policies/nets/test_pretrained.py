"""Encoders that transformers has saved: their own weights, and policies that need them no more once saved."""

import copy
import json
from collections.abc import Callable
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
    describe_image_encoder,
    describe_text_encoder,
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
WORDS = {**SMALL_TRANSFORMER, "vocab_size": 20}
IMAGES = {
    "siglip_vision_model": lambda: transformers.SiglipVisionConfig(**SMALL_TRANSFORMER, **PATCHES),
    "dinov2": lambda: transformers.Dinov2Config(**SMALL_TRANSFORMER, **PATCHES),
    # Trained on larger images than its processor makes.
    "larger dinov2": lambda: transformers.Dinov2Config(**SMALL_TRANSFORMER, image_size=64, patch_size=8),
    "vit": lambda: transformers.ViTConfig(**SMALL_TRANSFORMER, **PATCHES),
    "larger vit": lambda: transformers.ViTConfig(**SMALL_TRANSFORMER, image_size=64, patch_size=8),
    "resnet": lambda: transformers.ResNetConfig(embedding_size=8, hidden_sizes=[8, 16], depths=[1, 1]),
    "clip_vision_model": lambda: transformers.CLIPVisionConfig(**SMALL_TRANSFORMER, **PATCHES),
    # Models of images and text.
    "clip": lambda: transformers.CLIPConfig(
        vision_config={**SMALL_TRANSFORMER, **PATCHES}, text_config=WORDS
    ),
    "siglip": lambda: transformers.SiglipConfig(
        vision_config={**SMALL_TRANSFORMER, **PATCHES}, text_config=WORDS
    ),
}
TEXT = {
    "bert": lambda: transformers.BertConfig(**WORDS),
    "distilbert": lambda: transformers.DistilBertConfig(
        dim=16, hidden_dim=16, n_layers=1, n_heads=2, vocab_size=20
    ),
    "roberta": lambda: transformers.RobertaConfig(**WORDS, pad_token_id=19),
    "t5": lambda: transformers.T5Config(
        d_model=16, d_kv=8, d_ff=16, num_layers=1, num_heads=2, vocab_size=20, decoder_start_token_id=0
    ),
    "clip_text_model": lambda: transformers.CLIPTextConfig(**WORDS),
    "clip": IMAGES["clip"],
}
MEAN = [0.4, 0.5, 0.6]


def saved(folder: Path, config: Any) -> str:
    """A directory of a small random model, with a processor's file and a tokenizer."""
    torch.manual_seed(0)
    transformers.AutoModel.from_config(config).save_pretrained(folder)
    processor = {"image_mean": MEAN, "image_std": [0.2, 0.2, 0.2], "size": {"height": 32, "width": 32}}
    (folder / "preprocessor_config.json").write_text(json.dumps(processor))
    words = ["[UNK]", *dict.fromkeys(" ".join(TEXTS).split())]
    tokenizer = Tokenizer(WordLevel({word: number for number, word in enumerate(words)}, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = Whitespace()
    # As published ones do, whose padding is not wanted here.
    tokenizer.enable_padding(length=8)
    tokenizer.save(str(folder / "tokenizer.json"))
    return str(folder)


def images_of(directory: str) -> PretrainedImages:
    encoder = PretrainedImages(describe_image_encoder(directory), 12).eval()
    encoder.load(directory)
    return encoder


def sentences_of(directory: str) -> PretrainedSentence:
    encoder = PretrainedSentence(describe_text_encoder(directory, TEXTS), 12)
    encoder.load(directory)
    return encoder


@pytest.mark.parametrize("kind", IMAGES)
def test_tokens_of_an_image_are_those_of_the_saved_encoder(kind: str, tmp_path: Path) -> None:
    directory = saved(tmp_path / kind, IMAGES[kind]())
    encoder = images_of(directory)
    images = torch.randint(0, 256, (2, *encoder.image_size, 3), dtype=torch.uint8)
    model = transformers.AutoModel.from_pretrained(directory)
    model = getattr(model, "vision_model", model).eval()
    pixels = (images.permute(0, 3, 1, 2) / 255 - torch.tensor(MEAN)[:, None, None]) / 0.2
    more = {"interpolate_pos_encoding": True} if kind == "larger vit" else {}
    hidden = model(pixel_values=pixels, **more).last_hidden_state
    if hidden.ndim == 3:
        # Of 4 x 4 patches, each is a token.
        expected = hidden[:, -GRID * GRID :]
    else:
        expected = torch.nn.functional.adaptive_avg_pool2d(hidden, GRID).flatten(2).transpose(1, 2)
    found = encoder(images, torch.zeros(2, 3))
    torch.testing.assert_close(found, encoder.head(expected) + encoder.positions, atol=1e-4, rtol=0)
    assert encoder(images[:, :20, :24], torch.zeros(2, 3)).shape == (2, GRID * GRID, 12)
    found.sum().backward()
    # All that is trained has a gradient, which several processes need.
    trained = [weights for weights in encoder.tower.parameters() if weights.requires_grad]
    assert trained
    assert all(weights.grad is not None for weights in trained)


@pytest.mark.parametrize("kind", TEXT)
def test_a_sentence_is_what_the_saved_encoder_makes_of_it(kind: str, tmp_path: Path) -> None:
    directory = saved(tmp_path / kind, TEXT[kind]())
    encoder = sentences_of(directory)
    tokenizer = encoder.tokenizer()
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
    small = replace(SMALL, vision=vision, text=text, channels=VLAConfig().channels)
    found = VLAPolicy.for_instructions(small, TEXTS)
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
    # As the base of a tuned policy it is frozen; trained further, it learns what it has learned here.
    learns = {name: weights.requires_grad for name, weights in policy.named_parameters()}
    assert not all(learns.values())
    again = copy.deepcopy(policy).requires_grad_(False).unfreeze()
    assert {name: weights.requires_grad for name, weights in again.named_parameters()} == learns
    asked = {**observations(), "instruction": told(TEXTS[0])}
    assert learner.ema.average.sample(asked).actions.shape == (3, 1, 4, 2)


def test_weights_of_half_precision_are_used_in_single_precision(tmp_path: Path) -> None:
    vision, text = saved(tmp_path / "vit", IMAGES["vit"]()), saved(tmp_path / "bert", TEXT["bert"]())
    for directory in (vision, text):
        transformers.AutoModel.from_pretrained(directory, dtype=torch.float16).save_pretrained(directory)
        assert "float16" in (Path(directory) / "config.json").read_text()
    for encoder in (images_of(vision), sentences_of(text)):
        assert {weights.dtype for weights in encoder.parameters()} == {torch.float32}


def test_statistics_of_an_image_encoder_stay_as_they_are(tmp_path: Path) -> None:
    encoder = images_of(saved(tmp_path / "resnet", IMAGES["resnet"]())).train()
    before = {name: value.clone() for name, value in encoder.named_buffers()}
    encoder(torch.zeros(2, 32, 32, 3, dtype=torch.uint8), torch.zeros(2, 3)).sum().backward()
    assert all(torch.equal(value, before[name]) for name, value in encoder.named_buffers())


def test_an_encoder_without_its_decoder_is_enough(tmp_path: Path) -> None:
    directory = saved(tmp_path / "t5", TEXT["t5"]())
    weights = Path(directory) / "model.safetensors"
    parts = {name: value for name, value in load(weights.read_bytes()).items() if "decoder" not in name}
    weights.write_bytes(save(parts, {"format": "pt"}))
    sentences_of(directory)


def test_directories_that_do_not_hold_an_encoder_are_refused_in_one_line(tmp_path: Path) -> None:
    directory = Path(saved(tmp_path / "bert", TEXT["bert"]()))

    def refused(words: str, of: Callable[[str], object] = sentences_of) -> None:
        with pytest.raises(ValueError, match=words) as caught:
            of(str(directory))
        assert "\n" not in str(caught.value)

    refused("holds a model of type 'bert'; known are clip, ", images_of)
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

    settings = json.loads((directory / "config.json").read_text())

    def with_settings(**more: object) -> None:
        (directory / "config.json").write_text(json.dumps({**settings, **more}))

    with_settings(vocab_size=2)
    refused(r"tokenizer\.json has more tokens than the text encoder, 2")
    with_settings(hidden_size="large")
    refused("transformers cannot build the pretrained encoder")
    with_settings(auto_map={"AutoModel": "model.Model"})
    sentences_of(str(directory))
    with_settings(model_type="unheard_of")
    refused("of type 'unheard_of'")
    with_settings()
    tokenizer = directory / "tokenizer.json"
    tokenizer.write_text("{}")
    refused(r"tokenizer\.json is damaged")
    tokenizer.unlink()
    refused(r"has no tokenizer\.json")
    (directory / "config.json").write_text("[")
    refused("is damaged")

    directory = Path(saved(tmp_path / "vit", IMAGES["vit"]()))
    processor = directory / "preprocessor_config.json"
    for change, words in (
        ({"image_mean": [0.5]}, r"image_mean is \[0\.5\]"),
        ({"size": None}, "names no size"),
    ):
        processor.write_text(json.dumps({"size": 32, **change}))
        refused(words, images_of)
    processor.unlink()
    refused(r"has no preprocessor_config\.json", images_of)


def test_options_that_would_do_nothing_are_refused(config: VLAConfig) -> None:
    for change in ({"checkpointing": True}, {"channels": [16]}):
        with pytest.raises(ValueError, match=r"leave out base\.vision or them"):
            VLAPolicy.for_instructions(replace(config, pretrained={}, **change), TEXTS)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=r"base\.pretrained is filled in by the training"):
        VLAPolicy.for_instructions(config, TEXTS)
