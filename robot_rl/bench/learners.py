"""Off-policy learners on random transitions of Lift's sizes, without a simulator.

From images they observe what `task=lift_image` does: the hand, and two cameras of 84 x 84 pixels.
"""

from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import torch

from robot_rl.data.replay_buffer import SOURCES, ReplayBuffer
from robot_rl.envs.action import ActionDim
from robot_rl.learning.config import BASE_FEATURES, OffPolicyConfig
from robot_rl.learning.learner import ReplayLearner
from robot_rl.learning.sampling import MixedSampler
from robot_rl.methods.method import AgentContext, OffPolicyMethod
from robot_rl.methods.registry import METHODS, build_method
from robot_rl.methods.replay_fields import replay_fields
from robot_rl.policies.bases.flow import FlowConfig, FlowPolicy
from robot_rl.policies.nets.encoder import EncoderSpec

STATE: Final = 19
"""State size of Lift."""
ACTION: Final = 7
MEASURED: Final = 9
"""State size of `lift_image`."""
CAMERAS: Final = ("agentview", "robot0_eye_in_hand")
IMAGE_SIZE: Final = (84, 84)
ROWS: Final = 2_000
"""Transitions in the replay."""
_EPISODE: Final = 50
"""Steps of an episode in the replay."""


@dataclass(frozen=True)
class RandomData:
    """A learner, and what samples its batches."""

    learner: ReplayLearner
    sampler: MixedSampler


def off_policy_methods() -> list[str]:
    """Registered methods that learn from a replay."""
    return [name for name, method in METHODS.items() if issubclass(method, OffPolicyMethod)]


def small_options(encoder: str | None, rows: int = ROWS) -> dict[str, Any]:
    """Options of a method that learns from `rows` random transitions, from the first update on.

    Args:
        encoder: value of `method.encoder`; None to learn from states.
        rows: transitions in the replay.
    """
    options: dict[str, Any] = {"num_envs": 1, "critic_warmup": 0, "replay_capacity": rows}
    return {**options, **({"encoder": encoder} if encoder else {})}


def make_context(
    device: torch.device, seed: int, config: OffPolicyConfig | None = None, *, images: bool = False
) -> AgentContext:
    """A context with an untrained base policy, which is as fast as a trained one.

    Args:
        device: of the networks.
        seed: of the weights.
        config: says how the method encodes images; None for a method that reads the state.
        images: whether the base observes the cameras, and the method as the configuration says.
    """
    state, cameras = (MEASURED, CAMERAS) if images else (STATE, ())
    torch.manual_seed(seed)
    base = FlowPolicy(FlowConfig(), state, ACTION, cameras, IMAGE_SIZE if images else None)
    encoder = EncoderSpec(state)
    if images and config:
        encoder = EncoderSpec(state, CAMERAS, IMAGE_SIZE, config.encoder)
        if config.encoder == BASE_FEATURES:
            assert base.feature_size
            copies = config.feature_copies
            encoder = EncoderSpec(
                state, kind=BASE_FEATURES, features=base.feature_size, feature_copies=copies
            )
    actions = [ActionDim(f"motion_{i}", "delta", "m", 0.05, "base") for i in range(ACTION - 1)]
    gripper = ActionDim("gripper", "gripper", "fraction", 1.0, "gripper")
    return AgentContext(base.to(device).eval(), encoder, (*actions, gripper), seed, device)


def make_off_policy(config: OffPolicyConfig, device: torch.device, seed: int, *, images: bool) -> RandomData:
    """The learner of a configuration, and a replay full of random transitions; `images` as above."""
    method = build_method(config)
    assert isinstance(method, OffPolicyMethod)
    context = make_context(device, seed, config, images=images)
    method.check_base(context.base, "of the benchmark")
    config = method.config
    torch.manual_seed(seed)
    agent = method.build_agent(context)
    learner = method.build_learner(agent, context)
    fields = replay_fields(method.replay_content, context, IMAGE_SIZE)
    replay = ReplayBuffer(config.replay_capacity, 1, ACTION, fields, device)
    fill_replay(replay, np.random.default_rng(seed))
    return RandomData(learner, MixedSampler(config, replay, None, method.window(context.base), seed))


def fill_replay(replay: ReplayBuffer, rng: np.random.Generator) -> None:
    """Fill a replay with random transitions."""
    streams = np.arange(replay.streams)
    for step in range(replay.rows):
        fields: dict[str, Any] = {}
        for name, (shape, dtype) in replay.fields.items():
            if dtype == torch.uint8:
                fields[name] = rng.integers(256, size=(replay.streams, *shape), dtype=np.uint8)
                continue
            values = rng.uniform(-1, 1, (replay.streams, *shape))
            fields[name] = values.astype(str(dtype).removeprefix("torch."))
        replay.add(
            streams,
            action=rng.uniform(-1, 1, (replay.streams, replay.data["action"].shape[1])).astype(np.float32),
            reward=np.zeros(replay.streams, np.float32),
            terminated=np.full(replay.streams, step % _EPISODE == _EPISODE - 1),
            source=SOURCES.index("policy"),
            **fields,
        )
