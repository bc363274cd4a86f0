"""Collects episodes of a scripted expert or a policy in workers on a Ray cluster."""

import heapq
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from types import ModuleType
from typing import TYPE_CHECKING, Final

from robot_rl.data.simulated_episodes import CollectorOptions, SimulatedEpisode
from robot_rl.errors import UserError
from robot_rl.hardware.plugins import inherited_plugins
from robot_rl.launchers.ray_nodes import connect
from robot_rl.launchers.software import installed_software
from robot_rl.workers.config import SimulationsConfig
from robot_rl.workers.node import prepare_worker
from robot_rl.workers.start import say, wait_for_first, worker_result

if TYPE_CHECKING:
    from ray import ObjectRef
    from ray.actor import ActorHandle

_HANGS = 300.0
"""s without an answer after which a worker counts as lost; an episode takes seconds."""
_POLL: Final = 0.2
"""s between two checks for workers that hang."""
_MOST_FAILURES: Final = 5
"""Workers in a row that are lost before any of them has finished an episode."""


@dataclass(frozen=True)
class EpisodeJob:
    """What a worker collects, and with what."""

    options: CollectorOptions
    plugins: Sequence[str]
    """Names of modules to import."""
    software: Mapping[str, str]
    """What the command's machine has installed, as `installed_software` says."""


class EpisodeWorker:
    """Ray actor that collects episodes by their numbers."""

    def build(self, job: EpisodeJob) -> None:
        """Create the environment. Raises ValueError if this machine cannot."""
        prepare_worker(job.options.task, job.plugins, job.software)
        self._collector = job.options.collector()

    def collect(self, number: int) -> SimulatedEpisode:
        return self._collector.collect(number)


@dataclass(eq=False)
class _Worker:
    actor: "ActorHandle"
    number: int | None = None
    """Episode that it collects; None until it has started."""
    since: float = 0.0
    """Time at which it was asked for the episode, s."""


class EpisodePool:
    """Workers that collect episodes, each with one core of the cluster.

    An episode depends on its number alone, so one whose worker is lost is collected again with the same
    result. Workers for which there is no free core wait for one; the others collect meanwhile.

    Args:
        ray: the module, connected to a cluster.
        job: what they collect.
        count: number of workers.
    """

    def __init__(self, ray: ModuleType, job: EpisodeJob, count: int) -> None:
        self._ray, self._remote = ray, ray.remote(num_cpus=1, max_restarts=0)(EpisodeWorker)
        self._job, self._count = ray.put(job), count
        self._answers: dict[ObjectRef, _Worker] = {}
        """In the order in which they were asked for."""
        self._idle: list[_Worker] = []
        self._failures = 0

    def start(self) -> None:
        """Start the workers, and wait for the first.

        Raises:
            UserError: if it cannot start.
        """
        for _ in range(self._count):
            self._add()
        wait_for_first(self._ray, list(self._answers), "collect")

    def episodes(self, numbers: range) -> Iterator[SimulatedEpisode]:
        """The episodes of these numbers, in this order.

        Raises:
            UserError: if workers are lost again and again.
        """
        wanted = list(numbers)
        done: dict[int, SimulatedEpisode] = {}
        for due in numbers:
            while due not in done:
                # What is done early waits in memory, so nobody gets far ahead.
                while self._idle and wanted and wanted[0] < due + 2 * self._count:
                    self._ask(self._idle.pop(), heapq.heappop(wanted))
                self._take(wanted, done)
            yield done.pop(due)

    def close(self) -> None:
        """End all workers."""
        for worker in [*self._answers.values(), *self._idle]:
            self._ray.kill(worker.actor)
        self._answers, self._idle = {}, []

    def _add(self) -> None:
        actor = self._remote.remote()
        self._answers[actor.build.remote(self._job)] = _Worker(actor)

    def _ask(self, worker: _Worker, number: int) -> None:
        worker.number, worker.since = number, time.monotonic()
        self._answers[worker.actor.collect.remote(number)] = worker

    def _take(self, wanted: list[int], done: dict[int, SimulatedEpisode]) -> None:
        """Move the next answer to `done`; the number of one whose worker is lost goes back to `wanted`."""
        ready, _ = self._ray.wait(list(self._answers), num_returns=1, timeout=_POLL)
        for answer in ready:
            worker = self._answers.pop(answer)
            try:
                episode: SimulatedEpisode | None = worker_result(self._ray, answer, "collect")
            except self._ray.exceptions.RayError:
                self._replace(worker, "is lost", wanted)
                continue
            self._idle.append(worker)
            if worker.number is not None and episode:
                done[worker.number] = episode
                self._failures = 0
        for answer, worker in list(self._answers.items()):
            late = worker.number is not None and time.monotonic() - worker.since > _HANGS
            # It may have answered while this process wrote other episodes, or was stopped.
            if late and not self._ray.wait([answer], timeout=0)[0]:
                del self._answers[answer]
                self._replace(worker, "hangs", wanted)

    def _replace(self, worker: _Worker, what: str, wanted: list[int]) -> None:
        say(f"one {what}; another one collects its episode again")
        self._failures += 1
        if self._failures >= _MOST_FAILURES:
            raise UserError(
                f"{self._failures} workers in a row were lost; the same command adds the missing episodes"
            )
        self._ray.kill(worker.actor)
        if worker.number is not None:
            heapq.heappush(wanted, worker.number)
        self._add()


def cluster_episodes(
    config: SimulationsConfig, options: CollectorOptions, numbers: range, closing: ExitStack
) -> Iterator[SimulatedEpisode]:
    """Connect to a cluster until `closing` is closed, and return the episodes of these numbers in order.

    Raises:
        UserError: see `connect` and `EpisodePool`.
    """
    ray = connect("workers=ray")
    closing.callback(ray.shutdown)
    job = EpisodeJob(options, inherited_plugins(), installed_software())
    pool = EpisodePool(ray, job, min(config.count, len(numbers)))
    closing.callback(pool.close)
    pool.start()
    return pool.episodes(numbers)
