"""base=vla: the words decide, noise steers, and options change cost but not results."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

from robot_rl.cli.main import main
from robot_rl.data.dataset import Windows
from robot_rl.methods.bc import BCConfig, BCLearner
from robot_rl.policies.bases.base_policy import is_steered_by_noise, random_observations
from robot_rl.policies.bases.flow import TIME_SCALE
from robot_rl.policies.bases.vla import VLAConfig, VLAPolicy
from robot_rl.policies.nets.language import vocabulary_of, words_of
from robot_rl.policies.store import load_base, save_policy

TEXTS = ("stack the red cube on the green cube", "stack the green cube on the red cube")
SMALL = VLAConfig(
    horizon=4,
    execute=2,
    channels=[8, 16],
    tokens_width=16,
    heads=2,
    layers=1,
    width=32,
    depth=1,
    words=vocabulary_of(TEXTS),
)
CAMERAS, SIZE = ("agentview", "wrist"), (24, 24)


def small(config: VLAConfig = SMALL, seed: int = 0) -> VLAPolicy:
    torch.manual_seed(seed)
    return VLAPolicy(config, 3, 2, CAMERAS, SIZE)


def told(text: str, batch: int = 3, steps: int = 1) -> Tensor:
    encoded = torch.zeros(128, dtype=torch.uint8)
    encoded[: len(text)] = torch.tensor(list(text.encode()))
    return encoded.repeat(batch, steps, 1)


def observations(text: str = TEXTS[0], batch: int = 3) -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(3)
    images = {
        f"images.{camera}": torch.randint(0, 256, (batch, 1, *SIZE, 3), generator=generator).to(torch.uint8)
        for camera in CAMERAS
    }
    state = torch.randn(batch, 1, 3, generator=generator)
    return {"state": state, "instruction": told(text, batch), **images}


def test_words_are_those_of_the_texts_in_small_letters() -> None:
    assert words_of("Put the milk, please!") == ["put", "the", "milk", ",", "please", "!"]
    assert vocabulary_of(TEXTS) == ["cube", "green", "on", "red", "stack", "the"]


def test_the_default_has_two_million_parameters_and_options_make_it_a_hundred_times_larger() -> None:
    words = vocabulary_of(TEXTS)
    policy = VLAPolicy(VLAConfig(words=words), 9, 7, CAMERAS, (84, 84))
    assert 2e6 < sum(weights.numel() for weights in policy.parameters()) < 2.5e6
    wide = VLAConfig(
        words=words, channels=[64, 128, 256, 512], tokens_width=1024, heads=16, layers=20, width=2048, depth=8
    )
    with torch.device("meta"):
        large = VLAPolicy(wide, 9, 7, CAMERAS, (84, 84))
    assert sum(weights.numel() for weights in large.parameters()) > 3e8
    assert policy.spec.noise_shape == (10, 7)
    assert policy.spec.instruction


def test_noise_alone_steers_it() -> None:
    policy = small()
    assert is_steered_by_noise(policy, random_observations(policy, 4))


def two_tasks() -> Windows:
    """Four scenes, each with both instructions, so that nothing but the words tells what to do."""
    scenes = observations(batch=4)
    which = np.arange(8) // 4
    images = {camera: np.tile(scenes[f"images.{camera}"][:, 0].numpy(), (2, 1, 1, 1)) for camera in CAMERAS}
    return Windows(
        np.tile(scenes["state"].numpy(), (2, 1, 1)),
        np.where(which, 0.6, -0.6)[:, None, None].repeat(4, 1).repeat(2, 2).astype(np.float32),
        np.ones((8, 4), np.float32),
        np.arange(8)[:, None],
        images,
        np.stack([told(TEXTS[i], 1)[0, 0].numpy() for i in which]),
    )


def test_it_learns_what_the_words_say_and_a_swapped_instruction_changes_the_action() -> None:
    scenes, windows = observations(batch=4), two_tasks()
    policy = small()
    policy.fit_normalizers(windows.state[:, -1], windows.actions[:, 0])
    config = BCConfig(batch_size=32, lr=3e-3, lr_warmup=10)
    learner = BCLearner(config, policy, windows, torch.device("cpu"), 0)
    losses = [float(learner.update()["loss"]) for _ in range(120)]
    assert np.mean(losses[-20:]) < 0.5 * np.mean(losses[:20])
    for text, wanted in zip(TEXTS, (-0.6, 0.6), strict=True):
        asked = {**scenes, "instruction": told(text, 4)}
        chunk = learner.ema.average.sample(asked, generator=torch.Generator().manual_seed(1))
        assert (chunk.actions - wanted).abs().mean() < 0.3


def test_the_order_of_words_matters() -> None:
    policy, noise = small(), torch.zeros(3, 1, 4, 2)
    first, second = (policy.sample(observations(text), noise=noise).actions for text in TEXTS)
    assert not torch.equal(first, second)


def test_words_that_it_was_not_trained_on_are_refused_in_one_line() -> None:
    policy = small()
    with pytest.raises(ValueError, match="not trained on 'blue'; it knows cube, green") as refusal:
        policy.check_instruction("stack the blue cube")
    assert "\n" not in str(refusal.value)
    with pytest.raises(ValueError, match="not trained on 'blue'"):
        policy.sample(observations("stack the blue cube"))
    without = {key: value for key, value in observations().items() if key != "instruction"}
    with pytest.raises(ValueError, match="has no instruction"):
        policy.sample(without)


def test_words_that_lack_in_the_configuration_are_told_before_the_training() -> None:
    with pytest.raises(ValueError, match="not trained on 'green'"):
        VLAPolicy.for_instructions(VLAConfig(words=["stack", "the", "cube", "on", "red"]), TEXTS)


def test_it_needs_a_camera() -> None:
    with pytest.raises(ValueError, match=r"base=vla needs images: add task\.cameras"):
        VLAPolicy(SMALL, 3, 2)


def test_a_saved_one_acts_the_same(tmp_path: Path) -> None:
    policy = small()
    save_policy(policy, tmp_path / "policy", {})
    loaded, _ = load_base(tmp_path / "policy")
    noise = torch.randn(3, 2, 4, 2, generator=torch.Generator().manual_seed(0))
    expected = policy.sample(observations(), noise=noise, num_samples=2).actions
    assert torch.equal(loaded.sample(observations(), noise=noise, num_samples=2).actions, expected)


def gradients(policy: VLAPolicy) -> Tensor:
    generator = torch.Generator().manual_seed(5)
    batch = {**observations(), "actions": torch.rand(3, 4, 2, generator=generator), "mask": torch.ones(3, 4)}
    policy.loss(batch, generator).backward()
    return torch.cat([one.grad.flatten() for one in policy.parameters() if one.grad is not None])


def test_checkpointing_changes_no_gradient() -> None:
    plain, again = (gradients(small(replace(SMALL, checkpointing=flag))) for flag in (False, True))
    torch.testing.assert_close(again, plain)
    assert len(plain) == sum(weights.numel() for weights in small().parameters())


def test_bfloat16_is_near_float32() -> None:
    noise = torch.zeros(3, 1, 4, 2)
    exact, near = (
        small(replace(SMALL, bf16=flag)).sample(observations(), noise=noise).actions for flag in (False, True)
    )
    assert near.dtype == torch.float32
    assert 0 < (near - exact).abs().max() < 0.1


def test_times_are_drawn_closer_to_the_noise() -> None:
    times = small()._draw_times(4000, torch.Generator().manual_seed(0)) / TIME_SCALE
    assert times.min() >= 0
    assert times.max() <= 1
    # The mean of 1 - Beta(1.5, 1) is 0.4.
    assert abs(float(times.mean()) - 0.4) < 0.02


def test_a_base_that_reads_instructions_refuses_data_without(
    tmp_path: Path, demonstrations: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ["method=bc", "base=vla", f"data={demonstrations}", f"runs_dir={tmp_path}", "name=r"]
    assert main(["train", *arguments]) == 2
    error = capsys.readouterr().err
    assert "has no instructions, which base=vla needs" in error
    assert len(error.splitlines()) == 1
