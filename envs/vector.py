"""Several environments stepped together."""

import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
from gymnasium.vector import AutoresetMode, VectorEnv
from gymnasium.vector.utils import batch_space

from envs.observation import Observation
from envs.robosuite_env import RobosuiteEnv


class ThreadVectorEnv(VectorEnv[Observation, np.ndarray, np.ndarray]):
    """N environments in threads of one process; results do not depend on the number of threads.

    A compiled control loop releases the GIL; without one, threads would only get in each other's way.
    With cameras there is one thread, since a GL context belongs to the thread that uses it.

    Autoreset is disabled: after `terminated | truncated` the observation is the episode's last,
    and the caller resets those slots with `reset(options={"reset_mask": bool [N]})`. Thus no
    transition is made up at a reset. `seed` is a sequence with one entry per slot; entries of
    slots that are not reset are ignored. `options["states"]` holds a saved state (or None) per slot.
    A step with an action that one slot refuses moves none of them.
    """

    def __init__(self, makers: Sequence[Callable[[], RobosuiteEnv]]) -> None:
        self.envs = [make() for make in makers]
        self.num_envs = len(self.envs)
        first = self.envs[0]
        self.single_observation_space = first.observation_space
        self.single_action_space = first.action_space
        self.observation_space = batch_space(first.observation_space, self.num_envs)
        self.action_space = batch_space(first.action_space, self.num_envs)
        self.metadata = {"autoreset_mode": AutoresetMode.DISABLED}
        self.action_spec = first.action_spec
        self.observation_spec = first.observation_spec
        threads = min(self.num_envs, os.cpu_count() or 1) if first.compiled and not first.task.cameras else 1
        self._pool = ThreadPoolExecutor(threads) if threads > 1 else None
        self._obs: list[Observation] = [{} for _ in self.envs]
        self._done = np.ones(self.num_envs, bool)

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
        unset = [i for i in range(n) if not mask[i] and not self._obs[i]]
        if unset:
            raise ValueError(f"slots {unset} were never reset: reset them too")
        for i in np.flatnonzero(mask):
            self._obs[i], _ = self.envs[i].reset(seed=seeds[i], options={"state": states[i]})
            self._done[i] = False
        return self._stacked(), {}

    def step(
        self, actions: np.ndarray
    ) -> tuple[Observation, np.ndarray, np.ndarray, np.ndarray, dict[str, Any]]:
        if self._done.any():
            raise ValueError(f"slots {np.flatnonzero(self._done).tolist()} are done: reset them first")
        if len(actions) != self.num_envs:
            raise ValueError(f"{len(actions)} actions for {self.num_envs} slots")
        pairs = [(env, env.checked(action)) for env, action in zip(self.envs, actions, strict=True)]
        run = self._pool.map if self._pool else map
        results = list(run(lambda pair: pair[0].step(pair[1]), pairs))
        self._obs = [result[0] for result in results]
        reward = np.array([result[1] for result in results], np.float32)
        terminated = np.array([result[2] for result in results], bool)
        truncated = np.array([result[3] for result in results], bool)
        self._done = terminated | truncated
        info = {
            "success": np.array([result[4]["success"] for result in results], bool),
            "applied_action": np.stack([result[4]["applied_action"] for result in results]),
        }
        return self._stacked(), reward, terminated, truncated, info

    def get_states(self) -> list[np.ndarray]:
        """Full simulator state of every slot."""
        return [env.get_state() for env in self.envs]

    def set_states(self, states: Sequence[np.ndarray]) -> Observation:
        """Continue every slot from a saved state; returns the observations there."""
        self._obs = [env.set_state(state) for env, state in zip(self.envs, states, strict=True)]
        self._done = np.zeros(self.num_envs, bool)
        return self._stacked()

    def close_extras(self, **kwargs: Any) -> None:
        for env in self.envs:
            env.close()
        if self._pool:
            self._pool.shutdown()

    def _stacked(self) -> Observation:
        return {key: np.stack([obs[key] for obs in self._obs]) for key in self._obs[0]}
