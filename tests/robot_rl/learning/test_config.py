"""Options without a meaning are refused with what to choose."""

import pytest

from robot_rl.learning.config import OffPolicyConfig, PriorDataConfig


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"gamma": 1.0}, r"gamma=1: choose it in \[0, 1\)"),
        ({"actor_every": 0}, "actor_every=0: choose 1 or more"),
        ({"critics_per_target": 0}, "critics_per_target=0: choose 1 or more"),
        ({"batch_size": 0}, "batch_size=0"),
        ({"num_envs": 0}, "num_envs=0"),
        ({"replay_capacity": 15}, "replay_capacity=15: a transition takes two rows"),
        ({"hidden": []}, "give the width of one hidden layer or more"),
        ({"max_grad_norm": -1.0}, r"max_grad_norm=-1\.0: choose more than 0"),
        ({"tau": 5.0}, r"tau=5\.0: choose it in \(0, 1\]"),
        ({"critic_warmup": -3}, "critic_warmup=-3: choose 0"),
        ({"demo_ratio_steps": -5}, "demo_ratio_steps=-5: choose 1 or more"),
        ({"demo_ratio_end": 1.0}, r"demo_ratio_end=1\.0: choose it in \[0, 1\)"),
        ({"warmup_steps": 8}, "no step is complete yet .* more than method.num_envs=8"),
    ],
)
def test_options_that_mean_nothing_are_refused(options: dict[str, object], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        PriorDataConfig(**options)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("offset", "penalty", "expected"),
    [(0.0, 0.0, (0.0, 1.0)), (-1.0, 0.0, (-10.0, 0.0)), (0.0, 0.02, (-0.2, 1.0)), (0.2, 0.0, (0.0, 2.0))],
)
def test_values_are_bounded_by_the_possible_returns(
    offset: float, penalty: float, expected: tuple[float, float]
) -> None:
    config = OffPolicyConfig(gamma=0.9, reward_offset=offset, gripper_penalty=penalty)
    assert config.value_range == pytest.approx(expected)
