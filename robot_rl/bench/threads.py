"""Environment steps per second for different numbers of threads."""

import time
from collections.abc import Callable

import numpy as np

from robot_rl.envs.robosuite_env import RobosuiteEnv
from robot_rl.envs.vector import ThreadVectorEnv
from robot_rl.factory import make_env

_TASK = "lift"
_PER_THREAD = 8
"""Environments per thread with the largest number of threads."""
_ROUND = 10
"""Steps from one set of states, far fewer than the task's horizon."""


def thread_counts(cores: int) -> list[int]:
    """1, 2 and its doubles up to the number of cores."""
    counts = [1, 2]
    while 2 * counts[-1] <= cores:
        counts.append(2 * counts[-1])
    return counts


def measure_threads(counts: list[int], seconds: float, seed: int) -> dict[int, float]:
    """Environment steps per second with each number of threads, the best of many rounds.

    The same environments take the same steps with every number of threads, in turns. With all cores in use,
    other processes slow a round down, and the median would measure that.
    """
    envs = [make_env(_TASK) for _ in range(_PER_THREAD * max(counts))]
    vectors = {n: ThreadVectorEnv([_returning(env) for env in envs], threads=n) for n in counts}
    vectors[1].reset(seed=seed)
    states = vectors[1].get_states()
    shape = _ROUND, len(envs), len(envs[0].action_spec)
    actions = np.random.default_rng(seed).uniform(-1, 1, shape).astype(np.float32)
    rates: dict[int, list[float]] = {n: [] for n in counts}
    end = time.monotonic() + seconds
    while len(rates[1]) < 3 or time.monotonic() < end:
        for n, vector in vectors.items():
            vector.set_states(states)
            rates[n].append(_rate(vector, actions))
    for vector in vectors.values():
        vector.close()
    return {n: max(values) for n, values in rates.items()}


def _returning(env: RobosuiteEnv) -> Callable[[], RobosuiteEnv]:
    return lambda: env


def _rate(vector: ThreadVectorEnv, actions: np.ndarray) -> float:
    """Environment steps per second over the actions [T, N, A], or until an episode ends."""
    steps = 0
    start = time.perf_counter()
    for action in actions:
        _, _, terminated, truncated, _ = vector.step(action)
        steps += vector.num_envs
        if (terminated | truncated).any():
            break
    return steps / (time.perf_counter() - start)
