"""DSRL policy: noise of the actor, gate, initialisation, exact restoring."""

import numpy as np
import pytest
import torch

from robot_rl.policies.acting import ActingPolicy
from robot_rl.policies.bases.act import ACTConfig, ACTPolicy
from robot_rl.policies.bases.diffusion import DiffusionConfig, DiffusionPolicy
from robot_rl.policies.chunk_runner import PolicyOutput
from robot_rl.policies.finetuned.dsrl import DSRL, DSRLSpec, RepeatedNoisePolicy, scale_of_unit_noise
from robot_rl.policies.nets.critic import ValueSpec
from robot_rl.policies.nets.encoder import EncoderSpec

STATE, ACTION = 4, 3


@pytest.fixture(scope="module")
def base() -> DiffusionPolicy:
    torch.manual_seed(0)
    config = DiffusionConfig(
        width=32, depth=1, train_steps=8, inference_steps=2, horizon=6, execute=3, obs_steps=2
    )
    return DiffusionPolicy(config, STATE, ACTION).eval()


def make(base: DiffusionPolicy | ACTPolicy, critic_action: str = "noise", **options: object) -> DSRL:
    torch.manual_seed(1)
    spec = {
        "encoder": EncoderSpec(STATE),
        "value": ValueSpec("mse", 0, 1),
        "hidden": (16,),
        "bound": 1.5,
        "num_critics": 3,
        "layer_norm": True,
        "critic_action": critic_action,
        "base_samples": 0 if critic_action == "noise" else 2,
        "gate": True,
        "uncertainty_penalty": 0.5,
    }
    return DSRL(base, DSRLSpec(**{**spec, **options}))


def trained(base: DiffusionPolicy, critic_action: str = "noise", **options: object) -> DSRL:
    networks = make(base, critic_action, **options)
    torch.nn.init.normal_(networks.actor.head.weight, std=0.3)
    return networks


def states(steps: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=(steps, 2, STATE)).astype(np.float32)


def play(policy: ActingPolicy, frames: np.ndarray, *, explore: bool = False) -> list[PolicyOutput]:
    return [policy.act({"state": frame}, explore=explore, with_base_samples=True) for frame in frames]


def begin(policy: ActingPolicy) -> ActingPolicy:
    policy.reset([0, 1], [7, 8])
    return policy


def prefer(networks: DSRL, sign: float) -> None:
    """Make the critics' value `sign` times the sum of the action."""

    def critic(features: torch.Tensor, critic_action: torch.Tensor, chosen: object = None) -> torch.Tensor:
        return sign * critic_action.sum(-1, keepdim=True).expand(networks.spec.num_critics, -1, 1)

    networks.critic.forward = critic  # type: ignore[method-assign]


@pytest.mark.parametrize("critic_action", ["noise", "chunk"])
def test_repeated_noise_is_that_of_one_step_at_every_step_of_the_chunk(
    base: DiffusionPolicy, critic_action: str
) -> None:
    networks = trained(base, critic_action, repeated_noise=True, gate=False)
    assert (networks.chosen_size, networks.noise_size) == (ACTION, 6 * ACTION)
    for output in play(begin(networks.policy(2)), states(8), explore=True):
        assert output.noise is not None
        np.testing.assert_array_equal(output.noise, np.repeat(output.noise[:, :1], 6, 1))
        assert np.abs(output.noise).max() <= networks.spec.bound


def test_a_base_with_repeated_noise_executes_the_chunks_of_that_noise(base: DiffusionPolicy) -> None:
    frames = states(4)
    repeated = play(begin(RepeatedNoisePolicy(base, 2)), frames)
    usual = play(begin(ActingPolicy(base, 2)), frames)
    for one, other in zip(repeated, usual, strict=True):
        assert one.noise is not None
        assert other.noise is not None
        np.testing.assert_array_equal(one.noise, np.repeat(other.noise[:, :1], 6, 1))
    first = torch.from_numpy(frames[0])[:, None].expand(-1, 2, -1)
    assert repeated[0].noise is not None
    chunk = base.sample({"state": first}, noise=torch.from_numpy(repeated[0].noise)[:, None]).actions[:, 0]
    for step in range(3):
        np.testing.assert_allclose(repeated[step].action, chunk[:, step].numpy(), atol=1e-6)
    with pytest.raises(ValueError, match="no noise"):
        RepeatedNoisePolicy(ACTPolicy(ACTConfig(width=16, heads=2, layers=1), STATE, ACTION), 1)


@pytest.mark.parametrize("critic_action", ["noise", "chunk"])
def test_inactive_policy_acts_exactly_as_its_base(base: DiffusionPolicy, critic_action: str) -> None:
    policy, alone = begin(trained(base, critic_action).policy(2)), begin(ActingPolicy(base, 2))
    policy.active = False
    for one, two in zip(play(policy, states(8), explore=True), play(alone, states(8)), strict=True):
        np.testing.assert_allclose(one.action, two.action, rtol=1e-5, atol=1e-6)
        np.testing.assert_array_equal(one.noise, two.noise)


@pytest.mark.parametrize("critic_action", ["noise", "chunk"])
@pytest.mark.parametrize("explore", [False, True])
def test_executed_chunk_is_the_base_applied_to_the_noise(
    base: DiffusionPolicy, critic_action: str, explore: bool
) -> None:
    policy = begin(trained(base, critic_action).policy(2))
    frames = states(6)
    outputs = play(policy, frames, explore=explore)
    for t in (0, 3):
        history = torch.from_numpy(np.stack([frames[max(t - 1, 0)], frames[t]], 1))
        noise = torch.from_numpy(outputs[t].noise)[:, None]
        chunk = base.sample({"state": history}, noise=noise).actions[:, 0]
        for step in range(3):
            np.testing.assert_allclose(outputs[t + step].action, chunk[:, step], rtol=1e-5, atol=1e-6)


def test_noise_is_sampled_while_exploring_and_the_bounded_mean_otherwise(base: DiffusionPolicy) -> None:
    networks = trained(base, gate=False, bound=0.7)
    frames = states(1)
    output = begin(networks.policy(2)).act({"state": frames[0]})
    mean = networks.actor(torch.from_numpy(frames[0]))[0]
    np.testing.assert_allclose(
        output.noise, (0.7 * torch.tanh(mean)).view(2, 6, ACTION).detach(), rtol=1e-5, atol=1e-6
    )
    sampled = begin(networks.policy(2, seed=3)).act({"state": frames[0]}, explore=True)
    other = begin(networks.policy(2, seed=4)).act({"state": frames[0]}, explore=True)
    assert np.abs(sampled.noise).max() <= 0.7
    assert not np.allclose(sampled.noise, output.noise)
    assert not np.allclose(sampled.noise, other.noise)


@pytest.mark.parametrize("critic_action", ["noise", "chunk"])
@pytest.mark.parametrize("sign", [1.0, -1.0])
def test_gate_executes_the_chunk_with_the_highest_value(
    base: DiffusionPolicy, critic_action: str, sign: float
) -> None:
    networks = trained(base, critic_action, base_samples=3)
    prefer(networks, sign)
    frame = {"state": states(1)[0]}
    gated = begin(networks.policy(2)).act(frame, with_base_samples=True)
    ungated = trained(base, critic_action, base_samples=3, gate=False)
    steered = begin(ungated.policy(2)).act(frame, with_base_samples=True)
    assert gated.base_samples is not None
    assert gated.base_samples.noise is not None
    noise = np.concatenate([steered.noise[:, None], gated.base_samples.noise], 1)
    own = ungated.decode(history(frame["state"]), torch.from_numpy(steered.noise)).numpy()
    chunks = np.concatenate([own[:, None], gated.base_samples.chunks], 1)
    value = sign * (noise if critic_action == "noise" else chunks).reshape(2, 4, -1).sum(-1)
    best = value.argmax(1)
    np.testing.assert_allclose(gated.noise, noise[[0, 1], best], rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(gated.action, chunks[[0, 1], best, 0], rtol=1e-5, atol=1e-6)


def history(state: np.ndarray) -> dict[str, torch.Tensor]:
    return {"state": torch.from_numpy(state)[:, None].expand(-1, 2, -1)}


@pytest.mark.parametrize("bound", [1.6, 2.0, 3.0])
def test_new_actor_samples_unit_variance_noise(base: DiffusionPolicy, bound: float) -> None:
    networks = make(base, bound=bound)
    eps = torch.randn(4000, networks.noise_size)
    with torch.no_grad():
        noise = networks.as_noise(networks.actor.sample(torch.randn(4000, STATE), eps)[0])
    assert noise.std() == pytest.approx(1, abs=0.02)
    assert noise.mean() == pytest.approx(0, abs=0.02)


def test_initial_scale_is_at_most_1_for_small_bounds() -> None:
    assert scale_of_unit_noise(0.5) == pytest.approx(1)


def test_base_without_noise_input_is_refused() -> None:
    base = ACTPolicy(ACTConfig(name="act", width=16, heads=2, layers=1), STATE, ACTION)
    with pytest.raises(ValueError, match="noise"):
        make(base)


@pytest.mark.parametrize("steps", [1, 3])
def test_restored_policy_continues_exactly(base: DiffusionPolicy, steps: int) -> None:
    networks = trained(base)
    policy = begin(networks.policy(2))
    frames = states(8)
    play(policy, frames[:steps], explore=True)
    saved = policy.state_dict()
    ahead = play(policy, frames[steps:], explore=True)
    other = networks.policy(2, seed=9)
    other.load_state_dict(saved)
    for one, two in zip(ahead, play(other, frames[steps:], explore=True), strict=True):
        np.testing.assert_array_equal(one.action, two.action)
        np.testing.assert_array_equal(one.noise, two.noise)
