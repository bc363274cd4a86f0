"""Builds the components of a training run from its configuration and checks that they fit together.

task → environments → base → agent → replay and sampler → learner; `commands/train.py` then chooses the loop.
"""

import math
import sys
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from robot_rl.data.compatibility import (
    OF_A_SCENE,
    all_instructions,
    check_same_environment,
)
from robot_rl.data.dataset import Dataset
from robot_rl.data.decision_replay_buffer import DecisionReplayBuffer
from robot_rl.data.demonstrations import demonstration_rows, demonstrations_to_replay
from robot_rl.data.replay_buffer import Fields, ReplayBuffer
from robot_rl.envs.action import repeated_in_hold
from robot_rl.envs.observation import IMAGE_PREFIX
from robot_rl.envs.robot_task import RobotTask
from robot_rl.envs.task import TaskConfig
from robot_rl.envs.vector import TaskVectorEnv
from robot_rl.imagination.config import ImaginationConfig
from robot_rl.imagination.imagination import Imagination
from robot_rl.learning.config import OffPolicyConfig
from robot_rl.learning.learner import OfflineLearner, OnPolicyLearner, ReplayLearner
from robot_rl.learning.sampling import MixedSampler
from robot_rl.machine import memory_bytes
from robot_rl.methods.method import (
    Agent,
    AgentContext,
    AgentMethod,
    DatasetContext,
    OfflineMethod,
    OffPolicyMethod,
    OnPolicyMethod,
    ReplayContent,
)
from robot_rl.methods.replay_fields import replay_fields
from robot_rl.policies.async_runner import execute_asynchronously
from robot_rl.policies.asynchronous import AsyncOptions
from robot_rl.policies.bases.base_policy import BasePolicy
from robot_rl.policies.bases.imitation import ImitationPolicy
from robot_rl.policies.nets.encoder import FEATURE_FLOOR, FEATURES, ObservationEncoder
from robot_rl.policies.registry import BASES
from robot_rl.policies.store import fingerprint
from robot_rl.policy_client.config import RemoteConfig
from robot_rl.policy_client.remote_base import RemoteBase
from robot_rl.training.build_imagination import build_imagination
from robot_rl.training.context import (
    RunBase,
    RunInputs,
    build_context,
    switch_cost,
    trained_base,
)
from robot_rl.training.rollout_buffer import RolloutBuffer
from robot_rl.world_model_server.client import RemoteModel


@dataclass(frozen=True)
class OfflineComponents:
    """Components of `train_offline`."""

    learner: OfflineLearner
    environment: Mapping[str, Any]
    """Description of the dataset's environment or, if the result acts, of the task's."""


@dataclass(frozen=True)
class OnPolicyComponents:
    """Components of `train_on_policy`."""

    envs: TaskVectorEnv
    agent: Agent
    buffer: RolloutBuffer
    learner: OnPolicyLearner


@dataclass(frozen=True)
class OffPolicyComponents:
    """Components of a run of an off-policy method."""

    envs: TaskVectorEnv | RobotTask
    agent: Agent
    replay: ReplayBuffer
    sampler: MixedSampler
    learner: ReplayLearner
    imagination: Imagination | None = None
    learns_from_images: bool = True
    """Whether the replay holds images of every step, or what is computed from them."""


def build_offline(method: OfflineMethod, inputs: RunInputs) -> OfflineComponents:
    """Build an offline run. Raises ValueError if dataset, task and method do not fit together."""
    if inputs.data is None:
        raise ValueError(
            f"method={method.config.name} needs demonstrations: add data=…  (`robot-rl collect` makes them)"
        )
    base = inputs.base
    if isinstance(base, RemoteConfig) or (isinstance(base, RunBase) and not method.continues):
        what = "an earlier run" if isinstance(base, RunBase) else "a server"
        raise ValueError(
            f"method={method.config.name} trains a base policy: choose base=diffusion, not {what}"
        )
    dataset = Dataset(Path(inputs.data))
    environment = dataset.environment
    if method.acts:
        environment = inputs.describe()
        check_same_environment(dataset.environment, environment, f"dataset {inputs.data}", inputs.accept)
    elif not inputs.robot:
        _check_seen(inputs.task, dataset)
    config = trained = made_in = None
    if isinstance(base, RunBase):
        trained, made_in = trained_base(base.path)
    else:
        config = base
    # A policy that reads instructions can act in several scenes, which they tell apart.
    kind = BASES[config.name].policy if config else type(trained)
    reads = issubclass(kind, ImitationPolicy) and kind.takes_instruction
    accept = (*inputs.accept, *(OF_A_SCENE if reads else ()))
    replay = Dataset(Path(method.replay)) if method.replay else None
    if replay:
        check_same_environment(replay.environment, environment, f"dataset {replay.path}", accept)
    if isinstance(base, RunBase) and made_in:
        check_same_environment(made_in, environment, f"base policy {base.path}", accept)
    context = DatasetContext(
        dataset,
        config,
        inputs.seed,
        inputs.device,
        inputs.processes,
        trained,
        replay,
        tuple(inputs.task.cameras),
    )
    made_from = [environment, *([replay.environment] if replay else []), *([made_in] if made_in else [])]
    environment = {**environment, **all_instructions(made_from)}
    return OfflineComponents(method.build_learner(context), environment)


def _check_seen(task: TaskConfig, dataset: Dataset) -> None:
    """Raises ValueError if a dataset is of another task, or lacks the task's cameras at this size."""
    recorded, seen = dataset.environment["task"], dataset.observation_spec
    if recorded != task.name:
        if "env" not in dataset.environment:
            raise ValueError(f"dataset {dataset.path} is of a real robot: add task=robot")
        raise ValueError(
            f"dataset {dataset.path} is of task {recorded}, and task={task.name}: choose that one"
        )
    if unseen := [camera for camera in task.cameras if camera not in seen.cameras]:
        raise ValueError(
            f"dataset {dataset.path} has no images of {', '.join(unseen)}: "
            f"it has those of {', '.join(seen.cameras) or 'no camera'}"
        )
    if task.cameras and tuple(task.image_size) != seen.image_size:
        raise ValueError(
            f"dataset {dataset.path} has images of {list(seen.image_size)}: set task.image_size to that, or "
            "leave it and task.cameras out"
        )


def build_on_policy(method: OnPolicyMethod, inputs: RunInputs, resources: ExitStack) -> OnPolicyComponents:
    """Build an on-policy run; `resources` closes what it opens.

    Raises:
        ValueError: if task, base and method do not fit together.
    """
    envs, context = build_context(method, inputs, resources)
    assert isinstance(envs, TaskVectorEnv)
    _note_unread_data(inputs, method.config.name)
    agent = _build_agent(method, context, inputs.execution)
    normalize_states(agent.networks.encoder, context.base)
    learner = method.build_learner(agent, context)
    buffer = RolloutBuffer(method.rollout_steps, envs.num_envs, method.rollout_fields)
    return OnPolicyComponents(envs, agent, buffer, learner)


def build_off_policy(
    method: OffPolicyMethod,
    inputs: RunInputs,
    resources: ExitStack,
    imagination: ImaginationConfig | None = None,
) -> OffPolicyComponents:
    """Build an off-policy run; `resources` closes what it opens.

    Raises:
        ValueError: if task, base, data and method do not fit together.
    """
    envs, context = build_context(method, inputs, resources)
    config = method.config
    fields = replay_fields(method.replay_content, context, inputs.task.image_size)
    rows = replay_rows(config, uneven=inputs.uneven)
    switch = switch_cost(context.action_spec, config.gripper_penalty)
    demos = dataset = None
    told = envs.task.instructions
    if config.uses_demonstrations:
        dataset = _open_demonstrations(inputs, config.name, envs, context.base, fields)
    else:
        _note_unread_data(inputs, config.name)
    _check_memory(rows, demonstration_rows(dataset, told) if dataset else 0, fields, inputs.device)
    if dataset:
        samples, device = method.replay_content.base_samples, inputs.device
        demos = demonstrations_to_replay(
            dataset, context.base, inputs.seed, fields, samples, device, switch, inputs.execution, told
        )
    agent = _build_agent(method, context, inputs.execution)
    normalize_states(agent.networks.encoder, context.base, demos)
    learner = method.build_learner(agent, context)
    features_of = fingerprint(context.base) if context.encoder.features else ""
    kind = DecisionReplayBuffer if method.replay_content.decisions_only else ReplayBuffer
    replay = kind(
        rows,
        config.num_envs,
        context.action_size,
        fields,
        inputs.device,
        switch,
        features_of,
        failure_weight=1 / config.success_weight,
    )
    sampler = MixedSampler(config, replay, demos, method.window(context.base), inputs.seed)
    imagined = None
    if imagination:
        accept = inputs.accept
        imagined = build_imagination(imagination, method, learner, context, envs, demos, accept)
        resources.callback(_close_model, imagined)
    seen = _learns_from_images(method.replay_content, context)
    return OffPolicyComponents(envs, agent, replay, sampler, learner, imagined, seen)


def _note_unread_data(inputs: RunInputs, method: str) -> None:
    if inputs.data and inputs.robot is None:
        print(
            f"data={inputs.data} is not read: method={method} takes no demonstrations here", file=sys.stderr
        )


def _close_model(imagination: Imagination) -> None:
    # The one at the end of the run: a model whose predictions are not finite is replaced.
    if isinstance(imagination.model, RemoteModel):
        imagination.model.close()


def normalize_states(
    encoder: ObservationEncoder, base: BasePolicy, demos: ReplayBuffer | None = None
) -> None:
    """Fit the standardisation of states to the demonstrations or, without any, to the base's training data.

    Without demonstrations states are not scaled around a base that says nothing of its data (`base=uniform`,
    and a server other than that of a base of this program), and the base's features never are.
    """
    if demos:
        encoder.norm.fit(demos.held("state"))
        if encoder.feature_norm is not None:
            features = demos.held(FEATURES)
            encoder.feature_norm.fit(features.reshape(-1, features.shape[-1]), FEATURE_FLOOR)
    elif isinstance(base, ImitationPolicy | RemoteBase):
        encoder.norm.copy_range(base.state_normalizer)


def replay_rows(config: OffPolicyConfig, *, uneven: bool = False) -> int:
    """Number of rows of the replay: at most what a run fills if every episode has one step.

    With `uneven` streams any of them may get all steps.
    """
    steps = config.steps if uneven else -(-config.steps // config.num_envs)
    return min(config.replay_capacity, 2 * steps * config.num_envs)


def _build_agent(method: AgentMethod, context: AgentContext, execution: AsyncOptions) -> Agent:
    torch.manual_seed(context.seed)
    agent = method.build_agent(context)
    execute_asynchronously(agent.policy, execution, repeated_in_hold(context.action_spec))
    return agent


def _learns_from_images(content: ReplayContent, context: AgentContext) -> bool:
    """Whether the replay holds images, features of them, or samples of a base that sees, at every step."""
    if content.decisions_only:
        return False
    sampled = bool(content.base_samples and context.base.spec.cameras)
    return context.encoder.sees or content.base_images or sampled


def _open_demonstrations(
    inputs: RunInputs, method: str, envs: TaskVectorEnv | RobotTask, base: BasePolicy, fields: Fields
) -> Dataset:
    """Open the demonstrations for a replay with these fields. Raises ValueError if they do not fit."""
    if inputs.data is None:
        raise ValueError(
            f"method={method} takes a part of each batch from demonstrations: add data=…, "
            "or set method.demo_ratio=0"
        )
    dataset = Dataset(Path(inputs.data))
    stored = tuple(name.removeprefix(IMAGE_PREFIX) for name in fields if name.startswith(IMAGE_PREFIX))
    cameras = tuple(dict.fromkeys((*stored, *base.spec.cameras)))
    if unseen := [camera for camera in cameras if camera not in dataset.observation_spec.cameras]:
        raise ValueError(
            f"dataset {inputs.data} has no images of {', '.join(unseen)}: `robot-rl collect "
            f"task.cameras=[{','.join(cameras)}]` makes one that has, method.demo_ratio=0 needs none"
        )
    what = f"dataset {inputs.data}"
    check_same_environment(dataset.environment, envs.describe(), what, inputs.accept, cameras)
    return dataset


def _check_memory(rows: int, demonstrated: int, fields: Fields, device: torch.device) -> None:
    row = sum(math.prod(shape) * kind.itemsize for shape, kind in fields.values())
    # A checkpoint needs two copies of the replay, and none of the demonstrations.
    most = (memory_bytes(device) // row - demonstrated) // 3
    if rows > most:
        also = f", and {demonstrated} of demonstrations," if demonstrated else ""
        fewer = f"set method.replay_capacity={most} or less, " if most > 0 else ""
        raise ValueError(
            f"a replay of {rows} rows of {row} bytes{also} needs more memory than this machine has: "
            f"{fewer}give fewer or shorter demonstrations, or fewer or smaller images (task.cameras, "
            "task.image_size)"
        )
