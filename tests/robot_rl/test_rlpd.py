"""RLPD: no base, or one that only warms up."""

from pathlib import Path

import numpy as np
import pytest
import torch

from policies.encoder import EncoderSpec
from policies.rlpd import RLPD, RLPDSpec
from policies.store import load_policy_files
from policies.uniform import UniformConfig, UniformPolicy
from policies.wrapper import save_wrapper
from robot_rl.factory import load_networks, load_policy
from tests.conftest import SMALL_RL, Verb

STATE, ACTION = 5, 3
FRAMES = {"state": np.zeros((2, STATE), np.float32)}


def make() -> RLPD:
    torch.manual_seed(0)
    base = UniformPolicy(UniformConfig(), STATE, ACTION)
    networks = RLPD(base, RLPDSpec(EncoderSpec(STATE), ACTION, (8, 8)))
    torch.nn.init.normal_(networks.actor.head.weight)
    return networks


def test_the_actor_acts_in_place_of_the_base() -> None:
    networks = make()
    policy = networks.policy(2)
    policy.reset([0, 1], [0, 1])
    features = networks.encoder({"state": torch.zeros(2, STATE)})
    expected = torch.tanh(networks.actor(features)[0]).detach().numpy()
    for _ in range(2):
        decision = policy.act(FRAMES)
        np.testing.assert_allclose(decision.action, expected, rtol=1e-6)
        assert not np.allclose(decision.base, decision.action)
    explored = [policy.act(FRAMES, explore=True).action for _ in range(2)]
    assert not np.array_equal(*explored)
    assert np.abs(explored).max() <= 1


def test_switched_off_the_base_acts() -> None:
    policy = make().policy(2)
    policy.reset([0, 1], [0, 1])
    policy.active = False
    decision = policy.act(FRAMES, explore=True)
    assert np.array_equal(decision.action, decision.base)
    assert not np.array_equal(decision.action[0], decision.action[1])


def test_exploration_resumes() -> None:
    policy, other = make().policy(2), make().policy(2, seed=5)
    policy.reset([0, 1], [0, 1])
    policy.act(FRAMES, explore=True)
    other.load_state_dict(policy.state_dict())
    for _ in range(2):
        assert np.array_equal(policy.act(FRAMES, explore=True).action, other.act(FRAMES, explore=True).action)


def test_saved_and_loaded(tmp_path: Path) -> None:
    networks = make()
    save_wrapper(networks, tmp_path, {})
    loaded, _ = load_policy_files(tmp_path)
    assert isinstance(loaded, RLPD)
    assert isinstance(loaded.base, UniformPolicy)
    for name, value in networks.state_dict().items():
        assert torch.equal(loaded.state_dict()[name], value)


@pytest.mark.parametrize("with_base", [False, True])
def test_trains_with_and_without_a_base(
    with_base: bool, tmp_path: Path, verb: Verb, demonstrations: Path, base_run: Path
) -> None:
    base = base_run if with_base else "uniform"
    small = ["method.steps=40", "method.warmup_steps=8", "checkpoint_every=16"]
    verb("train", "method=rlpd", f"base={base}", f"data={demonstrations}", f"runs_dir={tmp_path}", "name=run",
         *small, *SMALL_RL)  # fmt: skip
    networks, meta = load_networks(tmp_path / "run")
    assert meta["method"] == "rlpd"
    assert isinstance(networks, RLPD)
    assert isinstance(networks.base, UniformPolicy) is not with_base
    assert networks.encoder.norm.std.min() > 0
    assert networks.actor.head.weight.abs().max() > 0  # it was trained
    load_policy(tmp_path / "run")
