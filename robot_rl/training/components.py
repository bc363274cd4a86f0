"""Builds the components of a training run from its configuration and checks that they fit together.

task → environments → base → agent → replay and sampler → learner; `commands/train.py` then chooses the loop.
"""

import math
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from itertools import accumulate
from pathlib import Path
from typing import Any

import torch

from robot_rl.data.compatibility import OF_A_SCENE, check_same_environment
from robot_rl.data.dataset import Dataset
from robot_rl.data.decision_replay import DecisionReplay
from robot_rl.data.demonstrations import demonstrations_to_replay
from robot_rl.data.replay import Fields, Replay, SwitchCost
from robot_rl.envs.action import ActionSpec, repeated_in_hold
from robot_rl.envs.observation import IMAGE_PREFIX
from robot_rl.envs.task import TaskConfig
from robot_rl.envs.vector import RobosuiteVectorEnv
from robot_rl.factory import make_env, make_vector_env
from robot_rl.imagination.branches import Returns
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
from robot_rl.learning.config import BASE_FEATURES, STATE_ALONE, OffPolicyConfig
from robot_rl.learning.learner import (
    CandidatesLearner,
    ChunkLearner,
    OfflineLearner,
    OnlineLearner,
    OnPolicyLearner,
)
from robot_rl.learning.processes import Processes
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
from robot_rl.model_server.client import RemoteModel
from robot_rl.policies.asynchronous import SYNCHRONOUS, AsyncOptions, check_asynchronous
from robot_rl.policies.bases.base_policy import BasePolicy
from robot_rl.policies.bases.imitation import ImitationConfig, ImitationPolicy
from robot_rl.policies.bases.uniform import UniformConfig, UniformPolicy
from robot_rl.policies.nets.encoder import FEATURE_FLOOR, FEATURES, EncoderSpec, ObservationEncoder
from robot_rl.policies.store import fingerprint
from robot_rl.policy_client.config import RemoteConfig
from robot_rl.policy_client.remote_base import RemoteBase, connect_base
from robot_rl.saved_policies.loading import base_of, load_networks
from robot_rl.training.rollout_buffer import RolloutBuffer


@dataclass
class RunBase:
    """The base policy of an earlier run."""

    path: str = "???"
    """Directory of the run (or saved policy) whose base policy is used: frozen, or trained further by bc."""


@dataclass(frozen=True)
class Source:
    """Inputs of a run besides its method: task, base, data, seed, device."""

    task: TaskConfig
    base: ImitationConfig | RunBase | RemoteConfig | None
    data: str | None
    seed: int
    device: torch.device
    accept: tuple[str, ...] = ()
    """Accepted differences between the recorded and the current environment."""
    make_envs: Callable[[TaskConfig, int], RobosuiteVectorEnv] = make_vector_env
    """Makes so many environments of the task."""
    execution: AsyncOptions = SYNCHRONOUS
    """How the base's chunks are executed."""
    uneven: bool = False
    """Whether one stream of the replay may get more steps than another, even all."""
    processes: Processes = field(default_factory=Processes)
    """The processes that train a base policy together."""


@dataclass(frozen=True)
class OfflineComponents:
    """Components of `train_offline`."""

    learner: OfflineLearner
    environment: Mapping[str, Any]
    """Description of the dataset's environment or, if the result acts, of the task's."""


@dataclass(frozen=True)
class OnPolicyComponents:
    """Components of `train_on_policy`."""

    envs: RobosuiteVectorEnv
    agent: Agent
    buffer: RolloutBuffer
    learner: OnPolicyLearner

    def close(self) -> None:
        self.envs.close()


@dataclass(frozen=True)
class OffPolicyComponents:
    """Components of `train_online` and `train_async`."""

    envs: RobosuiteVectorEnv
    agent: Agent
    replay: Replay
    sampler: MixedSampler
    learner: OnlineLearner
    imagination: Imagination | None = None
    learns_from_images: bool = True
    """Whether the replay holds images of every step, or what is computed from them."""

    def close(self) -> None:
        self.envs.close()
        if self.imagination and isinstance(self.imagination.model, RemoteModel):
            self.imagination.model.close()


def build_offline(method: OfflineMethod, source: Source) -> OfflineComponents:
    """Build an offline run. Raises ValueError if dataset, task and method do not fit together."""
    if source.data is None:
        raise ValueError(
            f"method={method.name} needs demonstrations: add data=…  (`robot-rl collect` makes them)"
        )
    base = source.base
    if isinstance(base, RemoteConfig) or (isinstance(base, RunBase) and not method.continues):
        what = "an earlier run" if isinstance(base, RunBase) else "a server"
        raise ValueError(f"method={method.name} trains a base policy: choose base=diffusion, not {what}")
    dataset = Dataset(Path(source.data))
    environment = dataset.environment
    if method.acts:
        env = make_env(source.task)
        environment = env.describe()
        env.close()
        check_same_environment(dataset.environment, environment, f"dataset {source.data}", source.accept)
    # Instructions tell scenes apart, in which one policy can act.
    accept = (*source.accept, *(OF_A_SCENE if dataset.observation_spec.instruction else ()))
    replay = Dataset(Path(method.replay)) if method.replay else None
    if replay:
        check_same_environment(replay.environment, environment, f"dataset {replay.path}", accept)
    config = trained = None
    if isinstance(base, RunBase):
        trained, made_in = _trained_base(base.path)
        check_same_environment(made_in, environment, f"base policy {base.path}", accept)
    else:
        config = base
    context = DatasetContext(dataset, config, source.seed, source.device, source.processes, trained, replay)
    return OfflineComponents(method.build_learner(context), environment)


def _trained_base(path: str) -> tuple[ImitationPolicy, Mapping[str, Any]]:
    """The base policy of an earlier run, ready to be trained further, and the environment it is for.

    Raises:
        ValueError: if it has no weights here.
    """
    networks, meta = load_networks(path)
    base = base_of(networks)
    if not isinstance(base, ImitationPolicy) or isinstance(base, UniformPolicy):
        raise ValueError(f"the base policy of {path} has no weights to train: choose another run")
    return base.requires_grad_(True).train(), meta["environment"]


def build_on_policy(method: OnPolicyMethod, source: Source) -> OnPolicyComponents:
    """Build an on-policy run. Raises ValueError if task, base and method do not fit together."""
    envs, context = build_context(method, source)
    agent = _build_agent(method, context, source.execution)
    normalize_states(agent.networks.encoder, context.base)
    learner = method.build_learner(agent, context)
    buffer = RolloutBuffer(method.rollout_steps, envs.num_envs, method.rollout_fields)
    return OnPolicyComponents(envs, agent, buffer, learner)


def build_off_policy(
    method: OffPolicyMethod, source: Source, imagination: ImaginationConfig | None = None
) -> OffPolicyComponents:
    """Build an off-policy run. Raises ValueError if task, base, data and method do not fit together."""
    envs, context = build_context(method, source)
    with close_on_error(envs):
        config = method.config
        fields = replay_fields(method.replay_content, context, source.task.image_size)
        rows = replay_rows(config, uneven=source.uneven)
        _check_memory(rows, fields, source.device)
        switch = switch_cost(context.action_spec, config.gripper_penalty)
        demos = None
        if max(config.demo_ratios) > 0:
            demos = _load_demonstrations(method, source, envs, context, fields, switch)
        agent = _build_agent(method, context, source.execution)
        normalize_states(agent.networks.encoder, context.base, demos)
        learner = method.build_learner(agent, context)
        features_of = fingerprint(context.base) if context.encoder.features else ""
        kind = DecisionReplay if method.replay_content.decisions_only else Replay
        replay = kind(rows, config.num_envs, context.action_size, fields, source.device, switch, features_of)
        sampler = MixedSampler(config, replay, demos, method.window(context.base), source.seed)
        imagined = None
        if imagination:
            accept = source.accept
            imagined = build_imagination(imagination, method, learner, context, envs, demos, accept)
    seen = _learns_from_images(method.replay_content, context)
    return OffPolicyComponents(envs, agent, replay, sampler, learner, imagined, seen)


def build_imagination(
    config: ImaginationConfig,
    method: OffPolicyMethod,
    learner: OnlineLearner,
    context: AgentContext,
    envs: RobosuiteVectorEnv,
    demos: Replay | None,
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
    _check_imagination(config, method, learner, context)
    chunk = max(method.window(context.base).chunk, 1)
    returns = Returns(
        method.config.gamma,
        method.config.reward_offset,
        switch_cost(context.action_spec, method.config.gripper_penalty),
        method.config.value_range[1] - method.config.value_range[0],
    )
    encoder, spec = context.encoder, context.base.spec
    frames = spec.obs_steps if encoder.features else 0
    layout = Layout(spec.state_size, frames, max(encoder.feature_copies, 1))
    samples = BaseSampler(context.base, max(method.replay_content.base_samples, 1), chunk, layout)
    fields = method.replay_content.policy_fields
    build_model = partial(_build_world_model, config, context, envs, chunk, accept)
    imagination = Imagination(config, build_model, learner, samples, returns, fields, context.seed)
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
    config: ImaginationConfig, method: OffPolicyMethod, learner: ChunkLearner, context: AgentContext
) -> None:
    name, base, label = method.config.name, context.base, f"imagination={config.name}"
    # Of features the base is asked without images.
    queried = base.is_queryable or bool(context.encoder.features)
    if context.device.type != "cpu":
        raise ValueError(f"{label} runs on the CPU: add device=cpu, or leave out imagination")
    if method.replay_content.decisions_only:
        raise ValueError(
            f"{label} begins at any step, and with method.windows=decisions most have no samples of the "
            "base: leave one of them out"
        )
    if not queried and not isinstance(learner, CandidatesLearner):
        raise ValueError(
            f"the base uses images or is a server, so that {label} cannot query it at predicted states: use "
            "method=residual_chunk or expo, which learn from its samples at real states"
        )
    if queried and base.spec.obs_steps > 2:
        raise ValueError(
            f"the base observes {base.spec.obs_steps} steps, {label} gives it two at most: use a "
            "base with obs_steps=1 or 2"
        )
    extra = set(method.replay_content.policy_fields) - {"base", "base_samples", "base_sample_noise"}
    stored = method.replay_content.base_samples
    chunk = method.window(base).chunk
    if extra or (stored < 2 and chunk) or chunk not in (0, base.spec.execute):
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
    envs: RobosuiteVectorEnv,
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
        features = context.encoder.features // spec.obs_steps
        sizes = spec.state_size + features, spec.action_size
        latent = LatentShape(*sizes, chunk, quaternions, features, fingerprint(context.base))
        return LatentModel(config, latent, context.device, context.seed)
    shape = Shape(spec.state_size, spec.action_size, chunk, quaternions)
    return StateModel(config, shape, context.device, context.seed)


def build_context(method: AgentMethod, source: Source) -> tuple[RobosuiteVectorEnv, AgentContext]:
    """Load the frozen base and build the environments.

    The base and what RL trains may have different inputs: the state, or state and images.

    Raises:
        ValueError: if task, base and method do not fit together.
    """
    task, name, encoder = source.task, method.config.name, method.encoder
    trained = None if isinstance(source.base, UniformConfig) else _load_base(source, name)
    path = _place(source.base)
    if trained:
        method.check_base(trained[0], path)
        _check_execution(source.execution, method, trained[0])
    base_cameras = trained[0].spec.cameras if trained else ()
    cameras = () if encoder in (STATE_ALONE, BASE_FEATURES) else tuple(task.cameras)
    if missing := [camera for camera in base_cameras if camera not in task.cameras]:
        raise ValueError(
            f"the base policy {path} uses images of {', '.join(missing)}, which the task does not observe: "
            f"add task.cameras=[{','.join(dict.fromkeys((*task.cameras, *base_cameras)))}]"
        )
    if unused := [camera for camera in task.cameras if camera not in (*base_cameras, *cameras)]:
        alone = "base's features" if encoder == BASE_FEATURES else "state"
        raise ValueError(
            f"the images of {', '.join(unused)} are not used, neither by the base nor by method={name}, "
            f"which would learn from the {alone} alone; leave them out of task.cameras"
        )
    envs = source.make_envs(task, method.config.num_envs)
    with close_on_error(envs):
        observed, action_size = envs.observation_spec, len(envs.action_spec)
        if trained is None:
            assert isinstance(source.base, UniformConfig)
            base: BasePolicy = UniformPolicy(source.base, observed.state_size, action_size).to(source.device)
            method.check_base(base, path)
            _check_execution(source.execution, method, base)
        else:
            base, meta = trained
            check_same_environment(
                meta["environment"], envs.describe(), f"base policy {path}", source.accept, base_cameras
            )
        if (base.spec.state_size, base.spec.action_size) != (observed.state_size, action_size):
            raise ValueError(
                f"base policy {path} maps states of size {base.spec.state_size} to actions of size "
                f"{base.spec.action_size}; task {task.name} has {observed.state_size} and {action_size}"
            )
        seen = _encoder_spec(method, base, cameras, envs, path)
    return envs, AgentContext(base, seen, envs.action_spec, source.seed, source.device)


def _encoder_spec(
    method: AgentMethod, base: BasePolicy, cameras: tuple[str, ...], envs: RobosuiteVectorEnv, path: str
) -> EncoderSpec:
    """What RL learns from. Raises ValueError if the base does not give it."""
    observed, encoder = envs.observation_spec, method.encoder
    if len(told := envs.task.instructions) > 1 and not (encoder == BASE_FEATURES and base.spec.instruction):
        raise ValueError(
            f"the task has {len(told)} instructions, and what RL trains sees none: choose one "
            f"(task.instructions=[{told[0]}]), or method.encoder=base with a base that reads them"
        )
    if encoder == BASE_FEATURES:
        if base.is_remote:
            raise ValueError(
                f"method.encoder=base runs the base in this process, and {path} is a server: choose another "
                "encoder"
            )
        if not base.feature_size:
            raise ValueError(
                f"the base policy {path} gives no features, which method.encoder=base needs: choose another "
                "encoder, or train a base (`robot-rl train method=bc`)"
            )
        assert isinstance(method.config, OffPolicyConfig)
        # Without images all versions would be equal.
        copies = method.config.feature_copies if base.spec.cameras else 1
        features = base.feature_size
        return EncoderSpec(observed.state_size, kind=encoder, features=features, feature_copies=copies)
    if cameras:
        return EncoderSpec(observed.state_size, cameras, observed.image_size, encoder)
    return EncoderSpec(observed.state_size)


@contextmanager
def close_on_error(envs: RobosuiteVectorEnv) -> Iterator[None]:
    """Closes the environments when a ValueError leaves the block."""
    try:
        yield
    except ValueError:
        envs.close()
        raise


def normalize_states(encoder: ObservationEncoder, base: BasePolicy, demos: Replay | None = None) -> None:
    """Fit the standardisation of states to the demonstrations or, without any, to the base's training data.

    `base=uniform` has no training data: without demonstrations states are not scaled. Without them the base's
    features, of which it keeps no ranges, are not scaled either.
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


def switch_cost(action_spec: ActionSpec, penalty: float) -> SwitchCost:
    """Reward penalty for opening or closing a gripper."""
    grippers = (i for i, dim in enumerate(action_spec) if dim.kind == "gripper")
    return SwitchCost(tuple(grippers), penalty)


def _build_agent(method: AgentMethod, context: AgentContext, execution: AsyncOptions) -> Agent:
    torch.manual_seed(context.seed)
    agent = method.build_agent(context)
    execution.apply(agent.policy, repeated_in_hold(context.action_spec))
    return agent


def _check_execution(execution: AsyncOptions, method: AgentMethod, base: BasePolicy) -> None:
    """Raises ValueError if the method or the base does not allow asynchronous training."""
    if execution:
        method.check_asynchronous()
        # While a policy explores, whole chunks are executed.
        check_asynchronous(base, execution, base.spec.execute)


def _load_base(source: Source, method: str) -> tuple[BasePolicy, Mapping[str, Any]]:
    """Load the base policy of an earlier run, or connect to a server, and its metadata."""
    if isinstance(source.base, RemoteConfig):
        return _connect_base(source)
    if not isinstance(source.base, RunBase):
        raise ValueError(
            f"method={method} improves a trained base policy: give its run, base=runs/…  "
            "(`robot-rl train method=bc` makes one), or base=uniform to learn without one"
        )
    networks, meta = load_networks(source.base.path, source.device)
    return base_of(networks), meta


def _connect_base(source: Source) -> tuple[BasePolicy, Mapping[str, Any]]:
    assert isinstance(source.base, RemoteConfig)
    env = make_env(source.task)
    environment = env.describe()
    env.close()
    base = connect_base(source.base, environment)
    if not base.spec.deterministic:
        print(
            f"{source.base.url}: this policy draws its own noise, so a run with it cannot be repeated, nor "
            "resumed exactly",
            file=sys.stderr,
        )
    return base.to(source.device).eval(), {"environment": base.environment}


def _place(base: ImitationConfig | RunBase | RemoteConfig | None) -> str:
    """Where a base comes from, for messages."""
    if isinstance(base, RemoteConfig):
        return base.url
    return base.path if isinstance(base, RunBase) else "uniform"


def _learns_from_images(content: ReplayContent, context: AgentContext) -> bool:
    """Whether the replay holds images, features of them, or samples of a base that sees, at every step."""
    if content.decisions_only:
        return False
    sampled = bool(content.base_samples and context.base.spec.cameras)
    return context.encoder.sees or content.base_images or sampled


def _load_demonstrations(
    method: OffPolicyMethod,
    source: Source,
    envs: RobosuiteVectorEnv,
    context: AgentContext,
    fields: Fields,
    switch: SwitchCost,
) -> Replay:
    """Load the demonstrations into a replay with the fields that the method stores."""
    if source.data is None:
        raise ValueError(
            f"method={method.config.name} takes a part of each batch from demonstrations: add data=…, "
            "or set method.demo_ratio=0"
        )
    dataset = Dataset(Path(source.data))
    stored = tuple(name.removeprefix(IMAGE_PREFIX) for name in fields if name.startswith(IMAGE_PREFIX))
    cameras = tuple(dict.fromkeys((*stored, *context.base.spec.cameras)))
    if unseen := [camera for camera in cameras if camera not in dataset.observation_spec.cameras]:
        raise ValueError(
            f"dataset {source.data} has no images of {', '.join(unseen)}: `robot-rl collect "
            f"task.cameras=[{','.join(cameras)}]` makes one that has, method.demo_ratio=0 needs none"
        )
    what = f"dataset {source.data}"
    check_same_environment(dataset.environment, envs.describe(), what, source.accept, cameras)
    base, samples = context.base, method.replay_content.base_samples
    return demonstrations_to_replay(
        dataset,
        base,
        source.seed,
        fields,
        samples,
        source.device,
        switch,
        source.execution,
        envs.task.instructions,
    )


def _check_memory(rows: int, fields: Fields, device: torch.device) -> None:
    row = sum(math.prod(shape) * kind.itemsize for shape, kind in fields.values())
    # A checkpoint needs two copies of the replay.
    most = memory_bytes(device) // (3 * row)
    if rows > most:
        raise ValueError(
            f"a replay of {rows} rows of {row} bytes needs more memory than this machine has: "
            f"set method.replay_capacity={most} or less, or fewer or smaller images (task.cameras, "
            "task.image_size)"
        )
