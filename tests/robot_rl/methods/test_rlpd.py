"""RLPD: acting, training with and without a base, and the gripper critic."""

import shutil
from pathlib import Path

import numpy as np
import pytest
import torch

from robot_rl.methods.rlpd import GripperLearner, RLPDConfig
from robot_rl.policies.bases.uniform import UniformConfig, UniformPolicy
from robot_rl.policies.finetuned.finetuned_policy import save_finetuned
from robot_rl.policies.finetuned.rlpd import RLPD, RLPDSpec
from robot_rl.policies.nets.encoder import EncoderSpec
from robot_rl.policies.store import load_policy_files
from robot_rl.saved_policies.loading import load_networks, load_policy
from tests.conftest import SMALL_RL, RunCommand

STATE, ACTION = 5, 3
FRAMES = {"state": np.zeros((2, STATE), np.float32)}


def make() -> RLPD:
    torch.manual_seed(0)
    base = UniformPolicy(UniformConfig(), STATE, ACTION)
    networks = RLPD(base, RLPDSpec(EncoderSpec(STATE), ACTION, (8, 8)))
    torch.nn.init.normal_(networks.actor.head.weight)
    return networks


def test_actor_acts_instead_of_the_base() -> None:
    networks = make()
    policy = networks.policy(2)
    policy.reset([0, 1], [0, 1])
    features = networks.encoder({"state": torch.zeros(2, STATE)})
    expected = torch.tanh(networks.actor(features)[0]).detach().numpy()
    for _ in range(2):
        output = policy.act(FRAMES)
        np.testing.assert_allclose(output.action, expected, rtol=1e-6)
        assert not np.allclose(output.base, output.action)
    explored = [policy.act(FRAMES, explore=True).action for _ in range(2)]
    assert not np.array_equal(*explored)
    assert np.abs(explored).max() <= 1


def test_base_acts_during_the_warmup() -> None:
    policy = make().policy(2)
    policy.reset([0, 1], [0, 1])
    policy.active = False
    output = policy.act(FRAMES, explore=True)
    assert np.array_equal(output.action, output.base)
    assert not np.array_equal(output.action[0], output.action[1])


def test_restored_policy_explores_identically() -> None:
    policy, other = make().policy(2), make().policy(2, seed=5)
    policy.reset([0, 1], [0, 1])
    policy.act(FRAMES, explore=True)
    other.load_state_dict(policy.state_dict())
    for _ in range(2):
        assert np.array_equal(policy.act(FRAMES, explore=True).action, other.act(FRAMES, explore=True).action)


def test_policy_is_saved_and_loaded(tmp_path: Path) -> None:
    networks = make()
    save_finetuned(networks, tmp_path, {})
    loaded, _ = load_policy_files(tmp_path)
    assert isinstance(loaded, RLPD)
    assert isinstance(loaded.base, UniformPolicy)
    for name, value in networks.state_dict().items():
        assert torch.equal(loaded.state_dict()[name], value)


@pytest.mark.parametrize("with_base", [False, pytest.param(True, marks=pytest.mark.full)])
def test_trains_with_and_without_a_base(
    with_base: bool, tmp_path: Path, robot_rl: RunCommand, demonstrations: Path, base_run: Path
) -> None:
    base = base_run if with_base else "uniform"
    small = ["method.steps=40", "method.warmup_steps=8", "checkpoint_every=16"]
    where = [f"data={demonstrations}", f"runs_dir={tmp_path}", "name=run"]
    robot_rl("train", "method=rlpd", f"base={base}", *where, *small, *SMALL_RL)
    networks, meta = load_networks(tmp_path / "run")
    assert meta["method"] == "rlpd"
    assert isinstance(networks, RLPD)
    assert isinstance(networks.base, UniformPolicy) is not with_base
    assert networks.encoder.norm.std.min() > 0
    assert networks.actor.head.weight.abs().max() > 0  # it was trained
    load_policy(tmp_path / "run")


def with_gripper(dimension: int = 1) -> RLPD:
    torch.manual_seed(0)
    base = UniformPolicy(UniformConfig(), STATE, ACTION)
    networks = RLPD(base, RLPDSpec(EncoderSpec(STATE), ACTION, (8, 8), gripper=dimension))
    torch.nn.init.normal_(networks.actor.head.weight)
    assert networks.gripper is not None
    torch.nn.init.normal_(networks.gripper.head.weight)
    # The better command depends on the state.
    networks.gripper.head.weight.data[..., 1] = -networks.gripper.head.weight.data[..., 0].flip(1)
    return networks


def test_gripper_critic_decides_the_gripper_command(tmp_path: Path) -> None:
    networks = with_gripper()
    assert networks.gripper is not None
    save_finetuned(networks, tmp_path, {})
    loaded, _ = load_policy_files(tmp_path)
    assert isinstance(loaded, RLPD)
    frames = {"state": np.random.default_rng(0).normal(size=(64, STATE)).astype(np.float32)}
    policy = loaded.policy(64)
    policy.reset(range(64), range(64))
    action = policy.act(frames).action
    features = networks.encoder({"state": torch.from_numpy(frames["state"])})
    values = networks.gripper(features, features[:, :0]).mean(0)
    expected = np.where((values[:, 1] > values[:, 0]).numpy(), 1.0, -1.0)
    assert np.array_equal(action[:, 1], expected)
    assert set(expected) == {-1.0, 1.0}
    mean = torch.tanh(networks.actor(features)[0]).detach().numpy()
    np.testing.assert_allclose(action[:, [0, 2]], mean, rtol=1e-5)
    # Exploration sometimes flips the command.
    explored = np.stack([policy.act(frames, explore=True).action[:, 1] for _ in range(40)])
    assert set(np.unique(explored)) == {-1.0, 1.0}
    assert 0.02 < (explored != expected).mean() < 0.1


def test_gripper_critic_learns_the_rewarded_command() -> None:
    """The reward is 1 for closing at positive states and opening at others."""
    config = RLPDConfig(gamma=0.9, critic_lr=3e-3, max_grad_norm=10)
    networks = with_gripper()
    assert networks.gripper is not None
    learner = GripperLearner(config, networks.gripper, 1)
    generator = torch.Generator().manual_seed(0)
    for _ in range(300):
        features = torch.randn(128, STATE, generator=generator)
        action = torch.rand(128, ACTION, generator=generator) * 2 - 1
        right = (action[:, 1] > 0) == (features[:, 0] > 0)
        batch = {"action": action, "reward": right.float(), "discount": torch.zeros(128)}
        learner.update(batch, features, torch.randn(128, STATE, generator=generator))
    features = torch.randn(256, STATE, generator=generator)
    with torch.no_grad():
        values = networks.gripper(features, features[:, :0]).mean(0)
    assert ((values.argmax(-1) == 1) == (features[:, 0] > 0)).float().mean() > 0.9
    assert 0.7 < values.amax(-1).mean() < 1.1
    assert -0.1 < values.amin(-1).mean() < 0.3
    assert learner.dimension == 1


def test_gripper_target_is_double_dqn() -> None:
    """The online critic selects the next command, the target critic evaluates it."""
    config = RLPDConfig(gamma=0.9)
    networks = with_gripper()
    assert networks.gripper is not None
    learner = GripperLearner(config, networks.gripper, 1)
    features = torch.randn(32, STATE)
    after = torch.randn(32, STATE)
    with torch.no_grad():
        best = networks.gripper(after, after[:, :0]).mean(0).argmax(-1)
        value = learner.target(after, after[:, :0]).amin(0)[torch.arange(32), best]
        y = (0.9 * value).clamp(0, 1)
        q = networks.gripper(features, features[:, :0])[..., 1]
    batch = {"action": torch.ones(32, ACTION), "reward": torch.zeros(32), "discount": torch.full((32,), 0.9)}
    loss = learner.update(batch, features, after)["gripper_loss"]
    assert float(loss) == pytest.approx(float((q - y).square().mean()), rel=1e-5)


@pytest.mark.full
def test_trains_and_resumes_with_a_gripper_critic(
    tmp_path: Path, robot_rl: RunCommand, demonstrations: Path
) -> None:
    small = ["method.steps=40", "method.warmup_steps=8", "checkpoint_every=16"]
    common = ("method=rlpd", "method.gripper_critic=true", "base=uniform", f"data={demonstrations}")
    robot_rl("train", *common, f"runs_dir={tmp_path}", "name=run", *small, *SMALL_RL)
    networks, _ = load_networks(tmp_path / "run")
    assert isinstance(networks, RLPD)
    assert networks.gripper is not None
    assert networks.spec.gripper == 6
    whole = networks.state_dict()
    newest = sorted((tmp_path / "run" / "checkpoints").iterdir())[-1]
    shutil.rmtree(newest)
    robot_rl("train", *common, f"runs_dir={tmp_path}", "name=run", *small, *SMALL_RL)
    again = load_networks(tmp_path / "run")[0].state_dict()
    assert all(torch.equal(whole[name], again[name]) for name in whole)
