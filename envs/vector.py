"""Several environments stepped together."""

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
from robot_rl.envs.observation import Observation
from robot_rl.envs.slots import Interface, Maker, Rows, Slots, Start, row_bytes
from robot_rl.envs.task import TaskConfig


class RobosuiteVectorEnv(VectorEnv[Observation, np.ndarray, np.ndarray], ABC):
    """N environments stepped together: the rules, whoever does the stepping.

    Autoreset is disabled: after `terminated | truncated` the observation is the episode's last,
    and the caller resets those slots with `reset(options={"reset_mask": bool [N]})`. Thus no
    transition is made up at a reset. `seed` is a sequence with one entry per slot; entries of
    slots that are not reset are ignored. `options["states"]` holds a saved state (or None) per slot.
    A step with an action that one slot refuses moves none of them.
    """

    def __init__(self, num_envs: int, interface: Interface, memory: Any = None) -> None:
        """`memory` is the buffer for the rows that are stepped in; a new one if None."""
        self.num_envs = num_envs
        self.single_observation_space = interface.observation_space
        self.single_action_space = interface.action_space
        self.observation_space = batch_space(interface.observation_space, num_envs)
        self.action_space = batch_space(interface.action_space, num_envs)
        self.metadata = {"autoreset_mode": AutoresetMode.DISABLED}
        self.action_spec = interface.action_spec
        self.observation_spec = interface.observation_spec
        self._interface = interface
        memory = bytearray(row_bytes(interface, num_envs)) if memory is None else memory
        self._rows = Rows.within(memory, interface, num_envs)
        self._begun = np.zeros(num_envs, bool)
        self._done = np.ones(num_envs, bool)

    @property
    def task(self) -> TaskConfig:
        """The task of every slot."""
        return self._interface.task

    def describe(self) -> dict[str, Any]:
        """What a dataset must remember to rebuild one of the environments, as plain JSON values."""
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
                raise ValueError(f"{what} has {len(given)} entries for {n} slots")
        unset = np.flatnonzero(~mask & ~self._begun).tolist()
        if unset:
            raise ValueError(f"slots {unset} were never reset: reset them too")
        self._done |= mask  # a reset that fails leaves nothing to step
        self._reset_slots({slot: (seeds[slot], states[slot]) for slot in np.flatnonzero(mask).tolist()})
        self._begun |= mask
        self._done &= ~mask
        return self._observation(), {}

    def step(
        self, actions: np.ndarray
    ) -> tuple[Observation, np.ndarray, np.ndarray, np.ndarray, dict[str, Any]]:
        if self._done.any():
            raise ValueError(f"slots {np.flatnonzero(self._done).tolist()} are done: reset them first")
        if len(actions) != self.num_envs:
            raise ValueError(f"{len(actions)} actions for {self.num_envs} slots")
        rows = self._rows
        rows.action[:] = [checked_action(action, len(self.action_spec)) for action in actions]
        self._step_slots()
        self._done = rows.terminated | rows.truncated
        info = {"success": rows.success.copy(), "applied_action": rows.action.copy()}
        terminated, truncated = rows.terminated.copy(), rows.truncated.copy()
        return self._observation(), rows.reward.copy(), terminated, truncated, info

    def set_states(self, states: Sequence[np.ndarray]) -> Observation:
        """Continue every slot from a saved state; returns the observations there."""
        if len(states) != self.num_envs:
            raise ValueError(f"{len(states)} states for {self.num_envs} slots")
        self._set_slots(dict(enumerate(states)))
        self._begun[:], self._done[:] = True, False
        return self._observation()

    @abstractmethod
    def get_states(self) -> list[np.ndarray]:
        """Full simulator state of every slot."""

    @abstractmethod
    def _reset_slots(self, starts: Mapping[int, Start]) -> None:
        """Begin episodes in some slots; their rows then hold the observations."""

    @abstractmethod
    def _step_slots(self) -> None:
        """Step every slot by its row's action."""

    @abstractmethod
    def _set_slots(self, states: Mapping[int, np.ndarray]) -> None:
        """Put slots into states; their rows then hold the observations."""

    def _observation(self) -> Observation:
        return {key: value.copy() for key, value in self._rows.obs.items()}


class ThreadVectorEnv(RobosuiteVectorEnv):
    """N environments in threads of one process; results do not depend on the number of threads.

    One thread does the Python of all environments, the others run their physics, see `WorkerPool`. Where
    images are observed, whose drawing takes longest, every thread steps whole environments. Without a
    compiled control loop threads would only get in each other's way, so there is one; also where
    robosuite renders images itself, since its GL contexts stay where they are.

    Args:
        makers: of the environments, one for each slot.
        threads: most threads to step in; as many as there are cores if None.
    """

    def __init__(self, makers: Sequence[Maker], threads: int | None = None) -> None:
        self._slots = Slots(dict(enumerate(makers)))
        self.envs = list(self._slots.envs.values())
        super().__init__(len(self.envs), self._slots.interface())
        self._slots.rows = self._rows
        controls = [env.control for env in self.envs if env.control is not None]
        threads = min(self.num_envs, threads or os.cpu_count() or 1)
        if len(controls) < self.num_envs or (self.task.cameras and self.task.render == "robosuite"):
            threads = 1
        self._workers: WorkerPool | None = None
        self._pool: ThreadPoolExecutor | None = None
        if threads > 1 and self.task.cameras:
            self._pool = ThreadPoolExecutor(threads)
        elif threads > 1:
            try:
                self._workers = WorkerPool([control.batch for control in controls], threads)
            except OSError as reason:
                warnings.warn(f"environments are stepped in one thread: {reason}", stacklevel=2)

    def get_states(self) -> list[np.ndarray]:
        return list(self._slots.get_states().values())

    def close_extras(self, **kwargs: Any) -> None:
        if self._workers:
            self._workers.close()
        if self._pool:
            self._pool.shutdown()
        self._slots.close()

    def _reset_slots(self, starts: Mapping[int, Start]) -> None:
        self._slots.reset(starts)

    def _step_slots(self) -> None:
        if self._workers:
            steppers = [
                env.stepping(action) for env, action in zip(self.envs, self._rows.action, strict=True)
            ]
            for slot, step in enumerate(self._workers.drive(steppers)):
                self._slots.stepped(slot, step)
        elif self._pool:
            list(self._pool.map(lambda slot: self._slots.step([slot]), range(self.num_envs)))
        else:
            self._slots.step()

    def _set_slots(self, states: Mapping[int, np.ndarray]) -> None:
        self._slots.set_states(states)
