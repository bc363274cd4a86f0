"""Small untrained policies, and observations for them."""

from typing import Any

import numpy as np
import torch

from robot_rl.policies.bases.flow import FlowConfig, FlowPolicy
from robot_rl.policies.finetuned.candidates import CandidatesSpec
from robot_rl.policies.finetuned.residual_chunk import ResidualChunk
from robot_rl.policies.nets.critic import ValueSpec
from robot_rl.policies.nets.encoder import EncoderSpec

STATE, ACTION, HORIZON, EXECUTE = 3, 2, 4, 2
CAMERA, SIZE = "wrist", (16, 24)


def environment(*cameras: str) -> dict[str, Any]:
    return {
        "task": "small",
        "control_freq": 20,
        "observation_spec": {
            "state_keys": ["position"],
            "state_dims": [STATE],
            "cameras": list(cameras),
            "image_size": list(SIZE),
        },
        "action_spec": [],
    }


def flow(*cameras: str, obs_steps: int = 1) -> FlowPolicy:
    torch.manual_seed(0)
    config = FlowConfig(
        horizon=HORIZON, execute=EXECUTE, obs_steps=obs_steps, width=32, depth=1, inference_steps=2
    )
    return FlowPolicy(config, STATE, ACTION, cameras, SIZE if cameras else None).eval()


def tuned() -> ResidualChunk:
    spec = CandidatesSpec(
        encoder=EncoderSpec(STATE),
        value=ValueSpec("mse", 0.0, 1.0),
        hidden=(16,),
        scale=(0.2, 0.2),
        num_critics=2,
        layer_norm=True,
        candidates=4,
        uncertainty_penalty=0.5,
    )
    return ResidualChunk(flow(), spec).eval()


def observation(seed: int = 0) -> dict[str, Any]:
    return {"state": np.random.default_rng(seed).normal(size=STATE).astype(np.float32)}


def image(seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 256, (*SIZE, 3), dtype=np.uint8)
