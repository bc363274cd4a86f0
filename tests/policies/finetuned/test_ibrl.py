"""IBRL policy: choice between base and actor by value, exploration, saving, exact restoring."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

import robot_rl.policies.finetuned  # noqa: F401
from robot_rl.policies.acting import ActingPolicy
from robot_rl.policies.bases.act import ACTConfig, ACTPolicy
from robot_rl.policies.bases.diffusion import DiffusionConfig, DiffusionPolicy
from robot_rl.policies.chunk_runner import PolicyOutput
from robot_rl.policies.finetuned.finetuned_policy import Exploration, save_finetuned
from robot_rl.policies.finetuned.ibrl import IBRL, IBRLSpec
from robot_rl.policies.nets.critic import ValueSpec
from robot_rl.policies.nets.encoder import EncoderSpec
from robot_rl.policies.store import load_policy_files

STATE, ACTION, SLOTS = 4, 3, 8
SPEC = IBRLSpec(
    encoder=EncoderSpec(STATE),
    value=ValueSpec("mse", 0.0, 1.0),
    action_size=ACTION,
    hidden=(16, 16),
    num_critics=3,
    layer_norm=True,
    temperature=0.0,
    uncertainty_penalty=0.5,
)


@pytest.fixture(scope="module", params=["diffusion", "act"])
def base(request: pytest.FixtureRequest) -> DiffusionPolicy | ACTPolicy:
    torch.manual_seed(0)
    if request.param == "act":
        return ACTPolicy(ACTConfig(width=16, heads=2, horizon=6, execute=3), STATE, ACTION).eval()
    config = DiffusionConfig(width=32, depth=1, train_steps=8, inference_steps=2, horizon=6, execute=3)
    return DiffusionPolicy(config, STATE, ACTION).eval()


Base = DiffusionPolicy | ACTPolicy


def trained(base: Base, **changes: float) -> IBRL:
    torch.manual_seed(1)
    networks = IBRL(base, replace(SPEC, **changes))
    torch.nn.init.normal_(networks.actor.head.weight)
    return networks


def play(policy: ActingPolicy, *, explore: bool = False) -> list[tuple[np.ndarray, PolicyOutput]]:
    states = np.random.default_rng(0).normal(size=(7, SLOTS, STATE)).astype(np.float32)
    policy.reset(range(SLOTS), range(SLOTS))
    return [(state, policy.act({"state": state}, explore=explore)) for state in states]


def prefer_actor(networks: IBRL, sign: float) -> None:
    """Make the value of an action its likeness to (sign = 1) or difference from the actor's at state s."""

    def value(features: Tensor, action: Tensor, chosen: Tensor | None = None) -> Tensor:
        distance = (action - networks.actor(features)).square().sum(-1, keepdim=True)
        return -sign * distance.expand(3, -1, -1)

    networks.critic.forward = value  # type: ignore[method-assign]


def test_inactive_policy_acts_exactly_as_its_base(base: Base) -> None:
    policy = trained(base).policy(SLOTS, exploration=Exploration(0.5))
    policy.active = False
    pairs = zip(play(policy, explore=True), play(ActingPolicy(base, SLOTS)), strict=True)
    for (_, one), (_, two) in pairs:
        np.testing.assert_array_equal(one.action, two.action)


@pytest.mark.parametrize("sign", [1.0, -1.0])
def test_action_with_the_higher_value_is_executed(base: Base, sign: float) -> None:
    networks = trained(base)
    prefer_actor(networks, sign)
    for state, output in play(networks.policy(SLOTS)):
        own = networks.actor(torch.from_numpy(state)).detach().numpy()
        np.testing.assert_allclose(output.action, own if sign > 0 else output.base, atol=1e-6)


def test_choice_depends_on_the_state(base: Base) -> None:
    corrected = [(d.correction != 0).any(1) for _, d in play(trained(base).policy(SLOTS))]
    assert 0 < np.mean(corrected) < 1


def test_high_temperature_chooses_at_random_only_while_exploring(base: Base) -> None:
    networks = trained(base, temperature=1e3)
    prefer_actor(networks, -1.0)
    explored = [(d.correction != 0).any(1) for _, d in play(networks.policy(SLOTS), explore=True)]
    assert 0.25 < np.mean(explored) < 0.75
    for _, output in play(networks.policy(SLOTS)):
        np.testing.assert_array_equal(output.correction, 0)


def test_exploration_noise_is_added_only_to_the_actor(base: Base) -> None:
    networks = trained(base)
    prefer_actor(networks, -1.0)
    with torch.no_grad():
        networks.actor.head.bias.fill_(5.0)  # far from the base
    for _, output in play(networks.policy(SLOTS, exploration=Exploration(0.01)), explore=True):
        np.testing.assert_array_equal(output.correction, 0)


def test_untrained_actor_gives_zero_and_dropout_changes_a_trained_one(base: Base) -> None:
    features = torch.randn(5, STATE)
    assert not IBRL(base, SPEC).actor(features).any()
    actor = trained(base).actor
    ones = [torch.ones(5, 16), torch.ones(5, 16)]
    torch.testing.assert_close(actor(features, ones), actor(features))
    half = [torch.ones(5, 16), (torch.rand(5, 16) < 0.5) * 2.0]
    assert not torch.allclose(actor(features, half), actor(features))


def test_restored_policy_continues_exactly(base: Base) -> None:
    networks = trained(base, temperature=0.1)
    policy, other = (networks.policy(SLOTS, seed=seed, exploration=Exploration(0.3)) for seed in (5, 6))
    play(policy, explore=True)
    other.load_state_dict(policy.state_dict())
    state = {"state": np.ones((SLOTS, STATE), np.float32)}
    for _ in range(4):
        one, two = policy.act(state, explore=True), other.act(state, explore=True)
        np.testing.assert_array_equal(one.action, two.action)


def test_loaded_policy_acts_identically(base: Base, tmp_path: Path) -> None:
    networks = trained(base)
    save_finetuned(networks, tmp_path, {})
    loaded, _ = load_policy_files(tmp_path)
    assert isinstance(loaded, IBRL)
    pairs = zip(play(networks.policy(SLOTS)), play(loaded.eval().policy(SLOTS)), strict=True)
    for (_, one), (_, two) in pairs:
        np.testing.assert_array_equal(one.action, two.action)
