"""Chunk residual policy (DICE-RL): bounded residuals, candidate selection, exploration, saving."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

import robot_rl.policies.finetuned  # noqa: F401
from robot_rl.policies.acting import ActingPolicy
from robot_rl.policies.bases.act import ACTConfig, ACTPolicy
from robot_rl.policies.bases.base_policy import Chunk
from robot_rl.policies.bases.diffusion import DiffusionConfig, DiffusionPolicy
from robot_rl.policies.chunk_runner import PolicyOutput
from robot_rl.policies.finetuned.candidates import CandidatesSpec
from robot_rl.policies.finetuned.finetuned_policy import Exploration, save_finetuned
from robot_rl.policies.finetuned.residual_chunk import ResidualChunk
from robot_rl.policies.nets.critic import ValueSpec
from robot_rl.policies.nets.encoder import EncoderSpec
from robot_rl.policies.store import load_policy_files

STATE, ACTION, EXECUTE, SLOTS, N = 4, 3, 3, 2, 4
SPEC = CandidatesSpec(
    encoder=EncoderSpec(STATE),
    value=ValueSpec("mse", 0.0, 1.0),
    hidden=(16,),
    scale=(0.2, 0.2, 0.5),
    num_critics=3,
    layer_norm=True,
    candidates=N,
    uncertainty_penalty=0.5,
)


@pytest.fixture(scope="module")
def base() -> DiffusionPolicy:
    torch.manual_seed(0)
    config = DiffusionConfig(width=32, depth=1, train_steps=8, inference_steps=2, horizon=6, execute=EXECUTE)
    return DiffusionPolicy(config, STATE, ACTION).eval()


def build(base: DiffusionPolicy, *, trained: bool = True) -> ResidualChunk:
    torch.manual_seed(1)
    networks = ResidualChunk(base, SPEC)
    if trained:
        torch.nn.init.normal_(networks.actor.net.head.weight)
    return networks


def play(policy: ActingPolicy, steps: int = 7, *, explore: bool = False) -> list[PolicyOutput]:
    states = np.random.default_rng(0).normal(size=(steps, SLOTS, STATE)).astype(np.float32)
    policy.reset(range(SLOTS), range(SLOTS))
    return [policy.act({"state": state}, explore=explore, with_base_samples=True) for state in states]


def test_inactive_policy_acts_exactly_as_its_base(base: DiffusionPolicy) -> None:
    policy = build(base).policy(SLOTS, exploration=Exploration(0.3))
    policy.active = False
    for one, two in zip(play(policy, explore=True), play(ActingPolicy(base, SLOTS)), strict=True):
        np.testing.assert_allclose(one.action, two.action, rtol=1e-5, atol=1e-6)
        np.testing.assert_array_equal(one.noise, two.noise)


def test_untrained_residual_does_not_change_the_samples(base: DiffusionPolicy) -> None:
    for output in play(build(base, trained=False).policy(SLOTS)):
        np.testing.assert_array_equal(output.correction, 0)


def test_residuals_are_bounded_by_their_scale(base: DiffusionPolicy) -> None:
    chunks = torch.rand(5, N, EXECUTE, ACTION) * 2 - 1
    base_samples = Chunk(chunks, torch.randn(5, N, 6, ACTION))
    candidates = build(base).candidates(torch.randn(5, STATE), base_samples)
    torch.testing.assert_close(candidates[:, :N], chunks)
    residual = (candidates[:, N:] - chunks).abs()
    assert candidates.abs().max() <= 1
    assert (residual <= torch.tensor(SPEC.scale) + 1e-6).all()
    assert residual.max() > 0.4


@torch.no_grad()
def test_candidate_with_the_highest_score_is_executed(base: DiffusionPolicy) -> None:
    networks = build(base)
    policy = networks.policy(1)
    policy.reset([0], [0])
    state = np.random.default_rng(0).normal(size=(1, STATE)).astype(np.float32)
    output = policy.act({"state": state}, with_base_samples=True)
    kept = output.base_samples
    assert kept is not None
    assert kept.noise is not None
    base_samples = Chunk(torch.from_numpy(kept.chunks), torch.from_numpy(kept.noise))
    chunks = networks.candidates(torch.from_numpy(state), base_samples)
    scores = networks.values(torch.from_numpy(state), chunks)
    best = int(scores[0].argmax())
    np.testing.assert_allclose(output.action[0], chunks[0, best, 0].numpy(), atol=1e-6)
    np.testing.assert_array_equal(output.base[0], kept.chunks[0, best % N, 0])
    np.testing.assert_array_equal(output.noise[0], kept.noise[0, best % N])


def test_exploration_noise_is_only_added_while_exploring(base: DiffusionPolicy) -> None:
    still = play(build(base).policy(SLOTS, exploration=Exploration(0.3)))
    again = play(build(base).policy(SLOTS, exploration=Exploration(0.3), seed=9))
    noisy = play(build(base).policy(SLOTS, exploration=Exploration(0.3)), explore=True)
    assert all(np.array_equal(a.action, b.action) for a, b in zip(still, again, strict=True))
    assert not all(np.array_equal(a.action, b.action) for a, b in zip(still, noisy, strict=True))


def test_loaded_policy_acts_identically(base: DiffusionPolicy, tmp_path: Path) -> None:
    networks = build(base)
    save_finetuned(networks, tmp_path / "policy", {})
    loaded, _ = load_policy_files(tmp_path / "policy")
    assert isinstance(loaded, ResidualChunk)
    for one, two in zip(play(networks.policy(SLOTS)), play(loaded.eval().policy(SLOTS)), strict=True):
        np.testing.assert_array_equal(one.action, two.action)


def test_new_candidates_are_selected_after_the_executed_fraction_of_a_chunk(base: DiffusionPolicy) -> None:
    """Half of three steps, rounded up; the whole chunk while exploring or while the base acts alone."""
    torch.manual_seed(1)
    policy = ResidualChunk(base, replace(SPEC, execute_fraction=0.5)).policy(SLOTS)
    assert [list(output.chunk_step) for output in play(policy, 5)] == [[0] * 2, [1] * 2] * 2 + [[0] * 2]
    assert [output.chunk_step[0] for output in play(policy, 5, explore=True)] == [0, 1, 2, 0, 1]
    policy.active = False
    assert [output.chunk_step[0] for output in play(policy, 5)] == [0, 1, 2, 0, 1]


def test_policy_saved_without_execute_fraction_executes_whole_chunks(
    base: DiffusionPolicy, tmp_path: Path
) -> None:
    save_finetuned(build(base), tmp_path, {})
    record = json.loads((tmp_path / "policy.json").read_text())
    del record["config"]["execute_fraction"]
    (tmp_path / "policy.json").write_text(json.dumps(record))
    loaded, _ = load_policy_files(tmp_path)
    assert isinstance(loaded, ResidualChunk)
    assert [output.chunk_step[0] for output in play(loaded.policy(SLOTS), 4)] == [0, 1, 2, 0]


def test_base_without_noise_input_is_refused() -> None:
    act = ACTPolicy(ACTConfig(width=16, layers=1, horizon=4, execute=2), STATE, ACTION)
    with pytest.raises(ValueError, match="method=residual"):
        ResidualChunk(act, SPEC)


def test_policy_of_an_older_format_is_refused_in_one_line(base: DiffusionPolicy, tmp_path: Path) -> None:
    save_finetuned(build(base), tmp_path, {})
    path = tmp_path / "policy.json"
    record = json.loads(path.read_text())
    record["config"]["members"] = record["config"].pop("num_critics")
    path.write_text(json.dumps(record))
    with pytest.raises(
        ValueError, match="another version of the program, which knows members: train"
    ) as caught:
        load_policy_files(tmp_path)
    assert "\n" not in str(caught.value)
