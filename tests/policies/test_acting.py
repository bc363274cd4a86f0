"""Acting policies: execution of chunks, corrections, seeds, independence of environments, restoring."""

from collections.abc import Callable

import numpy as np
import pytest
import torch

from robot_rl.policies.acting import ActingPolicy
from robot_rl.policies.bases.base_policy import Chunk, ObservationHistory
from robot_rl.policies.bases.diffusion import DiffusionConfig, DiffusionPolicy
from robot_rl.policies.chunk_runner import ChunkRunner, PolicyOutput, SelectedChunk
from robot_rl.policies.finetuned.finetuned_policy import Exploration
from robot_rl.policies.finetuned.residual import Residual, ResidualPolicy, ResidualSpec
from robot_rl.policies.nets.encoder import EncoderSpec

STATE, ACTION = 4, 3
SMALL = DiffusionConfig(width=32, depth=1, train_steps=8, inference_steps=2)


@pytest.fixture(scope="module")
def base() -> DiffusionPolicy:
    torch.manual_seed(0)
    config = DiffusionConfig(**{**vars(SMALL), "horizon": 6, "execute": 3, "obs_steps": 2})
    return DiffusionPolicy(config, STATE, ACTION).eval()


def fresh(base: DiffusionPolicy, scale: float = 0.5, exploration: float = 0.0) -> ResidualPolicy:
    torch.manual_seed(1)
    spec = ResidualSpec(EncoderSpec(STATE), ACTION, (16,), (scale,) * ACTION)
    return Residual(base, spec).policy(2, exploration=Exploration(exploration))


def trained(base: DiffusionPolicy, *, exploration: float = 0.0, seed: int = 0) -> ResidualPolicy:
    torch.manual_seed(1)
    networks = Residual(base, ResidualSpec(EncoderSpec(STATE), ACTION, (16,), (0.5,) * ACTION))
    torch.nn.init.normal_(networks.actor.net.head.weight)
    return networks.policy(2, exploration=Exploration(exploration), seed=seed)


def frames(steps: int, num_envs: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=(steps, num_envs, STATE)).astype(np.float32)


def play(policy: ActingPolicy, states: np.ndarray, *, explore: bool = False) -> list[PolicyOutput]:
    return [policy.act({"state": state}, explore=explore, with_base_samples=True) for state in states]


def everything(output: PolicyOutput) -> dict[str, np.ndarray]:
    return {"action": output.action, **output.replay_fields()}


def off(base: DiffusionPolicy) -> ActingPolicy:
    policy = trained(base)
    policy.active = False
    return policy


@pytest.mark.parametrize(
    "make",
    [
        off,
        fresh,
        lambda base: fresh(base, scale=2.0, exploration=0.3),  # not asked to explore
    ],
    ids=["off", "fresh actor", "not exploring"],
)
def test_inactive_policy_acts_exactly_as_its_base(
    base: DiffusionPolicy, make: Callable[[DiffusionPolicy], ActingPolicy]
) -> None:
    finetuned, alone = make(base), ActingPolicy(base, 2)
    for policy in (finetuned, alone):
        policy.reset([0, 1], [7, 8])
    states = frames(8, 2)
    for one, two in zip(play(finetuned, states), play(alone, states), strict=True):
        np.testing.assert_array_equal(one.action, two.action)
        np.testing.assert_array_equal(one.base, two.base)
        np.testing.assert_array_equal(one.correction, 0)


def test_residual_is_added_to_the_base_and_clipped(base: DiffusionPolicy) -> None:
    policy = trained(base)
    policy.reset([0, 1], [7, 8])
    for state in frames(5, 2):
        output = policy.act({"state": state})
        with torch.no_grad():
            residual = policy.networks.actor(
                policy.networks.encoder({"state": torch.from_numpy(state)}), torch.from_numpy(output.base)
            ).numpy()
        np.testing.assert_allclose(output.action, np.clip(output.base + residual, -1, 1), rtol=1e-6)
        assert np.abs(output.correction).max() > 0.01


@pytest.mark.parametrize("active", [True, False])
def test_exploration_is_noise_within_the_scale(base: DiffusionPolicy, active: bool) -> None:
    policy = trained(base, exploration=5.0)
    policy.active = active
    policy.reset([0, 1], [7, 8])
    corrections = np.abs([output.correction for output in play(policy, frames(20, 2), explore=True)])
    assert 0.4 < corrections.max() <= 0.5 + 1e-6


def test_chunk_is_executed_for_h_steps_then_a_new_one_is_sampled(base: DiffusionPolicy) -> None:
    runner = ChunkRunner(base, 1)
    runner.reset([0], [3])
    generator = torch.Generator().manual_seed(3)
    history = None
    for t, state in enumerate(frames(9, 1)[:, 0]):
        history = [state, state] if history is None else [history[1], state]
        step = runner.step({"state": state[None]}, np.array([0]))
        assert step.chunk_step[0] == t % 3
        if t % 3 == 0:
            drawn = base.draw_noise(1, generator=generator)
            chunk = base.sample({"state": torch.from_numpy(np.stack(history)[None])}, noise=drawn).actions
        assert step.noise is not None
        np.testing.assert_array_equal(step.noise, drawn[:, 0].numpy())
        np.testing.assert_array_equal(step.action[0], chunk[0, 0, t % 3].numpy())
        np.testing.assert_array_equal(step.base, step.action)


def test_episodes_do_not_depend_on_earlier_ones(base: DiffusionPolicy) -> None:
    policy = ActingPolicy(base, 2)
    states = frames(5, 2)
    policy.reset([0, 1], [1, 2])
    first = play(policy, states)
    # In the middle of a chunk; only environment 0 is reset.
    policy.reset([0], [1])
    again = play(policy, states)
    for one, two in zip(first, again, strict=True):
        np.testing.assert_array_equal(one.noise[0], two.noise[0])
        np.testing.assert_allclose(one.action[0], two.action[0], rtol=1e-5, atol=1e-6)
    assert [d.chunk_step.tolist() for d in again] == [[0, 2], [1, 0], [2, 1], [0, 2], [1, 0]]


def test_environment_acts_the_same_alone_and_with_others(base: DiffusionPolicy) -> None:
    states = frames(10, 4)
    together, alone = ActingPolicy(base, 4), ActingPolicy(base, 1)
    together.reset([3, 1, 0, 2], [13, 11, 10, 12])
    alone.reset([0], [12])
    many = play(together, states[:2])
    together.reset([1], [99])  # the other environment is reset in the middle
    many += play(together, states[2:])
    for beside, own in zip(many, play(alone, states[:, 2:3]), strict=True):
        np.testing.assert_array_equal(beside.noise[2], own.noise[0])
        np.testing.assert_array_equal(beside.chunk_step[2], own.chunk_step[0])
        np.testing.assert_allclose(beside.action[2], own.action[0], rtol=1e-5, atol=1e-6)


def test_acting_in_some_environments_does_not_affect_the_others(base: DiffusionPolicy) -> None:
    policy, other = ActingPolicy(base, 3), ActingPolicy(base, 3)
    states = frames(6, 3)
    for one in (policy, other):
        one.reset([0, 1, 2], [1, 2, 3])
        play(one, states[:2])
    some = np.array([2, 0])
    policy.act({"state": states[5][some]}, env_ids=some)
    for t in (2, 3, 4):
        one, two = policy.act({"state": states[t]}), other.act({"state": states[t]})
        np.testing.assert_array_equal(one.noise[1], two.noise[1])
        np.testing.assert_allclose(one.action[1], two.action[1], rtol=1e-5, atol=1e-6)


def test_noise_is_determined_by_the_seed(base: DiffusionPolicy) -> None:
    policy = ActingPolicy(base, 2)
    policy.reset([0, 1], [5, 6])
    noise = policy.act({"state": frames(1, 2)[0]}).noise
    policy.reset([0, 1], [6, 5])
    np.testing.assert_array_equal(policy.act({"state": frames(1, 2)[0]}).noise, noise[::-1])
    assert not np.array_equal(noise[0], noise[1])


def chooser(base: DiffusionPolicy) -> ActingPolicy:
    return Chooser(base, 2, base_samples=3)


class Chooser(ActingPolicy):
    """Executes the last base sample plus a constant."""

    def _select_chunk(self, obs: ObservationHistory, base_samples: Chunk, *, explore: bool) -> SelectedChunk:
        assert base_samples.noise is not None
        base = base_samples.actions[:, -1]
        return SelectedChunk((base + 0.1).clamp(-1, 1), base, base_samples.noise[:, -1])


def test_base_samples_are_returned_at_every_step_and_the_first_is_the_bases_chunk(
    base: DiffusionPolicy,
) -> None:
    many, one = ActingPolicy(base, 2, base_samples=3), ActingPolicy(base, 2)
    many.reset([0, 1], [5, 6])
    one.reset([0, 1], [5, 6])
    states = frames(7, 2)
    seen = []
    for t, (beside, alone) in enumerate(zip(play(many, states), play(one, states), strict=True)):
        # The others come from another generator, so that the base does as without them.
        np.testing.assert_array_equal(beside.noise, alone.noise)
        np.testing.assert_allclose(beside.action, alone.action, rtol=1e-5, atol=1e-6)
        assert alone.base_samples is None
        assert beside.base_samples is not None
        kept, noise = beside.base_samples.chunks, beside.base_samples.noise
        assert (kept.shape, noise.shape) == ((2, 3, 3, ACTION), (2, 3, *base.spec.noise_shape))
        history = np.stack([states[max(t - 1, 0)], states[t]], 1)
        again = base.sample(
            {"state": torch.from_numpy(history)}, noise=torch.from_numpy(noise), num_samples=3
        ).actions
        np.testing.assert_allclose(kept, again[:, :, :3].numpy(), rtol=1e-5, atol=1e-6)
        if t % 3 == 0:
            np.testing.assert_array_equal(noise[:, 0], beside.noise)
            np.testing.assert_array_equal(kept[:, 0, 0], beside.action)
        seen += list(noise.reshape(6, -1))
    assert len(np.unique(seen, axis=0)) == len(seen)  # all samples differ
    assert set(many.act({"state": states[0]}, with_base_samples=True).replay_fields()) == {
        "base", "chunk_step", "noise", "base_samples", "base_sample_noise",
    }  # fmt: skip


def test_selected_chunk_is_executed_with_its_base_chunk_and_noise(
    base: DiffusionPolicy,
) -> None:
    policy = chooser(base)
    policy.reset([0, 1], [5, 6])
    for t, output in enumerate(play(policy, frames(8, 2))):
        if t % 3 == 0:
            first = output.base_samples
        np.testing.assert_array_equal(output.base, first.chunks[:, -1, t % 3])
        np.testing.assert_array_equal(output.noise, first.noise[:, -1])
        np.testing.assert_array_equal(output.action, np.clip(output.base + np.float32(0.1), -1, 1))


def test_inactive_chunk_selection_acts_as_the_base(base: DiffusionPolicy) -> None:
    policy, alone = chooser(base), ActingPolicy(base, 2)
    policy.active = False
    for one in (policy, alone):
        one.reset([0, 1], [7, 8])
    states = frames(8, 2)
    for one, two in zip(play(policy, states), play(alone, states), strict=True):
        np.testing.assert_array_equal(one.noise, two.noise)
        np.testing.assert_allclose(one.action, two.action, rtol=1e-5, atol=1e-6)
        np.testing.assert_array_equal(one.correction, 0)


def exploring(base: DiffusionPolicy) -> ActingPolicy:
    return trained(base, exploration=0.2)


@pytest.mark.parametrize("make", [exploring, chooser])
@pytest.mark.parametrize("steps", [1, 3, 4])
def test_restored_policy_continues_exactly(
    base: DiffusionPolicy, steps: int, make: Callable[[DiffusionPolicy], ActingPolicy]
) -> None:
    policy = make(base)
    policy.reset([0, 1], [1, 2])
    states = frames(10, 2)
    play(policy, states[:steps], explore=True)
    saved = policy.state_dict()
    ahead = play(policy, states[steps:], explore=True)
    other = make(base)
    other.reset([0, 1], [8, 9])
    play(other, states[:1], explore=True)
    other.load_state_dict(saved)
    for one, two in zip(ahead, play(other, states[steps:], explore=True), strict=True):
        for name, value in everything(one).items():
            np.testing.assert_array_equal(value, everything(two)[name])


def test_output_does_not_change_afterwards(base: DiffusionPolicy) -> None:
    policy = chooser(base)
    policy.reset([0, 1], [1, 2])
    output = policy.act({"state": frames(1, 2)[0]})
    before = {name: value.copy() for name, value in everything(output).items()}
    play(policy, frames(7, 2, seed=1))
    for name, value in before.items():
        np.testing.assert_array_equal(value, everything(output)[name])
