"""Keeps workers collecting on a Ray cluster: each has one order at a time; lost ones are replaced."""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from types import ModuleType
from typing import TYPE_CHECKING, Final

from robot_rl.errors import UserError
from robot_rl.workers.collector import Collected, Collector, CollectorJob
from robot_rl.workers.start import say, wait_for_first, worker_result

if TYPE_CHECKING:
    from ray import ObjectRef
    from ray.actor import ActorHandle

_HANGS = 60.0
"""s without an answer to an order after which a worker counts as lost."""
_POLL: Final = 0.2
"""s that `next` waits at most."""
_MOST_FAILURES: Final = 5
"""Workers in a row that are lost before any of them has collected something."""


@dataclass(frozen=True)
class Order:
    """What a worker is to do next; see `Collector.collect`."""

    weights: "ObjectRef"
    active: bool
    begin: int | None
    updates: int
    """Updates of the learner from which the weights come."""


@dataclass(eq=False)
class Worker:
    """One worker, and the streams of the replay that its environments fill."""

    streams: Sequence[int]
    order: Order | None = None
    """What it does; None until it has started."""
    since: float = field(default_factory=time.monotonic)
    """Time of its order, s."""


class CollectorPool:
    """Workers that collect steps of their environments, each with one core of the cluster.

    Those for which there is no free core wait for one; the others collect meanwhile.
    """

    def __init__(self, ray: ModuleType, job: CollectorJob, streams: Sequence[Sequence[int]]) -> None:
        """Start a worker for each of these parts of the replay's streams, and wait for the first.

        Raises:
            UserError: if none can start.
        """
        self._ray, self._remote = ray, ray.remote(num_cpus=1, max_restarts=0)(Collector)
        self.workers = [Worker(share) for share in streams]
        self._job = ray.put(job)
        self._actors: dict[Worker, ActorHandle] = {}
        self._answers: dict[ObjectRef, Worker] = {}
        """In the order in which they were asked for."""
        self._failures = 0
        self.lost = 0
        """Workers that were lost so far."""
        self._lags: list[float] = []
        for worker in self.workers:
            self._start(worker)
        try:
            wait_for_first(ray, list(self._answers), "collect")
        except BaseException:
            self.close()
            raise

    def next(
        self, order: Callable[[Worker], Order], lost: Callable[[Worker], None]
    ) -> "tuple[Worker, Order, Collected] | None":
        """What the worker has collected that has waited longest, with its order; it gets its next one.

        Args:
            order: makes the next order of a worker; one that has `order` None begins its episodes.
            lost: is called with each worker that is lost, whose episodes end.

        Returns:
            None if none has finished within 0.2 s.

        Raises:
            UserError: if workers are lost again and again.
        """
        ready, _ = self._ray.wait(list(self._answers), num_returns=1, timeout=_POLL)
        # First, since another worker nearly always has something.
        self._replace_hanging(lost)
        for answer in ready:
            worker = self._answers.pop(answer)
            try:
                # None to `build`.
                collected: Collected | None = worker_result(self._ray, answer, "collect")
            except self._ray.exceptions.RayError:
                self._replace(worker, "is lost", lost)
                continue
            done, answered = worker.order, time.monotonic() - worker.since
            self._send(worker, order(worker))
            if done and collected:
                self._failures = 0
                self._lags.append(1000 * (answered - collected.seconds))
                return worker, done, collected
        return None

    def lag_ms(self) -> float:
        """Least time since the last call from sending weights to having their steps, besides the steps, ms.

        The others include waiting for the learner.
        """
        least, self._lags = min(self._lags, default=0.0), []
        return least

    def close(self) -> None:
        """End all workers."""
        for actor in self._actors.values():
            self._ray.kill(actor)
        self._actors, self._answers = {}, {}

    def _start(self, worker: Worker) -> None:
        actor = self._actors[worker] = self._remote.remote()
        worker.order = None
        self._answers[actor.build.remote(self._job, len(worker.streams))] = worker

    def _send(self, worker: Worker, order: Order) -> None:
        worker.order, worker.since = order, time.monotonic()
        answer = self._actors[worker].collect.remote(order.weights, order.active, order.begin)
        self._answers[answer] = worker

    def _replace_hanging(self, lost: Callable[[Worker], None]) -> None:
        for answer, worker in list(self._answers.items()):
            if worker.order and time.monotonic() - worker.since > _HANGS and not self._is_ready(answer):
                del self._answers[answer]
                self._replace(worker, "hangs", lost)

    def _replace(self, worker: Worker, what: str, lost: Callable[[Worker], None]) -> None:
        say(f"one {what}; another one takes its place")
        self.lost += 1
        self._failures += 1
        if self._failures >= _MOST_FAILURES:
            raise UserError(f"{self._failures} workers in a row were lost; the run is saved up to here")
        self._ray.kill(self._actors[worker])
        if worker.order:
            lost(worker)
        self._start(worker)

    def _is_ready(self, answer: "ObjectRef") -> bool:
        return bool(self._ray.wait([answer], timeout=0)[0])
