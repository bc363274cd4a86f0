"""Parts shared by off-policy learners: stored base samples, imitation loss, demonstration schedule."""

import pytest
import torch

from robot_rl.cli.compose import compose
from robot_rl.cli.main import load_command
from robot_rl.learning.config import PriorDataConfig
from robot_rl.learning.imitation import bc_loss
from robot_rl.learning.off_policy import stored_base_samples
from robot_rl.learning.sampling import MixedSampler, Window

ROWS, KEPT = 5, 4


def test_stored_base_samples_are_redrawn_for_each_target() -> None:
    number = torch.arange(ROWS * KEPT, dtype=torch.float32).view(ROWS, KEPT, 1, 1)
    batch = {"next.base_samples": number.expand(-1, -1, 2, 3), "next.base_sample_noise": -number}
    generator = torch.Generator().manual_seed(0)
    seen: list[set[int]] = [set() for _ in range(ROWS)]
    for _ in range(40):
        drawn = stored_base_samples(batch, "next.", 2, generator)
        assert drawn.actions.shape == (ROWS, 2, 2, 3)
        assert drawn.noise is not None
        torch.testing.assert_close(drawn.noise[..., 0, 0], -drawn.actions[..., 0, 0])
        for row, chosen in enumerate(drawn.actions[:, :, 0, 0].int().tolist()):
            assert len(set(chosen)) == 2
            seen[row] |= set(chosen)
    assert seen == [set(range(row * KEPT, (row + 1) * KEPT)) for row in range(ROWS)]


def test_base_samples_without_noise_are_drawn_up_to_the_stored_number() -> None:
    drawn = stored_base_samples({"base_samples": torch.zeros(ROWS, 1, 2, 3)}, "", 2, torch.Generator())
    assert drawn.actions.shape == (ROWS, 1, 2, 3)
    assert drawn.noise is None


def test_padding_after_the_end_of_an_episode_is_not_imitated() -> None:
    """Padding is what the base would have done after the end of the episode."""
    chunk = torch.zeros(3, 4, 2)
    executed = torch.full((3, 4, 2), 0.5)
    executed[0, 2:] = 100.0
    mask = torch.ones(3, 4)
    mask[0, 2:] = 0.0
    batch = {"chunk": executed, "chunk_mask": mask, "success": torch.tensor([1.0, 1.0, 0.0])}
    assert bc_loss(chunk, batch) == pytest.approx(0.25)
    assert bc_loss(chunk, {**batch, "success": torch.zeros(3)}) == 0


@pytest.mark.parametrize(
    ("options", "parts"),
    [
        ({"demo_ratio": 0.0}, (0.0, 0.0)),
        ({"demo_ratio": 0.4}, (0.4, 0.4)),
        ({"demo_ratio": 0.0, "demo_ratio_end": 0.5}, (0.0, 0.5)),
        ({"demo_ratio": 0.5, "demo_ratio_end": 0.1}, (0.5, 0.1)),
    ],
)
def test_demonstration_fraction_follows_its_schedule(
    options: dict[str, float], parts: tuple[float, float]
) -> None:
    config = PriorDataConfig(**options, demo_ratio_steps=100)
    assert config.uses_demonstrations == (max(parts) > 0)
    replay = object()
    mixture = MixedSampler(config, replay, replay, Window(), seed=0)  # type: ignore[arg-type]
    assert [mixture.demo_fraction(step) for step in (0, 50, 100, 1000)] == pytest.approx(
        [parts[0], sum(parts) / 2, parts[1], parts[1]]
    )


@pytest.mark.parametrize(
    ("method", "option"),
    [
        ("residual", "bc_weight=5"),
        ("ibrl", "bc_weight=5"),
        ("rlpd", "bc_weight=5"),
        ("dsrl", "bc_weight=5"),
        ("residual", "init_alpha=0.1"),
        ("residual", "actor=sac"),
    ],
)
def test_methods_refuse_options_that_they_do_not_have(method: str, option: str) -> None:
    with pytest.raises(ValueError, match=option.split("=")[0]):
        compose(load_command("train"), [f"method={method}", "base=uniform", f"method.{option}"])
