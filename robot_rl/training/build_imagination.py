"""Builds the world model of a run and what uses it, and checks that method and base can learn from it."""

import sys
from functools import partial
from itertools import accumulate

from robot_rl.data.replay_buffer import ReplayBuffer
from robot_rl.envs.robot_task import RobotTask
from robot_rl.envs.vector import TaskVectorEnv
from robot_rl.imagination.branches import TaskReward
from robot_rl.imagination.config import (
    ImaginationConfig,
    LatentModelConfig,
    RemoteModelConfig,
    StateModelConfig,
)
from robot_rl.imagination.imagination import Imagination
from robot_rl.imagination.latent_model import LatentModel, LatentShape
from robot_rl.imagination.layout import Layout
from robot_rl.imagination.state_model import Shape, StateModel
from robot_rl.imagination.values import BaseSampler
from robot_rl.imagination.world_model import WorldModel
from robot_rl.learning.learner import CandidatesLearner, ChunkLearner, ReplayLearner
from robot_rl.methods.method import AgentContext, OffPolicyMethod
from robot_rl.policies.store import fingerprint
from robot_rl.training.context import switch_cost
from robot_rl.world_model_server.client import RemoteModel


def build_imagination(
    config: ImaginationConfig,
    method: OffPolicyMethod,
    learner: ReplayLearner,
    context: AgentContext,
    envs: TaskVectorEnv | RobotTask,
    demos: ReplayBuffer | None,
    accept: tuple[str, ...] = (),
) -> Imagination:
    """A world model and what uses it.

    Raises:
        ValueError: if the method or its base cannot learn or act at imagined states, or there is no server of
            the model that fits.
    """
    if not isinstance(learner, ChunkLearner):
        raise ValueError(
            f"method={method.config.name} cannot act and learn at imagined states: use imagination with "
            "residual_chunk, expo, dsrl_na or residual"
        )
    if config.planning and not isinstance(learner, CandidatesLearner):
        raise ValueError(
            f"method={method.config.name} has no candidates to rank: use imagination.planning=true with "
            "residual_chunk or expo"
        )
    _check_encoder(config, context)
    chunk = max(method.window(context.base).chunk, 1)
    encoder, spec = context.encoder, context.base.spec
    frames = spec.obs_steps if encoder.features else 0
    copies = max(encoder.feature_copies, 1)
    layout = Layout(spec.state_size, frames, copies, context.base.features_of_state)
    samples = BaseSampler(context.base, max(method.replay_content.base_samples, 1), chunk, layout)
    _check_imagination(config, method, learner, context, samples.is_queryable)
    task_reward = TaskReward(
        method.config.gamma,
        method.config.reward_offset,
        switch_cost(context.action_spec, method.config.gripper_penalty),
        method.config.value_range[1] - method.config.value_range[0],
    )
    fields = method.replay_content.policy_fields
    build_model = partial(_build_world_model, config, context, envs, layout, chunk, accept)
    imagination = Imagination(config, build_model, learner, samples, task_reward, fields, context.seed)
    for stream in range(demos.streams if demos else 0):
        assert demos
        rows = demos.episode_rows(stream, imagination.episode_fields, is_open=False)
        imagination.add_rows(rows, success=True, demo=True)
    return imagination


def _check_encoder(config: ImaginationConfig, context: AgentContext) -> None:
    """Raises ValueError if the model does not predict what the policy sees."""
    label, encoder = f"imagination={config.name}", context.encoder
    if isinstance(config, LatentModelConfig):
        if not encoder.features:
            raise ValueError(
                f"{label} predicts features of the base, which the policy has to see: add "
                "method.encoder=base, or use imagination=state for a policy that sees the state alone"
            )
        return
    if encoder.features:
        raise ValueError(
            f"{label} predicts states, not features of a base: use imagination=latent, or leave out "
            "method.encoder=base"
        )
    if encoder.cameras:
        raise ValueError(
            f"{label} predicts states and no images: leave out task.cameras or, if the base needs them, set "
            "method.encoder=state, or method.encoder=base and imagination=latent"
        )


def _check_imagination(
    config: ImaginationConfig,
    method: OffPolicyMethod,
    learner: ChunkLearner,
    context: AgentContext,
    queried: bool,
) -> None:
    """Raises ValueError if an option does not go with imagination; `queried`: the base is, at predictions."""
    name, base, label = method.config.name, context.base, f"imagination={config.name}"
    if context.device.type != "cpu":
        raise ValueError(f"{label} runs on the CPU: add device=cpu, or leave out imagination")
    if method.replay_content.decisions_only:
        raise ValueError(
            f"{label} begins at any step, and with method.windows=decisions most have no samples of the "
            "base: leave one of them out"
        )
    if not queried and not isinstance(learner, CandidatesLearner):
        raise ValueError(
            f"the base uses images or is a server, so that {label} cannot query it at predictions: use "
            "method=residual_chunk or expo, which learn from its samples at real states"
        )
    if not queried and config.returns != "transition":
        raise ValueError(
            f"the base uses images or is a server, so that branches of {label} have one chunk: leave out "
            f"imagination.returns={config.returns}"
        )
    # Vectors of features are of two frames too.
    if (queried or context.encoder.features) and base.spec.obs_steps > 2:
        raise ValueError(
            f"the base observes {base.spec.obs_steps} steps, {label} gives it two at most: use a "
            "base with obs_steps=1 or 2"
        )
    extra = set(method.replay_content.policy_fields) - {"base", "base_samples", "base_sample_noise"}
    stored = method.replay_content.base_samples
    chunk = method.window(base).chunk
    trains_base = getattr(method.config, "base_lr", 0.0) > 0
    if extra or trains_base or (stored < 2 and chunk) or chunk not in (0, base.spec.execute):
        raise ValueError(
            f"{label} cannot give method={name} what it learns from with these options: leave out "
            "method.base_lr and method.faster, and use two samples of the base or more"
        )
    if not method.config.bootstrap_truncation:
        raise ValueError(
            f"{label} bootstraps where a time limit ended an episode: leave it out, or "
            "method.bootstrap_truncation=false"
        )


def _build_world_model(
    config: ImaginationConfig,
    context: AgentContext,
    envs: TaskVectorEnv | RobotTask,
    layout: Layout,
    chunk: int,
    accept: tuple[str, ...],
) -> WorldModel:
    spec, observed = context.base.spec, envs.observation_spec
    if isinstance(config, RemoteModelConfig):
        sizes = spec.state_size, spec.action_size
        model = RemoteModel(config, envs.describe(), sizes, chunk, accept)
        if not model.resumable:
            print(f"{config.address}: this world model cannot be saved, nor the run resumed", file=sys.stderr)
        return model
    assert isinstance(config, StateModelConfig)
    offsets = accumulate(observed.state_dims, initial=0)
    keys = zip(observed.state_keys, observed.state_dims, offsets, strict=False)
    quaternions = tuple(at for key, size, at in keys if key.endswith("quat") and size == 4)
    if isinstance(config, LatentModelConfig):
        size = layout.size(context.encoder.features)
        features, sizes = size - spec.state_size, (size, spec.action_size)
        latent = LatentShape(*sizes, chunk, quaternions, features, fingerprint(context.base))
        return LatentModel(config, latent, context.seed)
    shape = Shape(spec.state_size, spec.action_size, chunk, quaternions)
    return StateModel(config, shape, context.seed)
