"""What the off-policy methods around a base have in common: their ingredients and how they are run."""

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from robot_rl.data.compatibility import refuse_differences
from robot_rl.data.dataset import Dataset
from robot_rl.data.demonstrations import demonstrations_to_replay
from robot_rl.data.replay import Fields, Replay, SwitchCost
from robot_rl.envs.action import one_step
from robot_rl.envs.observation import IMAGE_PREFIX
from robot_rl.envs.vector import RobosuiteVectorEnv
from robot_rl.factory import load_networks, make_vector_env
from robot_rl.hil.learner import Apart, train_apart
from robot_rl.learning.config import STATE_ALONE, OffPolicyConfig
from robot_rl.learning.sampling import Mixture, Window
from robot_rl.machine import memory_bytes
from robot_rl.methods.context import Acting, Job, Prepared, RunBase
from robot_rl.policies.acting import WrappedPolicy
from robot_rl.policies.bases.base_policy import BasePolicy
from robot_rl.policies.bases.imitation import ImitationPolicy
from robot_rl.policies.bases.uniform import UniformConfig, UniformPolicy
from robot_rl.policies.nets.encoder import EncoderSpec, ObservationEncoder
from robot_rl.policies.wrappers.wrapper import Wrapper, save_wrapper
from robot_rl.training.online import Cadence, OnlineLearner, Run, Schedule, train_online


@dataclass(frozen=True)
class Ground:
    """A base and the environments that it acts in, checked against each other."""

    base: BasePolicy
    envs: RobosuiteVectorEnv
    environment: dict[str, Any]
    encoder: EncoderSpec

    @property
    def action_size(self) -> int:
        return len(self.envs.action_spec)

    def scale(self, motion: float, gripper: float) -> tuple[float, ...]:
        """One scale for each dimension of the action; of a pose's, in units of a full delta."""
        return tuple(
            gripper if dim.kind == "gripper" else motion * one_step(dim) for dim in self.envs.action_spec
        )


@dataclass(frozen=True)
class Ingredients(Ground):
    """What an off-policy method is built from."""

    demos: Replay | None
    fields: Fields
    """What the replay keeps."""


def gather(job: Job, kept: Sequence[str] = (), proposals: int = 0, *, runs_base: bool = False) -> Ingredients:
    """Load the frozen base, build the environments, relabel the demonstrations with the base.

    Args:
        job: the configuration.
        kept: what the replay keeps of each decision (names as in `Decision.record`).
        proposals: samples of the base that it keeps at each step; one of a base without noise.
        runs_base: whether learning runs the base on what the replay keeps, which then has its images.

    Raises:
        ValueError: whatever cannot work together.
    """
    config: OffPolicyConfig = job.method
    made = ground(job, config.encoder)
    with closed_if_refused(made.envs):
        base = made.base
        if base.spec.noise_shape is None:
            proposals = min(proposals, 1)
            if lacking := {"noise", "proposal_noise"} & set(kept):
                raise ValueError(
                    f"the base policy {job.base.path} takes no noise, and {config.name} learns from its "
                    f"{lacking.pop()}: use method=residual, ibrl or residual_ppo, or base=diffusion or flow"
                )
        shapes = record_shapes(base, proposals)
        cameras = dict.fromkeys((*made.encoder.cameras, *(base.spec.cameras if runs_base else ())))
        fields: Fields = {
            "state": ((made.encoder.state_size,), torch.float32),
            **{f"{IMAGE_PREFIX}{camera}": ((*job.task.image_size, 3), torch.uint8) for camera in cameras},
            **{name: shapes[name] for name in kept},
        }
        _refuse_more_than_memory(config, fields, job.device)
        learns_demos = max(config.demo_ratios) > 0 and not job.acts
        demos = _relabelled(job, made, tuple(cameras), fields, proposals) if learns_demos else None
        return Ingredients(base, made.envs, made.environment, made.encoder, demos, fields)


def _relabelled(job: Job, made: Ground, cameras: tuple[str, ...], fields: Fields, proposals: int) -> Replay:
    """The demonstrations as the method would have kept them."""
    if job.data is None:
        raise ValueError(
            f"method={job.method.name} takes a part of each batch from demonstrations: add data=…, "
            "or set method.demo_ratio=0"
        )
    dataset = Dataset(Path(job.data))
    looked_at = tuple(dict.fromkeys((*cameras, *made.base.spec.cameras)))
    if unseen := [camera for camera in looked_at if camera not in dataset.observation_spec.cameras]:
        raise ValueError(
            f"dataset {job.data} has no images of {', '.join(unseen)}: `robot-rl collect "
            f"task.cameras=[{','.join(looked_at)}]` makes one that has, method.demo_ratio=0 needs none"
        )
    refuse_differences(dataset.environment, made.environment, f"dataset {job.data}", job.accept, looked_at)
    switch = switch_cost(job.method, made)
    return demonstrations_to_replay(dataset, made.base, job.seed, fields, proposals, job.device, switch)


def ground(job: Job, encoder: str = STATE_ALONE) -> Ground:
    """Load the frozen base and build the environments; `encoder` as in `OffPolicyConfig`.

    Base and RL look at what each was made for: one at images, the other at the state alone, or both.

    Raises:
        ValueError: they cannot work together.
    """
    trained = None if isinstance(job.base, UniformConfig) else frozen_base(job)
    looks = trained[0].spec.cameras if trained else ()
    cameras = () if encoder == STATE_ALONE else tuple(job.task.cameras)
    if unseen := [camera for camera in looks if camera not in job.task.cameras]:
        raise ValueError(
            f"the base policy {job.base.path} looks at {', '.join(unseen)}, which the task does not observe: "
            f"add task.cameras=[{','.join(dict.fromkeys((*job.task.cameras, *looks)))}]"
        )
    if unused := [camera for camera in job.task.cameras if camera not in (*looks, *cameras)]:
        raise ValueError(
            f"nothing looks at the images of {', '.join(unused)}: the base does not, and method="
            f"{job.method.name} would learn from the state alone; leave them out of task.cameras"
        )
    envs = make_vector_env(job.task, job.method.num_envs)
    with closed_if_refused(envs):
        environment = envs.describe()
        state_size, action_size = envs.observation_spec.state_size, len(envs.action_spec)
        if trained is None:
            base: BasePolicy = UniformPolicy(job.base, state_size, action_size).to(job.device)
        else:
            base, meta = trained
            refuse_differences(
                meta["environment"], environment, f"base policy {job.base.path}", job.accept, looks
            )
        if (base.spec.state_size, base.spec.action_size) != (state_size, action_size):
            raise ValueError(
                f"base policy {job.base.path} maps states of size {base.spec.state_size} to actions of size "
                f"{base.spec.action_size}; task {job.task.name} has {state_size} and {action_size}"
            )
        if not cameras:
            return Ground(base, envs, environment, EncoderSpec(state_size))
        size = envs.observation_spec.image_size
        return Ground(base, envs, environment, EncoderSpec(state_size, cameras, size, encoder))


@contextmanager
def closed_if_refused(envs: RobosuiteVectorEnv) -> Iterator[None]:
    """Closes the environments where a user's mistake ends what is done with them."""
    try:
        yield
    except ValueError:
        envs.close()
        raise


def frozen_base(job: Job) -> tuple[BasePolicy, dict[str, Any]]:
    """The base policy of an earlier run, and what was saved with it.

    Raises:
        ValueError: `base=` names no earlier run.
    """
    if not isinstance(job.base, RunBase):
        raise ValueError(
            f"method={job.method.name} improves a trained base policy: give its run, base=runs/…  "
            "(`robot-rl train method=bc` makes one), or base=uniform to learn without one"
        )
    networks, meta = load_networks(job.base.path, job.device)
    return (networks.base if isinstance(networks, Wrapper) else networks), meta


def switch_cost(config: OffPolicyConfig, made: Ground) -> SwitchCost:
    """What the task's grippers cost."""
    grippers = (i for i, dim in enumerate(made.envs.action_spec) if dim.kind == "gripper")
    return SwitchCost(tuple(grippers), config.gripper_penalty)


def record_shapes(base: BasePolicy, proposals: int) -> Fields:
    """Shapes and types of what `Decision.record` gives, per row."""
    spec = base.spec
    shapes: dict[str, tuple[tuple[int, ...], torch.dtype]] = {
        "base": ((spec.action_size,), torch.float32),
        "chunk_step": ((), torch.int64),
        "proposals": ((proposals, spec.execute, spec.action_size), torch.float32),
    }
    if spec.noise_shape is not None:
        shapes["noise"] = (spec.noise_shape, torch.float32)
        shapes["proposal_noise"] = ((proposals, *spec.noise_shape), torch.float32)
    return shapes


def replay_rows(config: OffPolicyConfig) -> int:
    """Rows of the replay: no more than a run can fill, with every step the last of its episode."""
    fillable = 2 * -(-config.steps // config.num_envs) * config.num_envs
    return min(config.replay_capacity, fillable)


def _refuse_more_than_memory(config: OffPolicyConfig, fields: Fields, device: torch.device) -> None:
    row = sum(math.prod(shape) * kind.itemsize for shape, kind in fields.values())
    # A checkpoint is made of a copy of the replay, and written from another.
    most = memory_bytes(device) // (3 * row)
    if replay_rows(config) > most:
        raise ValueError(
            f"a replay of {replay_rows(config)} rows of {row} bytes needs more memory than this machine has: "
            f"set method.replay_capacity={most} or less, or fewer or smaller images (task.cameras, "
            "task.image_size)"
        )


def normalize_states(encoder: ObservationEncoder, base: BasePolicy, demos: Replay | None = None) -> None:
    """Standardise states by the demonstrations or, without any, by the range that the base was trained on.

    `base=uniform` was trained on nothing: without demonstrations its states stay in their units.
    """
    if demos:
        encoder.norm.fit(demos.held("state"))
    elif isinstance(base, ImitationPolicy):
        encoder.norm.take(base.state_normalizer)


def prepare(
    job: Job,
    made: Ingredients,
    wrapper: Wrapper,
    policy: WrappedPolicy,
    learner: OnlineLearner,
    window: Window | None = None,
) -> Prepared:
    """A method that is ready to train."""
    config: OffPolicyConfig = job.method
    replay = Replay(
        replay_rows(config),
        config.num_envs,
        made.action_size,
        made.fields,
        job.device,
        switch_cost(config, made),
    )
    with closed_if_refused(made.envs):
        mixture = Mixture(config, replay, made.demos, window or Window(), job.seed)
    schedule = Schedule(config.warmup_steps, config.critic_warmup, config.utd, config.success_weight)
    cadence = Cadence(config.steps, job.log_every, job.checkpoint_every, job.eval_every, job.save_every)

    def save(directory: Path) -> None:
        save_wrapper(wrapper, directory / "policy", {"environment": made.environment, "method": config.name})

    def train(run: Run) -> bool:
        if job.hil:
            return train_apart(
                Apart(job, wrapper, made.environment, learner, replay, mixture, schedule, cadence), run
            )
        return train_online(made.envs, policy, learner, replay, mixture, schedule, cadence, run, job.seed)

    return Prepared(
        train=train,
        save_policy=save,
        total=config.steps,
        unit="env steps",
        close=made.envs.close,
        learner=learner,
        batches=mixture,
        acting=Acting(made.envs, policy, wrapper, tuple(made.fields)),
    )
