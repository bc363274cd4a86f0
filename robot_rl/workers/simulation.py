"""What a worker of a `RayVectorEnv` runs: some environments, without a policy."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np

from robot_rl.envs.env_group import EnvGroup, EnvInterface, EpisodeStart, StepBuffers, buffer_bytes
from robot_rl.envs.robosuite_env import RobosuiteEnv
from robot_rl.envs.task import TaskConfig
from robot_rl.workers.node import prepare_worker


@dataclass(frozen=True)
class SimulationJob:
    """What a worker simulates, and with what."""

    task: TaskConfig
    count: int
    """Number of environments."""
    plugins: Sequence[str]
    """Names of modules to import."""
    software: Mapping[str, str]
    """What the learner's machine has installed, as `installed_software` says."""


@dataclass
class EpisodeRecord:
    """Everything that led to the present state of an environment."""

    start: EpisodeStart
    state: np.ndarray | None = None
    """Saved state from which it was continued after the start."""
    actions: list[np.ndarray] = field(default_factory=list)
    """Actions [A] since then."""


class Simulation:
    """Ray actor that steps environments, by their indices 0 to M - 1."""

    def build(self, job: SimulationJob) -> EnvInterface:
        """Create the environments.

        Raises:
            ValueError: if this machine cannot.
        """
        prepare_worker(job.task, job.plugins, job.software)
        self._group = EnvGroup(dict.fromkeys(range(job.count), partial(RobosuiteEnv, job.task)))
        interface = self._group.interface()
        memory = bytearray(buffer_bytes(interface, job.count))
        self._group.buffers = StepBuffers.in_memory(memory, interface, job.count)
        return interface

    def step(self, action: np.ndarray, draw: np.ndarray) -> StepBuffers:
        """Step all with the actions [M, A]; cameras are drawn where `draw` [M] is set."""
        buffers = self._group.buffers
        buffers.action[:], buffers.draw[:] = action, draw
        self._group.step()
        return buffers

    def reset(self, starts: Mapping[int, EpisodeStart]) -> StepBuffers:
        """Begin an episode in each of these environments."""
        self._group.reset(starts)
        return self._group.buffers

    def set_states(self, states: Mapping[int, np.ndarray]) -> StepBuffers:
        """Continue these environments from saved states."""
        self._group.set_states(states)
        return self._group.buffers

    def get_states(self) -> dict[int, np.ndarray]:
        """Full simulator state of every environment."""
        return self._group.get_states()

    def resume(self, episodes: Mapping[int, EpisodeRecord], method: str, *arguments: Any) -> Any:
        """Continue for a worker that was lost, with the same bits, after `build`.

        Args:
            episodes: what happened to its environments.
            method: the call that it did not answer, a name in this class.
            arguments: of that call.
        """
        group = self._group
        for index, episode in episodes.items():
            group.reset({index: episode.start})
            if episode.state is not None:
                group.set_states({index: episode.state})
            group.buffers.draw[index] = False
            for action in episode.actions:
                group.buffers.action[index] = action
                group.step([index])
        return getattr(self, method)(*arguments)
