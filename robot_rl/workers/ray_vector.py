"""A vector environment whose environments are stepped by workers on a Ray cluster."""

from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, fields
from functools import partial
from types import ModuleType
from typing import TYPE_CHECKING, Any

import numpy as np

from robot_rl.envs.env_group import EnvInterface, EpisodeStart, StepBuffers
from robot_rl.envs.task import TaskConfig
from robot_rl.envs.vector import TaskVectorEnv
from robot_rl.errors import UserError
from robot_rl.hardware.plugins import inherited_plugins
from robot_rl.launchers.ray_nodes import connect
from robot_rl.launchers.software import installed_software
from robot_rl.workers.config import SimulationsConfig
from robot_rl.workers.simulation import EpisodeRecord, Simulation, SimulationJob
from robot_rl.workers.start import lost_at_start, say, wait_for_start, worker_result

if TYPE_CHECKING:
    from ray import ObjectRef
    from ray.actor import ActorHandle

_HANGS = 60.0
"""s without an answer after which a worker counts as lost."""
_REPEATS = 0.1
"""s that a worker may take to repeat a step of the one before it, several times what it takes."""
_ATTEMPTS = 5
"""Workers in a row that may be lost in one call."""


@dataclass(eq=False)
class _Worker:
    """A worker, and the environments that it steps."""

    indices: Sequence[int]
    actor: "ActorHandle"


class RayVectorEnv(TaskVectorEnv):
    """N environments in workers on a Ray cluster, stepped together with one call to each worker.

    Results are those of `ThreadVectorEnv`, to the bit on processors of the same kind, and depend neither on
    the number of workers nor on their deaths. A worker that dies or hangs is replaced by one on a free core,
    which begins its episodes again from their seeds and takes the same actions: the loss costs only time.

    Args:
        ray: the module, connected to a cluster.
        task: task of the environments.
        num_envs: number of environments.
        workers: maximum number of workers.

    Raises:
        UserError: if the cluster has too few cores, or a worker cannot make its environments.
    """

    def __init__(self, ray: ModuleType, task: TaskConfig, num_envs: int, workers: int) -> None:
        self._ray, self._task = ray, task
        self._remote = ray.remote(num_cpus=1, max_restarts=0)(Simulation)
        shares = np.array_split(np.arange(num_envs), min(workers, num_envs))
        if (cores := int(ray.cluster_resources().get("CPU", 0))) < len(shares):
            raise UserError(f"workers.count={workers}: the cluster has {cores} cores, one for each worker")
        self._workers = [_Worker(share.tolist(), self._remote.remote()) for share in shares]
        self._episodes: dict[int, EpisodeRecord] = {}
        try:
            interface = self._start()
        except BaseException:
            self.close_extras()
            raise
        super().__init__(num_envs, interface)

    def get_states(self) -> list[np.ndarray]:
        answers = self._ask(dict.fromkeys(self._workers, ("get_states",)))
        return [states[at] for states in answers.values() for at in sorted(states)]

    def close_extras(self, **kwargs: Any) -> None:
        for worker in self._workers:
            self._ray.kill(worker.actor)
        self._workers = []

    def _reset_envs(self, starts: Mapping[int, EpisodeStart]) -> None:
        assert all(seed is not None or state is not None for seed, state in starts.values()), (
            "an episode that cannot be repeated"
        )
        self._scatter("reset", starts)
        self._episodes |= {index: EpisodeRecord(start) for index, start in starts.items()}

    def _step_envs(self) -> None:
        buffers = self._buffers
        calls = {w: ("step", buffers.action[w.indices], buffers.draw[w.indices]) for w in self._workers}
        for worker, result in self._ask(calls).items():
            self._write(worker, result, range(len(worker.indices)))
        for index, episode in self._episodes.items():
            episode.actions.append(buffers.action[index].copy())

    def _set_env_states(self, states: Mapping[int, np.ndarray]) -> None:
        self._scatter("set_states", states)
        for index, state in states.items():
            self._episodes[index] = EpisodeRecord(self._episodes[index].start, state)

    def _scatter(self, method: str, arguments: Mapping[int, Any]) -> None:
        """Give each worker the arguments of its environments, if any, and take what they observe."""
        shares = {
            worker: {at: arguments[index] for at, index in enumerate(worker.indices) if index in arguments}
            for worker in self._workers
        }
        answers = self._ask({worker: (method, share) for worker, share in shares.items() if share})
        for worker, result in answers.items():
            self._write(worker, result, list(shares[worker]))

    def _write(self, worker: _Worker, result: StepBuffers, places: Sequence[int]) -> None:
        """Write the results of some of a worker's environments, by their places in it, to the buffers."""
        at = [worker.indices[place] for place in places]
        for field in fields(StepBuffers):
            if field.name not in ("action", "draw", "obs"):
                getattr(self._buffers, field.name)[at] = getattr(result, field.name)[places]
        for key, value in result.obs.items():
            self._buffers.obs[key][at] = value[places]

    def _start(self) -> EnvInterface:
        """Let all workers build their environments."""
        answers = [self._send(worker, "build", self._job(worker)) for worker in self._workers]
        for answer in answers:
            wait_for_start(self._ray, [answer])
        try:
            interfaces: list[EnvInterface] = [self._result(answer) for answer in answers]
        except self._ray.exceptions.RayError as error:
            raise lost_at_start(self._ray, error) from error
        return interfaces[0]

    def _ask(self, calls: Mapping[_Worker, tuple[Any, ...]]) -> dict[_Worker, Any]:
        """Call a method of several workers, and return all answers."""
        sent = {worker: self._send(worker, *call) for worker, call in calls.items()}
        return {worker: self._answer(worker, sent[worker], calls[worker]) for worker in calls}

    def _send(self, worker: _Worker, method: str, *arguments: Any) -> "ObjectRef":
        return getattr(worker.actor, method).remote(*arguments)

    def _answer(self, worker: _Worker, answer: "ObjectRef", call: tuple[Any, ...]) -> Any:
        patience = _HANGS
        for attempt in range(_ATTEMPTS):
            try:
                if attempt:
                    answer, patience = self._restart(worker, call)
                return self._result(answer, patience)
            except self._ray.exceptions.RayError as error:
                hangs = isinstance(error, self._ray.exceptions.GetTimeoutError)
                say(f"one {'hangs' if hangs else 'is lost'}; another one repeats its episodes")
        raise UserError(
            f"{_ATTEMPTS} workers in a row were lost; the same command goes on from the last checkpoint"
        )

    def _result(self, answer: "ObjectRef", patience: float = _HANGS) -> Any:
        """The result of a call; raises RayError if its worker is lost, or has not answered after s."""
        return worker_result(self._ray, answer, "simulate this task", patience)

    def _restart(self, worker: _Worker, call: tuple[Any, ...]) -> "tuple[ObjectRef, float]":
        """Start another worker in the place of a lost one, for a call that was not answered.

        Returns:
            What the call returns, and how long it may take, s.
        """
        self._ray.kill(worker.actor)
        worker.actor = self._remote.remote()
        places = enumerate(worker.indices)
        records = {at: self._episodes[index] for at, index in places if index in self._episodes}
        built = self._send(worker, "build", self._job(worker))
        wait_for_start(self._ray, [built])
        self._result(built)
        steps = sum(len(record.actions) for record in records.values())
        return self._send(worker, "resume", records, *call), _HANGS + steps * _REPEATS

    def _job(self, worker: _Worker) -> SimulationJob:
        return SimulationJob(self._task, len(worker.indices), inherited_plugins(), installed_software())


def cluster_envs(config: SimulationsConfig, closing: ExitStack) -> Callable[[TaskConfig, int], TaskVectorEnv]:
    """Connect to a cluster until `closing` is closed, and return what makes environments there.

    Raises:
        UserError: see `connect`.
    """
    ray = connect("workers=ray")
    closing.callback(ray.shutdown)
    return partial(RayVectorEnv, ray, workers=config.count)
