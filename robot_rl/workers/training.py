"""Off-policy training from workers that act with copies of the policy, while the learner updates it."""

import copy
import time
from collections.abc import Sequence
from contextlib import closing
from dataclasses import replace
from types import ModuleType
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from robot_rl.errors import UserError
from robot_rl.hardware.plugins import inherited_plugins
from robot_rl.launchers.software import installed_software
from robot_rl.methods.method import OffPolicyMethod
from robot_rl.rollout import episode_seed
from robot_rl.training.components import OffPolicyComponents
from robot_rl.training.context import RunInputs
from robot_rl.training.loop import Intervals, Run, check_reward, is_due, restore_run
from robot_rl.training.rollout import RECENT, StoredStep
from robot_rl.training.updater import Updater
from robot_rl.workers.collector import Collected, CollectorJob, Weights
from robot_rl.workers.config import WorkersConfig
from robot_rl.workers.pool import CollectorPool, Order, Worker

if TYPE_CHECKING:
    from ray import ObjectRef

_BURST: Final = 32
"""Updates between two checks of whether the user asked to stop."""
_ARRAYS: Final = ("action", "reward", "terminated", "success", "ended")


def train_with_workers(
    method: OffPolicyMethod,
    components: OffPolicyComponents,
    inputs: RunInputs,
    config: WorkersConfig,
    intervals: Intervals,
    run: Run,
) -> bool:
    """Learn from the steps of workers. Returns True when all steps are done, False when stopped.

    The learner takes what a worker has collected only once it has made the updates of all earlier steps, so
    the ratio of updates to environment steps is exact, and workers that are faster wait. Each worker fills
    its own streams of the replay. This process is connected to a cluster.
    """
    import ray

    training = WorkerTraining(method, components, inputs, config, intervals, run, ray)
    with closing(training):
        return training.train()


class WorkerTraining:
    """Training loop with workers that are not in lockstep."""

    def __init__(
        self,
        method: OffPolicyMethod,
        components: OffPolicyComponents,
        inputs: RunInputs,
        config: WorkersConfig,
        intervals: Intervals,
        run: Run,
        ray: ModuleType,
    ) -> None:
        """Start workers, and continue from the run's newest checkpoint.

        Raises:
            UserError: if no worker can start.
        """
        self._ray, self._config, self._intervals, self._run = ray, config, intervals, run
        self._seed, self._warmup = inputs.seed, method.config.warmup_steps
        self._updater = Updater(method.config, components, run)
        self._networks = components.agent.networks
        self._base = {name: value.clone() for name, value in self._networks.base.state_dict().items()}
        total = components.replay.streams
        shares = [share.tolist() for share in np.array_split(np.arange(total), min(config.count, total))]
        # With the networks as they are before a checkpoint is loaded.
        job = _job(method, components, inputs)
        self._step = self._updates = self._begun = self._dropped = 0
        self._outcomes: list[float] = []
        self._ages: list[int] = []
        self._storing = self._stored = 0
        """Since the last row of metrics: ns in which steps were stored, and their number."""
        self._weights: tuple[int, ObjectRef] | None = None
        """Updates after which the newest weights were sent, and where they are."""
        if state := restore_run(run, self._updater.base):
            self._updater.load_state_dict(state)
            self._step, self._updates, self._begun = state["step"], state["updates"], state["begun"]
            self._outcomes, self._dropped = state["outcomes"], state["dropped"]
            # Its workers, and where they were in their episodes, are gone.
            self._cut(range(total))
        self._pool = CollectorPool(ray, job, shares)

    def train(self) -> bool:
        """Train until all steps are done (True) or the run is stopped (False)."""
        run, updater, total = self._run, self._updater, self._intervals.total
        failed: UserError | None = None
        was_last = self._step >= total
        if was_last and not updater.is_behind(self._step):
            return True
        if was_last:
            self._learn(None)
        updater.evaluate_and_snapshot(self._intervals, self._step)
        while self._step < total and not run.stop() and not updater.lost:
            before = self._step
            if updater.pending < 1:
                try:
                    found = self._pool.next(self._order, lambda worker: self._cut(worker.streams))
                except UserError as error:
                    failed = error
                    break
                if found:
                    self._take(*found)
            self._learn(_BURST if self._step < total else None)
            self._after(before)
        self._save(replace=was_last)
        if reason := failed or updater.lost:
            raise reason
        return self._step >= total

    def close(self) -> None:
        """End the workers."""
        self._pool.close()

    # ---- the workers -------------------------------------------------------------------------------------

    def _order(self, worker: Worker) -> Order:
        """Let a worker act with the newest weights; a new one, and a stale one, begins new episodes."""
        if self._weights is None or self._weights[0] < self._updates:
            changed = self._networks.weights_besides(self._base)
            tensors = {name: value.detach().cpu().numpy().copy() for name, value in changed.items()}
            self._weights = self._updates, self._ray.put(Weights(self._updates, tensors))
        begin = None
        if worker.order is None or self._is_stale(worker.order):
            begin = episode_seed(self._seed, "worker", self._begun)
            self._begun += 1
        active = self._updater.learner.warmed_up and self._step >= self._warmup
        return Order(self._weights[1], active, begin, self._updates)

    def _is_stale(self, order: Order) -> bool:
        """Whether the weights of an order are too old by now; those of the base do not age."""
        return order.active and self._updates - order.updates > self._config.max_age

    def _take(self, worker: Worker, order: Order, collected: Collected) -> None:
        """Store what a worker has collected, or drop it with its episodes if its weights are too old."""
        streams = np.array(worker.streams)
        if self._is_stale(order):
            self._dropped += len(collected.steps) * len(streams)
            self._cut(worker.streams)
            return
        self._ages.append(self._updates - order.updates)
        begun, ended = time.perf_counter_ns(), 0
        for step in collected.steps:
            check_reward(step.reward, self._step)
            self._updater.store(streams, _writable(step))
            self._updater.schedule(len(streams), self._step)
            self._step += len(streams)
            self._stored += len(streams)
            ended += len(step.ended)
            if self._step >= self._intervals.total:
                break
        self._storing += time.perf_counter_ns() - begun
        # Without episodes that ended after the run's last step.
        for outcome in collected.outcomes[:ended]:
            self._run.logger.log(self._step, **outcome)
            self._outcomes = [*self._outcomes, outcome["train/success"]][-RECENT:]

    def _cut(self, streams: Sequence[int]) -> None:
        """End the open episodes of some streams, whose environments are gone."""
        for stream in streams:
            self._updater.replay.cut(stream)
            self._updater.end_episode(stream, success=False, interrupted=True)

    # ---- updates and checkpoints -------------------------------------------------------------------------

    def _learn(self, limit: int | None) -> None:
        self._updates += self._updater.update(self._updater.take_pending(limit), self._step)

    def _after(self, before: int) -> None:
        intervals, run, updater, step = self._intervals, self._run, self._updater, self._step
        if is_due(intervals.log_every, before, step):
            updater.log(step)
            run.logger.log(step, **self._metrics())
            success = float(np.mean(self._outcomes or [0.0]))
            run.progress.update(step, success=success, **updater.progress)
        updater.evaluate_and_snapshot(intervals, step)
        if is_due(intervals.checkpoint_every, before, step) and step < intervals.total:
            self._save()

    def _metrics(self) -> dict[str, float]:
        """Figures of the workers since the last call, and losses since the beginning."""
        ages, stored = self._ages or [0], max(self._stored, 1)
        self._ages, storing, self._storing, self._stored = [], self._storing, 0, 0
        return {
            "workers/age": float(np.mean(ages)),
            "workers/store_us": storing / stored / 1000,
            "workers/lag_ms": self._pool.lag_ms(),
            "workers/lost": self._pool.lost,
            "workers/dropped": self._dropped,
        }

    def _save(self, *, replace: bool = False) -> None:
        names = ("updates", "begun", "dropped", "outcomes")
        more = {name: getattr(self, f"_{name}") for name in names}
        self._updater.save(self._step, more, replace=replace)


def _job(method: OffPolicyMethod, components: OffPolicyComponents, inputs: RunInputs) -> CollectorJob:
    """What all workers collect."""
    return CollectorJob(
        task=inputs.task,
        networks=copy.deepcopy(components.agent.networks).cpu(),
        exploration=method.exploration,
        fields=list(components.replay.fields),
        learns_from_images=components.learns_from_images,
        decisions_only=method.replay_content.decisions_only,
        plugins=inherited_plugins(),
        software=installed_software(),
    )


def _writable(step: StoredStep) -> StoredStep:
    """A copy of a step, whose arrays are read-only in the object store."""
    copied: dict[str, Any] = {name: np.copy(getattr(step, name)) for name in _ARRAYS}
    for name in ("fields", "last"):
        copied[name] = {key: np.copy(value) for key, value in getattr(step, name).items()}
    return replace(step, **copied)
