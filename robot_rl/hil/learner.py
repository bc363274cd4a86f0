"""The learner of `hil=on`: receives steps from actor processes, updates the networks, sends weights."""

import sys
import uuid
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

import numpy as np

from robot_rl.errors import UserError, as_user_errors
from robot_rl.hardware.clock import MS, MonotonicClock
from robot_rl.hardware.protocol.endpoints import parse
from robot_rl.hardware.protocol.security import load_server_keys
from robot_rl.hil.actor_job import ActorJob, ActorProcess, pack_job, pack_policy
from robot_rl.hil.actor_stream import ActorStream, mean_outcome
from robot_rl.hil.config import HilConfig
from robot_rl.hil.link.messages import End, Hello, Record, Welcome
from robot_rl.hil.link.server import LearnerServer
from robot_rl.hil.weight_publisher import WeightPublisher
from robot_rl.methods.method import OffPolicyMethod
from robot_rl.rollout import episode_seed
from robot_rl.runs import folder_id
from robot_rl.training.components import OffPolicyComponents
from robot_rl.training.context import RunInputs
from robot_rl.training.loop import Intervals, Run, check_reward, finite_metrics, is_due, restore_run
from robot_rl.training.updater import Updater

_WAIT_MS: Final = 20
_STOP_TIMEOUT: Final = 2000 * MS
"""Time for the actors to confirm that they stop, ns."""


def train_hil(
    method: OffPolicyMethod,
    components: OffPolicyComponents,
    inputs: RunInputs,
    config: HilConfig,
    intervals: Intervals,
    run: Run,
) -> bool:
    """Train from the steps of actors in other processes; each has a stream of the replay.

    Returns:
        True when all steps are done, False when stopped.
    """
    with ExitStack() as resources:
        return HilTraining(method, components, inputs, config, intervals, run, resources).train()


class HilTraining:
    """Training loop with the actors in other processes."""

    def __init__(
        self,
        method: OffPolicyMethod,
        components: OffPolicyComponents,
        inputs: RunInputs,
        config: HilConfig,
        intervals: Intervals,
        run: Run,
        resources: ExitStack,
    ) -> None:
        self._method, self._learner = method, components.learner
        self._config, self._intervals, self._run = config, intervals, run
        self._resources = resources
        self._device = inputs.device
        self._updater = Updater(method.config, components, run)
        self._clock = MonotonicClock()
        folder = Path(resources.enter_context(TemporaryDirectory(prefix="hil-")))
        networks, environment = components.agent.networks, components.envs.describe()
        self._files = pack_policy(networks, {"environment": environment}, folder / "policy")
        self._job = ActorJob(
            task=inputs.task,
            hil=config,
            seed=inputs.seed,
            accept=list(inputs.accept),
            fields=list(components.replay.fields),
            exploration=method.exploration,
            warmup_steps=method.config.warmup_steps,
            execution=inputs.execution,
        )
        self._learner_id = uuid.uuid4().hex
        self._publisher = WeightPublisher(
            networks, self._learner_id, config.weights_every, self._clock, config.actors
        )
        self._step = self._updates = 0
        self._skipped = 0.0
        self._reported_drops = 0
        self._saved: int | None = None
        """Step of the newest checkpoint."""
        state = restore_run(run, self._updater.base)
        # A spool's features and samples of the base are of no use for a run with another base.
        self._run_id = f"{folder_id(run.directory)}-{self._updater.base}"
        if state:
            self._updater.load_state_dict(state)
            self._step, self._updates, self._skipped = state["step"], state["updates"], state["left_out"]
            self._publisher.version, self._saved = state["version"], state["step"]
        states = state["actors"] if state else [None] * config.actors
        names = config.actor_names if config.actors > 1 else ("",)
        self._streams = [
            ActorStream(number, name, self._updater, run.directory, saved)
            for number, (name, saved) in enumerate(zip(names, states, strict=True))
        ]
        self._server = self._make_server(folder)
        self._server.steps = self._step
        for actor, stream in zip(self._server.actors, self._streams, strict=True):
            actor.position, actor.checkpointed = stream.position, stream.position[0]

    def train(self) -> bool:
        """Train until all steps are done (True) or the run is stopped (False)."""
        if self._step < self._intervals.total:
            self._collect()
        elif self._updater.is_behind(self._step):
            self._saved = None
            self._finish(replace=True)
        if self._updater.lost:
            raise self._updater.lost
        return self._step >= self._intervals.total

    def _collect(self) -> None:
        """Learn from the actors' steps until all are done, the run is stopped or a server is lost."""
        intervals, run = self._intervals, self._run
        self._updater.evaluate_and_snapshot(intervals, self._step)
        with ExitStack() as closing:
            child = self._start_actor()
            if child:
                closing.callback(child.close)
            closing.callback(self._server.stop_actors, _STOP_TIMEOUT)
            while self._step < intervals.total and not run.stop() and not self._updater.lost:
                if child:
                    self._restart_if_dead(child)
                for number, record in self._server.records(0 if self._has_work else _WAIT_MS):
                    self._process(number, record)
                    if child:
                        child.reset_failures()
                    if self._step >= intervals.total or self._updater.lost:
                        break
                if not self._config.lockstep:
                    self._learn(1)
            self._finish()

    def _finish(self, *, replace: bool = False) -> None:
        """Make the updates that are left after the run's last step, evaluate, and save a checkpoint."""
        if self._step >= self._intervals.total:
            self._learn()
            self._updater.evaluate_and_snapshot(self._intervals, self._step)
        self._save(replace=replace)

    def _restart_if_dead(self, child: ActorProcess) -> None:
        """Restart a dead actor; saves a checkpoint if that is not possible."""
        try:
            code = child.restart_if_dead()
        except UserError:
            self._server.drop_actors()
            self._save()
            raise
        if code is not None:
            self._say(f"the actor died with code {code} and was restarted")
            self._server.drop_actors()

    @property
    def _has_work(self) -> bool:
        return not self._config.lockstep and self._updater.pending >= 1

    # ---- records of the actors ---------------------------------------------------------------------------

    def _process(self, number: int, record: Record) -> None:
        stream = self._streams[number]
        if isinstance(record, End):
            if metrics := stream.end_episode(record):
                self._run.logger.log(self._step, **metrics)
            return
        check_reward(np.array([record.reward]), self._step)
        stream.add_step(record, takeover_fails=self._config.takeover_fails)
        # A step that was recorded for an earlier process of the learner may have a higher version.
        version = min(record.version, self._publisher.version)
        stream.staleness.append(self._publisher.version - version)
        self._publisher.mark_used(number, version)
        self._updater.schedule(1, self._step)
        self._step += 1
        self._server.steps = self._step
        # The warm-up of the critics is scheduled at once and never skipped.
        excess = self._updater.pending - self._config.max_pending
        if self._learner.warmed_up and excess > 0:
            self._updater.pending -= excess
            self._skipped += excess
        self._after_step(self._step - 1)

    def _welcome(self, number: int, hello: Hello) -> Welcome:
        """Answer a new process of an actor. The open episode is cut unless the process has it.

        Raises:
            ValueError: if the process has episodes of another run or actor, or older than those of the spool
                that was used last.
        """
        stream = self._streams[number]
        # An actor's episodes would be stored twice if they came from another one as well.
        run = f"{self._run_id}-{stream.name}" if stream.name else self._run_id
        if hello.run not in ("", run):
            whose = "run, base policy or actor" if stream.name else "run or base policy"
            raise ValueError(
                f"the actor's spool has episodes of another {whose}: begin a new run, or give spool=… "
                "another folder"
            )
        episode, index = self._server.actors[number].position
        has_open = stream.is_current(hello.spool) and episode in hello.episodes
        stream.use_spool(hello.spool, hello.episodes, episode if has_open or not index else episode + 1)
        if index and not has_open:
            self._say(f"{_prefix(stream)}episode {episode} was cut after {index} steps")
            stream.cut_episode()
            episode, index = episode + 1, 0
        if not index:
            episode = min((later for later in hello.episodes if later >= episode), default=episode)
        if stream.name:
            self._say(f"{stream.name} is connected")
        return Welcome(
            episode=episode,
            index=index,
            learner=self._learner_id,
            run=run,
            steps=self._step,
            job=pack_job(self._job_of(number)),
            files=self._files,
            weights=self._publisher.current(self._learner.warmed_up),
        )

    def _job_of(self, number: int) -> ActorJob:
        """The job of an actor; each has its own seeds."""
        job = self._job
        return replace(job, seed=episode_seed(job.seed, "actor", number)) if number else job

    # ---- updates and checkpoints -------------------------------------------------------------------------

    def _after_step(self, before: int) -> None:
        intervals, run, updater, step = self._intervals, self._run, self._updater, self._step
        if self._config.lockstep:
            self._learn()
        if is_due(intervals.log_every, before, step):
            updater.log(step)
            run.logger.log(step, **self._metrics())
            success, helped = mean_outcome([each for stream in self._streams for each in stream.outcomes])
            run.progress.update(step, success=success, helped=helped, **self._progress)
            if dropped := self._server.dropped - self._reported_drops:
                self._say(f"dropped {dropped} frames, damaged or from an unknown sender")
                self._reported_drops = self._server.dropped
        if step >= intervals.total:
            return
        updater.evaluate_and_snapshot(intervals, step)
        if is_due(intervals.checkpoint_every, before, step):
            self._save()

    def _learn(self, limit: int | None = None) -> None:
        updates = self._updater.take_pending(limit)
        made = self._updater.update(updates, self._step)
        self._updates += made
        self._publisher.count_updates(made)
        warm = self._learner.warmed_up
        if actors := self._publisher.due(warm, self._server.connected):
            # On a GPU, nothing has looked at them yet.
            finite_metrics(self._updater.metrics, self._step)
            self._server.publish(self._publisher.next(warm, actors), actors)

    @property
    def _progress(self) -> dict[str, float]:
        progress = dict(self._updater.progress)
        for stream in self._streams:
            progress |= stream.progress
        return progress

    def _metrics(self) -> dict[str, float]:
        scheduled = self._updates + self._updater.pending + self._skipped
        utd = self._method.config.utd
        staleness = [versions for stream in self._streams for versions in stream.staleness]
        metrics = {
            "hil/utd": utd * self._updates / scheduled if scheduled else utd,
            "hil/owed": self._updater.pending,
            "hil/staleness": float(np.mean(staleness or [0])),
        }
        for stream in self._streams:
            metrics |= stream.metrics()
        return metrics

    def _save(self, *, replace: bool = False) -> None:
        if self._step == self._saved:
            # That checkpoint is kept, and lacks the ends of episodes that were received since.
            return
        actors = [
            {"place": list(actor.position), **stream.state_dict()}
            for actor, stream in zip(self._server.actors, self._streams, strict=True)
        ]
        more = {
            "updates": self._updates,
            "left_out": self._skipped,
            "version": self._publisher.version,
            "actors": actors,
        }
        self._updater.save(self._step, more, replace=replace)
        self._saved = self._step
        for actor in self._server.actors:
            actor.checkpointed = actor.position[0]
        self._server.acknowledge()

    # ---- the actors --------------------------------------------------------------------------------------

    def _make_server(self, folder: Path) -> LearnerServer:
        config = self._config
        with as_user_errors():
            address = parse(config.link or f"ipc://{folder / 'link'}")
            keys = load_server_keys(Path(config.keys)) if config.keys else None
            names = config.actor_names
            server = LearnerServer(address, keys, self._clock, self._learner_id, names, self._welcome)
        self._resources.callback(server.close)
        return server

    def _start_actor(self) -> ActorProcess | None:
        if self._config.remote:
            several = f" name=…`, {', '.join(self._config.actor_names)}" if self._config.actors > 1 else "`"
            self._say(f"waiting for `robot-rl actor learner={self._server.address}{several}")
            return None
        spool = self._run.directory / "spool"
        device = self._device
        learner = f"learner={self._server.address}"
        return ActorProcess([learner, "wait=false", f"spool={spool}", f"device={device}"])

    def _say(self, text: str) -> None:
        print(f"{self._run.directory.name}: {text}", file=sys.stderr, flush=True)


def _prefix(stream: ActorStream) -> str:
    return f"{stream.name}: " if stream.name else ""
