"""Shapes and types of what the replay stores for a method."""

from collections.abc import Sequence

import torch

from robot_rl.data.replay_buffer import Fields
from robot_rl.envs.observation import IMAGE_PREFIX
from robot_rl.methods.method import AgentContext, ReplayContent
from robot_rl.policies.bases.base_policy import BasePolicy
from robot_rl.policies.nets.encoder import FEATURES


def replay_fields(content: ReplayContent, context: AgentContext, image_size: Sequence[int]) -> Fields:
    """Shapes and types of the fields that the replay stores for a method, per row."""
    base, encoder = context.base, context.encoder
    shapes = decision_shapes(base, content.base_samples)
    if encoder.features:
        features = (encoder.feature_copies, encoder.features)
        return {
            "state": ((encoder.state_size,), torch.float32),
            FEATURES: (features, torch.float32),
            **{name: shapes[name] for name in content.policy_fields},
        }
    cameras = dict.fromkeys((*encoder.cameras, *(base.spec.cameras if content.base_images else ())))
    return {
        "state": ((encoder.state_size,), torch.float32),
        **{f"{IMAGE_PREFIX}{camera}": ((*image_size, 3), torch.uint8) for camera in cameras},
        **{name: shapes[name] for name in content.policy_fields},
    }


def decision_shapes(base: BasePolicy, base_samples: int) -> Fields:
    """Shapes and types of `PolicyOutput.replay_fields`, per row."""
    spec = base.spec
    base_samples = spec.distinct(base_samples)
    shapes: dict[str, tuple[tuple[int, ...], torch.dtype]] = {
        "base": ((spec.action_size,), torch.float32),
        "chunk_step": ((), torch.int64),
        "base_samples": ((base_samples, spec.execute, spec.action_size), torch.float32),
    }
    if spec.noise_shape is not None:
        shapes["noise"] = (spec.noise_shape, torch.float32)
        shapes["base_sample_noise"] = ((base_samples, *spec.noise_shape), torch.float32)
    return shapes
