"""Observation encoder of actors and critics: state, cameras, saving."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

from robot_rl.policies.acting import ActingPolicy
from robot_rl.policies.bases.diffusion import DiffusionConfig, DiffusionPolicy
from robot_rl.policies.finetuned.candidates import CandidatesSpec
from robot_rl.policies.finetuned.finetuned_policy import save_finetuned
from robot_rl.policies.finetuned.residual_chunk import ResidualChunk
from robot_rl.policies.nets.critic import ValueSpec
from robot_rl.policies.nets.encoder import ENCODERS, EncoderSpec, ObservationEncoder
from robot_rl.policies.nets.vision import FEATURE_SIZE
from robot_rl.policies.store import RECORD_FILE, load_policy_files

STATE, ACTION, SIZE = 4, 3, (32, 40)
CAMERAS = ("front", "hand")


def observation(batch: int = 5, seed: int = 0) -> dict[str, Tensor]:
    draws = torch.Generator().manual_seed(seed)
    shape = (batch, *SIZE, 3)
    images = {
        f"images.{camera}": torch.randint(0, 256, shape, dtype=torch.uint8, generator=draws)
        for camera in CAMERAS
    }
    return {"state": torch.randn(batch, STATE, generator=draws), **images}


def chunk_residual(encoder: EncoderSpec, cameras: tuple[str, ...] = ()) -> ResidualChunk:
    torch.manual_seed(0)
    config = DiffusionConfig(
        horizon=4, execute=2, obs_steps=2, width=16, depth=1, train_steps=4, inference_steps=2
    )
    base = DiffusionPolicy(config, STATE, ACTION, cameras, SIZE).eval()
    value = ValueSpec("mse", 0.0, 1.0)
    made = ResidualChunk(
        base,
        CandidatesSpec(
            encoder=encoder,
            value=value,
            hidden=(16,),
            scale=(0.5,) * ACTION,
            num_critics=3,
            layer_norm=True,
            candidates=3,
            uncertainty_penalty=0.0,
        ),
    )
    torch.nn.init.normal_(made.actor.net.head.weight)
    return made


def test_without_cameras_features_are_the_standardised_state() -> None:
    before = torch.get_rng_state()
    encoder = ObservationEncoder(EncoderSpec(STATE))
    assert torch.equal(torch.get_rng_state(), before)  # nothing is drawn, so runs stay what they were
    assert list(encoder.parameters()) == []
    assert sorted(encoder.state_dict()) == ["norm.mean", "norm.std"]
    obs = observation()
    assert encoder.feature_size == STATE
    assert torch.equal(encoder(obs), encoder.norm(obs["state"]))


@pytest.mark.parametrize("kind", sorted(ENCODERS))
def test_features_are_the_state_followed_by_each_camera(kind: str) -> None:
    torch.manual_seed(0)
    encoder = ObservationEncoder(EncoderSpec(STATE, CAMERAS, SIZE, kind))
    obs = observation()
    features = encoder(obs)
    assert features.shape == (5, encoder.feature_size) == (5, STATE + 2 * FEATURE_SIZE)
    assert torch.equal(features[:, :STATE], encoder.norm(obs["state"]))
    for i, camera in enumerate(CAMERAS):
        name = f"images.{camera}"
        changed = (encoder({**obs, name: 255 - obs[name]}) != features).any(0)
        own = torch.zeros(len(changed), dtype=torch.bool)
        own[STATE + i * FEATURE_SIZE : STATE + (i + 1) * FEATURE_SIZE] = True
        assert changed[own].any()
        assert not changed[~own].any()


def test_other_cameras_are_ignored() -> None:
    encoder = ObservationEncoder(EncoderSpec(STATE, ("hand",), SIZE))
    obs = observation()
    assert torch.equal(encoder(obs), encoder({key: obs[key] for key in ("state", "images.hand")}))


def test_cameras_need_an_image_size() -> None:
    with pytest.raises(ValueError, match="front, hand need the size"):
        ObservationEncoder(EncoderSpec(STATE, CAMERAS))


def test_cameras_are_saved_and_loaded(tmp_path: Path) -> None:
    made = chunk_residual(EncoderSpec(STATE, CAMERAS, SIZE, "vit"))
    save_finetuned(made, tmp_path, {})
    loaded, _ = load_policy_files(tmp_path)
    assert isinstance(loaded, ResidualChunk)
    assert loaded.spec == made.spec
    assert torch.equal(loaded.encoder(observation()), made.encoder(observation()))


def test_policy_saved_without_image_fields_still_loads(tmp_path: Path) -> None:
    made = chunk_residual(EncoderSpec(STATE))
    save_finetuned(made, tmp_path, {})
    record = json.loads((tmp_path / RECORD_FILE).read_text())
    record["config"]["encoder"] = {"state_size": STATE}
    (tmp_path / RECORD_FILE).write_text(json.dumps(record))
    loaded, _ = load_policy_files(tmp_path)
    assert isinstance(loaded, ResidualChunk)
    assert loaded.spec == made.spec


@pytest.mark.parametrize("base_images", [True, False])
@pytest.mark.parametrize("policy_images", [True, False])
def test_base_and_finetuned_policy_use_their_own_observations(base_images: bool, policy_images: bool) -> None:
    spec = EncoderSpec(STATE, ("front",), SIZE) if policy_images else EncoderSpec(STATE)
    made = chunk_residual(spec, ("front",) if base_images else ())

    def acted(seed: int, policy: ActingPolicy) -> tuple[np.ndarray, np.ndarray]:
        policy.reset([0, 1], [7, 8])
        frames = {key: value.numpy() for key, value in observation(2, seed).items()}
        frames["state"] = np.zeros((2, STATE), np.float32)
        output = policy.act(frames)
        return output.action, output.base

    one, other = (acted(seed, made.policy(2)) for seed in (1, 2))
    assert np.array_equal(one[0], other[0]) is not (base_images or policy_images)
    alone, again = (acted(seed, ActingPolicy(made.base, 2)) for seed in (1, 2))
    assert np.array_equal(alone[0], again[0]) is not base_images
