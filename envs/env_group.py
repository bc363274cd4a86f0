"""A group of environments that read actions from, and write results to, buffers with one row per environment.

Both vector environments use it: threads share the buffers, processes map them as shared memory.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import gymnasium as gym
import numpy as np
from numpy.typing import DTypeLike

from robot_rl.envs.action import ActionSpec
from robot_rl.envs.observation import Observation, ObservationSpec
from robot_rl.envs.task import TaskConfig
from robot_rl.envs.task_env import Step, TaskEnv

EnvFactory = Callable[[], TaskEnv]
EpisodeStart = tuple[int | None, np.ndarray | None]
"""Seed and saved state with which an episode begins; both may be None."""

_ALIGNMENT = 64


@dataclass(frozen=True)
class EnvInterface:
    """Spaces, specs and metadata of an environment, known before its first reset."""

    task: TaskConfig
    description: dict[str, Any]
    observation_space: gym.spaces.Dict
    action_space: gym.spaces.Box
    observation_spec: ObservationSpec
    action_spec: ActionSpec

    @classmethod
    def of(cls, env: TaskEnv) -> "EnvInterface":
        assert isinstance(env.observation_space, gym.spaces.Dict)
        assert isinstance(env.action_space, gym.spaces.Box)
        return cls(
            env.task,
            env.describe(),
            env.observation_space,
            env.action_space,
            env.observation_spec,
            env.action_spec,
        )


@dataclass(frozen=True)
class StepBuffers:
    """Actions and results of the last step of N environments, one row each."""

    action: np.ndarray
    """float32 [N, A], checked and clipped."""
    reward: np.ndarray
    """float32 [N]."""
    terminated: np.ndarray
    """bool [N], as are the next two."""
    truncated: np.ndarray
    success: np.ndarray
    draw: np.ndarray
    """Whether the next step draws the cameras, bool [N]."""
    obs: Observation
    """By key, [N, …]."""

    @classmethod
    def in_memory(cls, memory: Any, interface: EnvInterface, num: int) -> "StepBuffers":
        """The step buffers of `num` environments in a memory of `buffer_bytes` bytes."""
        arrays: dict[str, np.ndarray] = {}
        start = 0
        for name, shape, dtype in _arrays(interface, num):
            arrays[name] = np.ndarray(shape, dtype, memory, start)
            start += _padded(arrays[name].nbytes)
        flags = {
            name: arrays.pop(name)
            for name in ("action", "reward", "terminated", "truncated", "success", "draw")
        }
        return cls(**flags, obs=arrays)


def buffer_bytes(interface: EnvInterface, num: int) -> int:
    """Size in bytes of the step buffers of `num` environments."""
    return sum(
        _padded(int(np.prod(shape)) * np.dtype(dtype).itemsize) for _, shape, dtype in _arrays(interface, num)
    )


def _arrays(interface: EnvInterface, num: int) -> list[tuple[str, tuple[int, ...], DTypeLike]]:
    assert interface.action_space.shape is not None
    return [
        ("action", (num, *interface.action_space.shape), np.float32),
        ("reward", (num,), np.float32),
        *((name, (num,), np.bool_) for name in ("terminated", "truncated", "success", "draw")),
        *(
            (key, (num, *(space.shape or ())), np.dtype(space.dtype))
            for key, space in interface.observation_space.spaces.items()
        ),
    ]


def _padded(size: int) -> int:
    return -(-size // _ALIGNMENT) * _ALIGNMENT


class EnvGroup:
    """Some environments of a vector environment, by index: all of them, or those of one process."""

    buffers: StepBuffers
    """Of the whole vector environment. Set it before the first reset."""

    def __init__(self, env_fns: Mapping[int, EnvFactory]) -> None:
        self.envs = {index: env_fn() for index, env_fn in env_fns.items()}

    def interface(self) -> EnvInterface:
        return EnvInterface.of(next(iter(self.envs.values())))

    def step(self, indices: Iterable[int] | None = None) -> None:
        """Step these environments, or all, with the actions in the buffers."""
        for index in self.envs if indices is None else indices:
            env = self.envs[index]
            env.draw_images = bool(self.buffers.draw[index])
            self.write_step(index, env.step(self.buffers.action[index]))

    def write_step(self, index: int, step: Step) -> None:
        """Write the result of an environment's step to the buffers."""
        buffers = self.buffers
        obs, buffers.reward[index], buffers.terminated[index], buffers.truncated[index], info = step
        buffers.success[index] = info["success"]
        self._write_observation(index, obs)

    def reset(self, starts: Mapping[int, EpisodeStart]) -> None:
        """Begin an episode in each of these environments."""
        for index, (seed, state) in starts.items():
            obs, _ = self.envs[index].reset(seed=seed, options={"state": state})
            self._write_observation(index, obs)

    def get_states(self) -> dict[int, np.ndarray]:
        return {index: env.get_state() for index, env in self.envs.items()}

    def set_states(self, states: Mapping[int, np.ndarray]) -> None:
        for index, state in states.items():
            self._write_observation(index, self.envs[index].set_state(state))

    def close(self) -> None:
        for env in self.envs.values():
            env.close()

    def _write_observation(self, index: int, obs: Observation) -> None:
        for key, value in obs.items():
            self.buffers.obs[key][index] = value
