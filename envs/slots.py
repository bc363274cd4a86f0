"""The slots of a vector environment: their environments, and the arrays in which a step takes place.

Threads and processes step alike: the actions are written into rows, whoever has a slot's environment
steps it and writes the row of what came of it. Threads share the arrays anyway; processes map them.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import gymnasium as gym
import numpy as np
from numpy.typing import DTypeLike

from robot_rl.envs.action import ActionSpec
from robot_rl.envs.observation import Observation, ObservationSpec
from robot_rl.envs.robosuite_env import RobosuiteEnv, Step
from robot_rl.envs.task import TaskConfig

Maker = Callable[[], RobosuiteEnv]
Start = tuple[int | None, np.ndarray | None]
"""How an episode begins: a seed, a saved state, or neither."""

_ALIGNMENT = 64


@dataclass(frozen=True)
class Interface:
    """What an environment tells of itself before it is used."""

    task: TaskConfig
    description: dict[str, Any]
    observation_space: gym.spaces.Dict
    action_space: gym.spaces.Box
    observation_spec: ObservationSpec
    action_spec: ActionSpec

    @classmethod
    def of(cls, env: RobosuiteEnv) -> "Interface":
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
class Rows:
    """What went into the last step of N slots and what came of it: a row for each slot."""

    action: np.ndarray
    """float32 [N, A], checked and clipped."""
    reward: np.ndarray
    """float32 [N]."""
    terminated: np.ndarray
    """bool [N], as are the next two."""
    truncated: np.ndarray
    success: np.ndarray
    obs: Observation
    """By key, [N, …]."""

    @classmethod
    def within(cls, memory: Any, interface: Interface, num: int) -> "Rows":
        """The rows of `num` slots in a buffer of `row_bytes` bytes that is theirs."""
        arrays: dict[str, np.ndarray] = {}
        start = 0
        for name, shape, dtype in _arrays(interface, num):
            arrays[name] = np.ndarray(shape, dtype, memory, start)
            start += _padded(arrays[name].nbytes)
        flags = {
            name: arrays.pop(name) for name in ("action", "reward", "terminated", "truncated", "success")
        }
        return cls(**flags, obs=arrays)


def row_bytes(interface: Interface, num: int) -> int:
    """Size of the buffer for the rows of `num` slots."""
    return sum(
        _padded(int(np.prod(shape)) * np.dtype(dtype).itemsize) for _, shape, dtype in _arrays(interface, num)
    )


def _arrays(interface: Interface, num: int) -> list[tuple[str, tuple[int, ...], DTypeLike]]:
    assert interface.action_space.shape is not None
    return [
        ("action", (num, *interface.action_space.shape), np.float32),
        ("reward", (num,), np.float32),
        *((name, (num,), np.bool_) for name in ("terminated", "truncated", "success")),
        *(
            (key, (num, *(space.shape or ())), np.dtype(space.dtype))
            for key, space in interface.observation_space.spaces.items()
        ),
    ]


def _padded(size: int) -> int:
    return -(-size // _ALIGNMENT) * _ALIGNMENT


class Slots:
    """Some of a vector environment's slots, by number: all of them, or those of one process."""

    rows: Rows
    """Set before anything else is asked for."""

    def __init__(self, makers: Mapping[int, Maker]) -> None:
        self.envs = {slot: make() for slot, make in makers.items()}

    def interface(self) -> Interface:
        return Interface.of(next(iter(self.envs.values())))

    def step(self, slots: Iterable[int] | None = None) -> None:
        """Apply the actions in the rows of these slots, or of all."""
        for slot in self.envs if slots is None else slots:
            self.stepped(slot, self.envs[slot].step(self.rows.action[slot]))

    def stepped(self, slot: int, step: Step) -> None:
        """Write what a step returned into the slot's rows."""
        rows = self.rows
        obs, rows.reward[slot], rows.terminated[slot], rows.truncated[slot], info = step
        rows.success[slot] = info["success"]
        self._observed(slot, obs)

    def reset(self, starts: Mapping[int, Start]) -> None:
        """Begin an episode in each of these slots."""
        for slot, (seed, state) in starts.items():
            self._observed(slot, self.envs[slot].reset(seed=seed, options={"state": state})[0])

    def get_states(self) -> dict[int, np.ndarray]:
        return {slot: env.get_state() for slot, env in self.envs.items()}

    def set_states(self, states: Mapping[int, np.ndarray]) -> None:
        for slot, state in states.items():
            self._observed(slot, self.envs[slot].set_state(state))

    def close(self) -> None:
        for env in self.envs.values():
            env.close()

    def _observed(self, slot: int, obs: Observation) -> None:
        for key, value in obs.items():
            self.rows.obs[key][slot] = value
