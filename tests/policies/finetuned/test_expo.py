"""EXPO policy: bounded edits, candidate selection, seed ranking (FASTER), saving, exact restoring."""

import gc
import math
import weakref
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

import robot_rl.policies.finetuned  # noqa: F401
from robot_rl.policies.acting import ActingPolicy
from robot_rl.policies.async_runner import execute_asynchronously
from robot_rl.policies.asynchronous import AsyncOptions
from robot_rl.policies.bases.act import ACTConfig, ACTPolicy
from robot_rl.policies.bases.diffusion import DiffusionConfig, DiffusionPolicy
from robot_rl.policies.chunk_runner import PolicyOutput
from robot_rl.policies.finetuned.expo import Expo, ExpoPolicy, ExpoSpec, SeedRankingBase
from robot_rl.policies.finetuned.finetuned_policy import save_finetuned
from robot_rl.policies.nets.critic import ValueSpec
from robot_rl.policies.nets.encoder import EncoderSpec
from robot_rl.policies.store import load_policy_files
from tests.policies.bases.test_prefix import small_vla

STATE, ACTION, EXECUTE, SLOTS = 4, 3, 3, 2
SPEC = ExpoSpec(
    encoder=EncoderSpec(STATE),
    value=ValueSpec("mse", 0.0, 1.0),
    hidden=(16,),
    scale=(0.2, 0.2, 0.5),
    num_critics=3,
    layer_norm=True,
    candidates=4,
    uncertainty_penalty=0.5,
    faster=False,
)


@pytest.fixture(scope="module")
def base() -> DiffusionPolicy:
    torch.manual_seed(0)
    config = DiffusionConfig(width=32, depth=1, train_steps=8, inference_steps=2, horizon=6, execute=EXECUTE)
    return DiffusionPolicy(config, STATE, ACTION).eval()


def trained(base: DiffusionPolicy, *, faster: bool = False) -> Expo:
    """Networks with an edit policy whose mean is not zero."""
    torch.manual_seed(1)
    networks = Expo(base, replace(SPEC, faster=faster))
    torch.nn.init.normal_(networks.edit.head.weight)
    return networks


def play(policy: ActingPolicy, steps: int = 7, *, explore: bool = False) -> list[PolicyOutput]:
    states = np.random.default_rng(0).normal(size=(steps, SLOTS, STATE)).astype(np.float32)
    policy.reset(range(SLOTS), range(SLOTS))
    return [policy.act({"state": state}, explore=explore, with_base_samples=True) for state in states]


@pytest.mark.parametrize("faster", [False, True])
def test_inactive_policy_acts_exactly_as_its_base(base: DiffusionPolicy, faster: bool) -> None:
    policy = trained(base, faster=faster).policy(SLOTS)
    policy.active = False
    for one, two in zip(play(policy, explore=True), play(ActingPolicy(base, SLOTS)), strict=True):
        np.testing.assert_allclose(one.action, two.action, rtol=1e-5, atol=1e-6)
        np.testing.assert_array_equal(one.noise, two.noise)


def test_untrained_edit_does_not_change_the_samples(base: DiffusionPolicy) -> None:
    torch.manual_seed(1)
    for output in play(Expo(base, SPEC).policy(SLOTS)):
        np.testing.assert_array_equal(output.correction, 0)


def test_edits_are_bounded_by_their_scale_and_clipped(base: DiffusionPolicy) -> None:
    networks = trained(base)
    chunks = torch.rand(2, 4, EXECUTE, ACTION) * 2 - 1
    both = networks.candidates(torch.randn(2, STATE), chunks, torch.randn(8, EXECUTE * ACTION))
    torch.testing.assert_close(both[:, :4], chunks)
    change = (both[:, 4:] - chunks).abs()
    assert (change <= networks.scale + 1e-6).all()
    assert change[..., 2].max() > 0.2
    assert both.abs().max() <= 1


def test_candidate_with_the_highest_score_is_executed(base: DiffusionPolicy) -> None:
    networks = trained(base)
    policy = networks.policy(1)
    policy.reset([0], [3])
    state = torch.randn(1, STATE)
    output = policy.act({"state": state.numpy()}, with_base_samples=True)
    assert output.base_samples is not None
    chunks = networks.candidates(state, torch.from_numpy(output.base_samples.chunks), None)[0]
    with torch.no_grad():
        values = networks.critic(state.expand(8, -1), chunks.flatten(1))[..., 0]
    best = chunks[(values.mean(0) - 0.5 * values.std(0)).argmax()]
    torch.testing.assert_close(torch.from_numpy(output.action[0]), best[0].detach())


def test_only_the_best_ranked_seed_is_denoised(
    base: DiffusionPolicy, monkeypatch: pytest.MonkeyPatch
) -> None:
    networks = trained(base, faster=True)
    denoised: list[torch.Size] = []
    sample = base.sample

    def counted(obs: dict, **kwargs: torch.Tensor) -> object:
        denoised.append(kwargs["noise"].shape)
        return sample(obs, **kwargs)

    monkeypatch.setattr(base, "sample", counted)
    policy = networks.policy(1)
    policy.reset([0], [3])
    state = np.zeros((1, STATE), np.float32)
    output = policy.act({"state": state}, with_base_samples=True)
    assert denoised == [(1, 1, 6, ACTION)]

    # The seeds are those of the runner: the base's own first, then further ones.
    own, extra = torch.Generator().manual_seed(3), torch.Generator().manual_seed(4)
    seeds = torch.cat([base.draw_noise(1, generator=own), base.draw_noise(1, 3, generator=extra)], 1)
    best = networks.seed_values(torch.from_numpy(state), seeds)[0].argmax()
    assert output.base_samples is not None
    np.testing.assert_array_equal(output.base_samples.noise[0, 0], seeds[0, best].numpy())
    np.testing.assert_array_equal(output.noise[0], seeds[0, best].numpy())


def test_seeds_ranked_by_the_newest_observation_are_refused_for_delayed_chunks(base: DiffusionPolicy) -> None:
    policy = trained(base, faster=True).policy(1)
    with pytest.raises(ValueError, match="chooses the base's noise by the newest observation"):
        execute_asynchronously(policy, AsyncOptions("naive", 1), (False,) * ACTION)


def test_a_base_that_ranks_seeds_checks_instructions_as_its_base_does() -> None:
    base = small_vla()
    ranking = SeedRankingBase(base, lambda obs, noise: noise)
    assert ranking.example_instruction == base.example_instruction
    with pytest.raises(ValueError, match="purple"):
        ranking.check_instruction("purple")


@pytest.mark.parametrize("faster", [False, True])
def test_a_policy_ends_without_waiting_for_garbage_to_be_collected(
    base: DiffusionPolicy, faster: bool
) -> None:
    """So that the connection of a base behind a server ends with it."""
    networks = trained(base, faster=faster)
    policy = networks.policy(SLOTS)
    play(policy, 1, explore=True)
    held = weakref.ref(policy)
    gc.disable()
    try:
        del policy
        assert held() is None
    finally:
        gc.enable()


@pytest.mark.parametrize("faster", [False, True])
def test_restored_policy_continues_exactly(base: DiffusionPolicy, faster: bool) -> None:
    networks = trained(base, faster=faster)
    policy = networks.policy(SLOTS, seed=5)
    play(policy, 4, explore=True)
    saved = policy.state_dict()
    other = networks.policy(SLOTS, seed=6)
    other.load_state_dict(saved)
    state = {"state": np.ones((SLOTS, STATE), np.float32)}
    for _ in range(4):
        one, two = policy.act(state, explore=True), other.act(state, explore=True)
        np.testing.assert_array_equal(one.action, two.action)


@pytest.mark.parametrize("faster", [False, True])
def test_loaded_policy_acts_identically(base: DiffusionPolicy, tmp_path: Path, faster: bool) -> None:
    networks = trained(base, faster=faster)
    save_finetuned(networks, tmp_path, {})
    loaded, _ = load_policy_files(tmp_path)
    assert isinstance(loaded, Expo)
    for one, two in zip(play(networks.policy(SLOTS)), play(loaded.eval().policy(SLOTS)), strict=True):
        np.testing.assert_array_equal(one.action, two.action)


def test_base_without_noise_input_gives_its_chunk_and_an_edit() -> None:
    torch.manual_seed(0)
    act = ACTPolicy(ACTConfig(width=16, heads=2, horizon=6, execute=EXECUTE), STATE, ACTION).eval()
    policy = trained(act).policy(SLOTS)
    assert isinstance(policy, ExpoPolicy)
    outputs = play(policy, explore=True)
    assert outputs[0].base_samples is not None
    assert outputs[0].base_samples.chunks.shape == (SLOTS, 1, EXECUTE, ACTION)
    assert max(np.abs(d.correction[:, :2]).max() for d in outputs) <= 0.2 + 1e-6
    with pytest.raises(ValueError, match="no seeds"):
        Expo(act, replace(SPEC, faster=True))


def test_new_candidates_are_selected_after_the_executed_fraction_of_a_chunk(base: DiffusionPolicy) -> None:
    torch.manual_seed(1)
    policy = Expo(base, replace(SPEC, execute_fraction=0.5)).policy(SLOTS)
    committed = -(-EXECUTE // 2)
    assert 1 <= committed < EXECUTE
    steps = [output.chunk_step[0] for output in play(policy)]
    assert steps == [i % committed for i in range(len(steps))]


def test_entropy_of_an_untrained_edit_is_high(base: DiffusionPolicy) -> None:
    torch.manual_seed(1)
    networks = Expo(base, SPEC)
    x = torch.randn(256, STATE + EXECUTE * ACTION)
    _, log_prob = networks.edit.sample(x, torch.randn(256, EXECUTE * ACTION))
    assert -log_prob.mean() > 0.8 * EXECUTE * ACTION * math.log(2)
