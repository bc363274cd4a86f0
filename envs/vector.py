"""Vector environments: the common interface, and the one that steps in threads."""

import os
import warnings
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
from gymnasium.vector import AutoresetMode, VectorEnv
from gymnasium.vector.utils import batch_space

from robot_rl.envs.action import checked_action
from robot_rl.envs.compiled import WorkerPool
from robot_rl.envs.env_group import (
    EnvFactory,
    EnvGroup,
    EnvInterface,
    EpisodeStart,
    StepBuffers,
    buffer_bytes,
)
from robot_rl.envs.observation import Observation
from robot_rl.envs.robosuite_env import RobosuiteEnv
from robot_rl.envs.task import TaskConfig


class TaskVectorEnv(VectorEnv[Observation, np.ndarray, np.ndarray], ABC):
    """N environments that are stepped together; subclasses decide how.

    Autoreset is disabled: after `terminated | truncated` the observation is the episode's last,
    and the caller resets those environments with `reset(options={"reset_mask": bool [N]})`. So no
    transition is invented at a reset. `seed` is a sequence with one entry per environment; entries of
    environments that are not reset are ignored. `options["states"]` holds a saved state or None for each.
    If one action is not valid, no environment is stepped.
    """

    def __init__(self, num_envs: int, interface: EnvInterface, memory: Any = None) -> None:
        """`memory` holds the step buffers; new memory is allocated if it is None."""
        self.num_envs = num_envs
        self.single_observation_space = interface.observation_space
        self.single_action_space = interface.action_space
        self.observation_space = batch_space(interface.observation_space, num_envs)
        self.action_space = batch_space(interface.action_space, num_envs)
        self.metadata = {"autoreset_mode": AutoresetMode.DISABLED}
        self.action_spec = interface.action_spec
        self.observation_spec = interface.observation_spec
        self._interface = interface
        memory = bytearray(buffer_bytes(interface, num_envs)) if memory is None else memory
        self._buffers = StepBuffers.in_memory(memory, interface, num_envs)
        self._buffers.draw[:] = True
        self._begun = np.zeros(num_envs, bool)
        self._done = np.ones(num_envs, bool)

    @property
    def task(self) -> TaskConfig:
        """The task of the environments."""
        return self._interface.task

    def describe(self) -> dict[str, Any]:
        """Metadata from which a dataset rebuilds one of the environments, as plain JSON values."""
        return self._interface.description

    def reset(
        self,
        *,
        seed: int | Sequence[int | None] | None = None,
        options: dict[str, Any] | None = None,
    ) -> tuple[Observation, dict[str, Any]]:
        options = options or {}
        n = self.num_envs
        mask = np.asarray(options.get("reset_mask", np.ones(n, bool)), bool)
        states: Sequence[np.ndarray | None] | None = options.get("states")
        states = [None] * n if states is None else states
        seeds: Sequence[int | None]
        if seed is None or isinstance(seed, Sequence):
            seeds = [None] * n if seed is None else seed
        else:
            seeds = [int(seed) + i for i in range(n)]
        for what, given in (("reset_mask", mask), ("states", states), ("seed", seeds)):
            if len(given) != n:
                raise ValueError(f"{what} has {len(given)} entries for {n} environments")
        unset = np.flatnonzero(~mask & ~self._begun).tolist()
        if unset:
            raise ValueError(f"environments {unset} were never reset: reset them too")
        self._done |= mask  # if a reset fails, they cannot be stepped
        self._reset_envs({index: (seeds[index], states[index]) for index in np.flatnonzero(mask).tolist()})
        self._begun |= mask
        self._done &= ~mask
        return self._observation(), {}

    def step(
        self, actions: np.ndarray
    ) -> tuple[Observation, np.ndarray, np.ndarray, np.ndarray, dict[str, Any]]:
        if self._done.any():
            raise ValueError(f"environments {np.flatnonzero(self._done).tolist()} are done: reset them first")
        if len(actions) != self.num_envs:
            raise ValueError(f"{len(actions)} actions for {self.num_envs} environments")
        buffers = self._buffers
        buffers.action[:] = [checked_action(action, len(self.action_spec)) for action in actions]
        self._step_envs()
        buffers.draw[:] = True
        self._done = buffers.terminated | buffers.truncated
        info = {"success": buffers.success.copy(), "applied_action": buffers.action.copy()}
        terminated, truncated = buffers.terminated.copy(), buffers.truncated.copy()
        return self._observation(), buffers.reward.copy(), terminated, truncated, info

    def draw_next(self, mask: np.ndarray) -> None:
        """Draw the cameras of the next step only where the mask [N] is set; others' images are black.

        Drawing takes several times longer than the physics of a step. Images that robosuite renders itself
        (`task.render=robosuite`) are always drawn.
        """
        self._buffers.draw[:] = mask

    def set_states(self, states: Sequence[np.ndarray]) -> Observation:
        """Continue every environment from a saved state, and return the observations."""
        if len(states) != self.num_envs:
            raise ValueError(f"{len(states)} states for {self.num_envs} environments")
        self._set_env_states(dict(enumerate(states)))
        self._begun[:], self._done[:] = True, False
        return self._observation()

    @abstractmethod
    def get_states(self) -> list[np.ndarray]:
        """Full simulator state of every environment."""

    @abstractmethod
    def _reset_envs(self, starts: Mapping[int, EpisodeStart]) -> None:
        """Begin episodes in some environments, and write their observations to the buffers."""

    @abstractmethod
    def _step_envs(self) -> None:
        """Step every environment with its action in the buffers."""

    @abstractmethod
    def _set_env_states(self, states: Mapping[int, np.ndarray]) -> None:
        """Set some environments to states, and write their observations to the buffers."""

    def _observation(self) -> Observation:
        return {key: value.copy() for key, value in self._buffers.obs.items()}


class ThreadVectorEnv(TaskVectorEnv):
    """N environments in threads of one process; results do not depend on the number of threads.

    One thread runs the Python of all environments, the others run their physics, see `WorkerPool`. With
    images every thread steps whole environments, since rendering takes longest. One thread steps all
    without a compiled control loop, since threads would compete for the GIL, and if robosuite renders
    images itself, since its GL contexts are bound to a thread. Environments in their own processes
    (`ExternalEnv`) are each stepped by a thread, which waits.

    Args:
        env_fns: functions that create the environments.
        threads: maximum number of threads; the number of cores if None.
    """

    def __init__(self, env_fns: Sequence[EnvFactory], threads: int | None = None) -> None:
        self._group = EnvGroup(dict(enumerate(env_fns)))
        self.envs = list(self._group.envs.values())
        super().__init__(len(self.envs), self._group.interface())
        self._group.buffers = self._buffers
        self._here = [env for env in self.envs if isinstance(env, RobosuiteEnv)]
        controls = [env.control for env in self._here if env.control is not None]
        threads = min(self.num_envs, threads or os.cpu_count() or 1)
        own_images = bool(self.task.cameras) and self.task.render == "robosuite"
        if self._here and (len(controls) < self.num_envs or own_images):
            threads = 1
        self._workers: WorkerPool | None = None
        self._pool: ThreadPoolExecutor | None = None
        if threads > 1 and (self.task.cameras or not self._here):
            self._pool = ThreadPoolExecutor(threads)
        elif threads > 1:
            try:
                self._workers = WorkerPool([control.batch for control in controls], threads)
            except OSError as reason:
                warnings.warn(f"environments are stepped in one thread: {reason}", stacklevel=2)

    def get_states(self) -> list[np.ndarray]:
        return list(self._group.get_states().values())

    def close_extras(self, **kwargs: Any) -> None:
        if self._workers:
            self._workers.close()
        if self._pool:
            self._pool.shutdown()
        self._group.close()

    def _reset_envs(self, starts: Mapping[int, EpisodeStart]) -> None:
        self._group.reset(starts)

    def _step_envs(self) -> None:
        if self._workers:
            steppers = [
                env.stepping(action) for env, action in zip(self._here, self._buffers.action, strict=True)
            ]
            for index, step in enumerate(self._workers.drive(steppers)):
                self._group.write_step(index, step)
        elif self._pool:
            list(self._pool.map(lambda index: self._group.step([index]), range(self.num_envs)))
        else:
            self._group.step()

    def _set_env_states(self, states: Mapping[int, np.ndarray]) -> None:
        self._group.set_states(states)
