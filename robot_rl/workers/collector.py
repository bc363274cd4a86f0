"""What a worker runs that is not in lockstep: environments, and a copy of the acting policy."""

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
from numpy.typing import NDArray

from robot_rl.envs.robosuite_env import RobosuiteEnv
from robot_rl.envs.task import TaskConfig
from robot_rl.envs.vector import ThreadVectorEnv
from robot_rl.policies.finetuned.finetuned_policy import Exploration, FinetunedPolicy
from robot_rl.rollout import episode_seed
from robot_rl.training.rollout import StoredStep, TrainingRollout
from robot_rl.workers.config import STEPS
from robot_rl.workers.node import prepare_worker


@dataclass(frozen=True)
class CollectorJob:
    """What a worker collects, and with what."""

    task: TaskConfig
    networks: FinetunedPolicy
    """Copy of the networks on the CPU."""
    exploration: Exploration
    fields: Sequence[str]
    """Names of the fields that the replay stores."""
    learns_from_images: bool
    """As in `TrainingRollout`."""
    decisions_only: bool
    """As in `ReplayContent`."""
    plugins: Sequence[str]
    """Names of modules to import."""
    software: Mapping[str, str]
    """What the learner's machine has installed, as `installed_software` says."""


@dataclass(frozen=True)
class Weights:
    """The acting policy's weights at one moment of the training."""

    version: int
    tensors: Mapping[str, NDArray[Any]]


@dataclass(frozen=True)
class Collected:
    """Steps of one worker, all of which were chosen with the same weights."""

    steps: Sequence[StoredStep]
    """`STEPS` control steps, in time order."""
    outcomes: Sequence[Mapping[str, float]]
    """Success and length of the episodes that ended."""
    seconds: float
    """Duration of the steps."""


class _Outcomes:
    """Keeps what a rollout logs."""

    def __init__(self) -> None:
        self.values: list[Mapping[str, float]] = []

    def log(self, step: int, /, **values: float) -> None:
        self.values.append(values)


class Collector:
    """Ray actor that explores with weights from the learner."""

    def build(self, job: CollectorJob, num_envs: int) -> None:
        """Create environments.

        Raises:
            ValueError: if this machine cannot.
        """
        prepare_worker(job.task, job.plugins, job.software)
        torch.set_num_threads(1)
        self._job, self._version = job, -1
        self._envs = ThreadVectorEnv([partial(RobosuiteEnv, job.task)] * num_envs, threads=1)

    def collect(self, weights: Weights, active: bool, begin: int | None) -> Collected:
        """Act with these weights for `STEPS` control steps.

        Args:
            weights: of the newest version.
            active: whether what RL trained acts, or the base alone.
            begin: seed with which to begin new episodes in all environments; None continues them.
        """
        if weights.version != self._version:
            tensors = {name: torch.from_numpy(value.copy()) for name, value in weights.tensors.items()}
            self._job.networks.load_state_dict(tensors, strict=False)
            self._version = weights.version
        if begin is not None:
            self._begin(begin)
        self._policy.active = active
        self._outcomes.values = []
        begun = time.monotonic()
        steps = [self._step("policy" if active else "base") for _ in range(STEPS)]
        return Collected(steps, self._outcomes.values, time.monotonic() - begun)

    def _begin(self, seed: int) -> None:
        job, self._outcomes = self._job, _Outcomes()
        noise = episode_seed(seed, "explore", 0)
        self._policy = job.networks.policy(self._envs.num_envs, seed=noise, exploration=job.exploration)
        self._policy.runner.decisions_only = job.decisions_only
        self._rollout = TrainingRollout(
            self._envs,
            self._policy,
            self._outcomes,
            seed,
            with_base_samples=True,
            learns_from_images=job.learns_from_images,
        )
        self._rollout.begin_episodes()

    def _step(self, source: str) -> StoredStep:
        transition = self._rollout.step()
        step = self._rollout.stored(transition, source)
        self._rollout.end_episodes(transition, 0)
        return replace(step, fields=self._kept(step.fields), last=self._kept(step.last))

    def _kept(self, fields: Mapping[str, NDArray[Any]]) -> dict[str, NDArray[Any]]:
        return {name: fields[name] for name in self._job.fields if name in fields}
