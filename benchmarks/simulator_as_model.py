"""Trains with the simulator itself as the world model: shows what a perfect model would gain.

Each real state is kept with the simulator's full state, from which imagined chunks are stepped. The
options are those of `robot-rl train`, with data=… that was collected in simulation.

    python benchmarks/simulator_as_model.py imagination=state task=can data=data/can.zarr … name=exact
"""

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
import zarr
from numpy.typing import NDArray
from torch import Tensor

from robot_rl.cli.main import main
from robot_rl.envs.robosuite_env import RobosuiteEnv
from robot_rl.envs.robot_task import RobotTask
from robot_rl.envs.vector import TaskVectorEnv
from robot_rl.imagination.config import ImaginationConfig
from robot_rl.imagination.episodes import Episode
from robot_rl.imagination.layout import Layout
from robot_rl.imagination.world_model import ChunkStart, Prediction
from robot_rl.methods.method import AgentContext
from robot_rl.training import build_imagination

_IMAGINED = 4096
"""Imagined states that are kept, from which longer branches go on."""


class Simulated:
    """A world model that steps the simulator from the states that it has seen."""

    members = 1
    resumable = True

    def __init__(self, envs: TaskVectorEnv, demonstrations: NDArray[np.float64]) -> None:
        self._env = RobosuiteEnv(envs.task)
        self._env.reset(seed=0)
        self.scale = torch.ones(envs.observation_spec.state_size)
        self._real: dict[bytes, NDArray[np.float64]] = {}
        self._imagined: dict[bytes, NDArray[np.float64]] = {}
        for state in demonstrations:
            self._real[_key(self._env.set_state(state)["state"])] = state
        self._record(envs)

    def _record(self, envs: TaskVectorEnv) -> None:
        """Keep the simulator's state at every step of the run's environments."""
        step, reset = envs.step, envs.reset

        def keep(result: Any) -> Any:
            self._real |= zip(map(_key, result[0]["state"]), envs.get_states(), strict=True)
            return result

        envs.step = lambda actions: keep(step(actions))  # type: ignore[method-assign]
        envs.reset = lambda **options: keep(reset(**options))  # type: ignore[method-assign]

    def fit(self, episodes: Sequence[Episode], newest: int, updates: int) -> dict[str, float]:
        self.scale = torch.cat([episode.states for episode in episodes]).std(0).clamp(min=1e-3)
        return {}

    def step(
        self, start: ChunkStart, chunk: Tensor, member: Tensor, length: Tensor | None = None
    ) -> Prediction:
        count, h = chunk.shape[:2]
        states, success = torch.zeros(count, h, len(self.scale)), torch.zeros(count, h)
        starts = [self._state(frame) for frame in start.frames[:, -1].numpy()]
        if len(self._imagined) > _IMAGINED:
            self._imagined = {}
        for row, begin in enumerate(starts):
            obs, succeeded = self._env.set_state(begin), False
            for at in range(h):
                if not succeeded and (length is None or at < length[row]):
                    obs, _, succeeded, _, _ = self._env.step(chunk[row, at].numpy())
                states[row, at], success[row, at] = torch.from_numpy(obs["state"]), float(succeeded)
            self._imagined[_key(obs["state"])] = self._env.get_state()
        return Prediction(states, success, success, torch.zeros(count, len(self.scale)))

    def _state(self, frame: NDArray[np.float32]) -> NDArray[np.float64]:
        key = _key(frame)
        return self._real[key] if key in self._real else self._imagined[key]

    def checkpoint(self) -> dict[str, Any]:
        return {"scale": self.scale}

    def restore(self, state: Mapping[str, Any]) -> None:
        self.scale = state["scale"]


def _key(state: NDArray[np.float32]) -> bytes:
    return np.round(state, 4).astype(np.float32).tobytes()


def build(
    config: ImaginationConfig,
    context: AgentContext,
    envs: TaskVectorEnv | RobotTask,
    layout: Layout,
    chunk: int,
    accept: tuple[str, ...],
) -> Simulated:
    """Replaces the function of this package that makes the model of a run."""
    assert isinstance(envs, TaskVectorEnv)
    (data,) = (argument.removeprefix("data=") for argument in sys.argv if argument.startswith("data="))
    return Simulated(envs, zarr.open_group(Path(data), mode="r")["data/sim_state"][:])


if __name__ == "__main__":
    build_imagination._build_world_model = build
    sys.argv.insert(1, "train")
    sys.exit(main())
