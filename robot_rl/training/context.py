"""Inputs of a training run: loads the frozen base, builds the environments, checks that they fit together."""

import sys
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Any

import torch

from robot_rl.data.compatibility import OF_A_SCENE, check_same_environment
from robot_rl.data.replay_buffer import SwitchCost
from robot_rl.envs.action import ActionSpec
from robot_rl.envs.robot_task import RobotTask
from robot_rl.envs.task import TaskConfig
from robot_rl.envs.vector import TaskVectorEnv
from robot_rl.factory import make_env, make_vector_env
from robot_rl.learning.config import BASE_FEATURES, STATE_ALONE
from robot_rl.learning.distributed import Processes
from robot_rl.methods.method import AgentContext, AgentMethod
from robot_rl.policies.asynchronous import SYNCHRONOUS, AsyncOptions, check_asynchronous
from robot_rl.policies.bases.base_policy import BasePolicy
from robot_rl.policies.bases.imitation import ImitationConfig, ImitationPolicy
from robot_rl.policies.bases.uniform import UniformConfig, UniformPolicy
from robot_rl.policies.nets.encoder import EncoderSpec
from robot_rl.policy_client.config import RemoteConfig
from robot_rl.policy_client.remote_base import connect_base
from robot_rl.saved_policies.loading import base_of, check_asked, check_instructions, load_networks


@dataclass
class RunBase:
    """The base policy of an earlier run."""

    path: str = "???"
    """Directory of the run (or saved policy) whose base policy is used: frozen, or trained further by bc."""


@dataclass(frozen=True)
class RunInputs:
    """Inputs of a run besides its method: task, base, data, seed, device."""

    task: TaskConfig
    base: ImitationConfig | RunBase | RemoteConfig | None
    data: str | None
    seed: int
    device: torch.device
    accept: tuple[str, ...] = ()
    """Accepted differences between the recorded and the current environment."""
    make_envs: Callable[[TaskConfig, int], TaskVectorEnv] = make_vector_env
    """Makes so many environments of the task."""
    robot: RobotTask | None = None
    """A real robot's task, in place of environments."""
    execution: AsyncOptions = SYNCHRONOUS
    """How the base's chunks are executed."""
    uneven: bool = False
    """Whether one stream of the replay may get more steps than another, even all."""
    processes: Processes = field(default_factory=Processes)
    """The processes that train a base policy together."""

    def describe(self) -> dict[str, Any]:
        """Description of the task's environment, of which one is built for it."""
        env = self.robot or make_env(self.task)
        environment = env.describe()
        env.close()
        return environment


def build_context(
    method: AgentMethod, inputs: RunInputs, resources: ExitStack
) -> tuple[TaskVectorEnv | RobotTask, AgentContext]:
    """Load the frozen base and build the environments, which `resources` closes.

    The base and what RL trains may have different inputs: the state, or state and images.

    Raises:
        ValueError: if task, base and method do not fit together.
    """
    task, name, encoder = inputs.task, method.config.name, method.encoder
    trained = None if isinstance(inputs.base, UniformConfig) else _load_base(inputs, name)
    path = _place(inputs.base)
    if trained:
        method.check_base(trained[0], path)
        _check_execution(inputs.execution, method, trained[0])
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
    envs = inputs.robot or inputs.make_envs(task, method.config.num_envs)
    resources.callback(envs.close)
    observed, action_size = envs.observation_spec, len(envs.action_spec)
    if trained is None:
        assert isinstance(inputs.base, UniformConfig)
        base: BasePolicy = UniformPolicy(inputs.base, observed.state_size, action_size).to(inputs.device)
        method.check_base(base, path)
        _check_execution(inputs.execution, method, base)
    else:
        base, meta = trained
        accept = (*inputs.accept, *(OF_A_SCENE if base.spec.instruction else ()))
        check_same_environment(
            meta["environment"], envs.describe(), f"base policy {path}", accept, base_cameras
        )
    if (base.spec.state_size, base.spec.action_size) != (observed.state_size, action_size):
        raise ValueError(
            f"base policy {path} maps states of size {base.spec.state_size} to actions of size "
            f"{base.spec.action_size}; task {task.name} has {observed.state_size} and {action_size}"
        )
    check_instructions(base, task.name, envs.task.instructions)
    if inputs.robot and trained and base.spec.instruction:
        for text in envs.task.instructions:
            check_asked(base, trained[1]["environment"], text)
    seen = _encoder_spec(method, base, cameras, envs, path)
    return envs, AgentContext(base, seen, envs.action_spec, inputs.seed, inputs.device)


def _encoder_spec(
    method: AgentMethod,
    base: BasePolicy,
    cameras: tuple[str, ...],
    envs: TaskVectorEnv | RobotTask,
    path: str,
) -> EncoderSpec:
    """What RL learns from. Raises ValueError if the base does not give it."""
    observed, encoder = envs.observation_spec, method.encoder
    if len(told := envs.task.instructions) > 1 and not (encoder == BASE_FEATURES and base.spec.instruction):
        option = (
            f"hil.instruction={told[0]!r}"
            if isinstance(envs, RobotTask)
            else f"task.instructions=[{told[0]}]"
        )
        raise ValueError(
            f"the task has {len(told)} instructions, and what RL trains sees none: choose one "
            f"({option}), or method.encoder=base with a base that reads them"
        )
    if encoder == BASE_FEATURES:
        if not base.feature_size:
            raise ValueError(
                f"the base policy {path} gives no features, which method.encoder=base needs: choose another "
                "encoder, or train a base (`robot-rl train method=bc`)"
            )
        # Without images all versions would be equal.
        copies = method.feature_copies if base.spec.cameras else 1
        features = base.feature_size
        return EncoderSpec(observed.state_size, kind=encoder, features=features, feature_copies=copies)
    if cameras:
        if base.feature_size and base.spec.cameras and base.device.type == "cpu":
            print(
                f"method.encoder={encoder} trains an encoder of images, the most of an update on a CPU: "
                "method.encoder=base learns from the base's features, several times as fast",
                file=sys.stderr,
            )
        return EncoderSpec(observed.state_size, cameras, observed.image_size, encoder)
    return EncoderSpec(observed.state_size)


def trained_base(path: str) -> tuple[ImitationPolicy, Mapping[str, Any]]:
    """The base policy of an earlier run, ready to be trained further, and the environment it is for.

    Raises:
        ValueError: if it has no weights here.
    """
    networks, meta = load_networks(path)
    base = base_of(networks)
    if not isinstance(base, ImitationPolicy) or isinstance(base, UniformPolicy):
        raise ValueError(f"the base policy of {path} has no weights to train: choose another run")
    return base.unfreeze(), meta["environment"]


def _load_base(inputs: RunInputs, method: str) -> tuple[BasePolicy, Mapping[str, Any]]:
    """Load the base policy of an earlier run, or connect to a server, and its metadata."""
    if isinstance(inputs.base, RemoteConfig):
        return _connect_base(inputs)
    if not isinstance(inputs.base, RunBase):
        raise ValueError(
            f"method={method} improves a trained base policy: give its run, base=runs/…  "
            "(`robot-rl train method=bc` makes one), or base=uniform to learn without one"
        )
    networks, meta = load_networks(inputs.base.path, inputs.device)
    return base_of(networks), meta


def _connect_base(inputs: RunInputs) -> tuple[BasePolicy, Mapping[str, Any]]:
    assert isinstance(inputs.base, RemoteConfig)
    base = connect_base(inputs.base, inputs.describe())
    if not base.spec.deterministic:
        print(
            f"{inputs.base.url}: this policy draws its own noise, so a run with it cannot be repeated, nor "
            "resumed exactly",
            file=sys.stderr,
        )
    return base.to(inputs.device).eval(), {"environment": base.environment}


def _place(base: ImitationConfig | RunBase | RemoteConfig | None) -> str:
    """Where a base comes from, for messages."""
    if isinstance(base, RemoteConfig):
        return base.url
    return base.path if isinstance(base, RunBase) else "uniform"


def _check_execution(execution: AsyncOptions, method: AgentMethod, base: BasePolicy) -> None:
    """Raises ValueError if the method or the base does not allow asynchronous training."""
    if execution:
        method.check_asynchronous()
        # While a policy explores, whole chunks are executed.
        check_asynchronous(base, execution, base.spec.execute)


def switch_cost(action_spec: ActionSpec, penalty: float) -> SwitchCost:
    """Reward penalty for opening or closing a gripper."""
    grippers = (i for i, dim in enumerate(action_spec) if dim.kind == "gripper")
    return SwitchCost(tuple(grippers), penalty)
