"""The learner of `hil=on`: receives steps from the actor process, updates the networks, sends weights."""

import sys
import uuid
from contextlib import ExitStack
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

import numpy as np

from robot_rl.data.replay import SOURCES
from robot_rl.errors import UserError, mistakes
from robot_rl.hardware.clock import MS, MonotonicClock
from robot_rl.hardware.protocol.endpoints import parse
from robot_rl.hardware.protocol.security import load_server_keys
from robot_rl.hil.actor_job import ActorJob, ActorProcess, pack_job, pack_policy
from robot_rl.hil.config import HilConfig
from robot_rl.hil.intervention_stats import InterventionStats
from robot_rl.hil.link.messages import End, Hello, Record, Step, Welcome
from robot_rl.hil.link.server import LearnerServer
from robot_rl.hil.replay_rows import Row, to_row
from robot_rl.hil.weight_publisher import WeightPublisher
from robot_rl.methods.method import OffPolicyMethod
from robot_rl.runs import write_text
from robot_rl.training.components import OffPolicyComponents, Source
from robot_rl.training.loop import Intervals, Run, check_reward, is_due, restore_run
from robot_rl.training.online import Updater

_WAIT_MS: Final = 20
_STOP_TIMEOUT: Final = 2000 * MS
"""Time for the actor to confirm that it stops, ns."""
_RECENT: Final = 40
"""Number of finished episodes over which success and intervention rate are averaged for display."""
_STREAM: Final = np.array([0])


def train_async(
    method: OffPolicyMethod,
    components: OffPolicyComponents,
    source: Source,
    config: HilConfig,
    intervals: Intervals,
    run: Run,
) -> bool:
    """Train from the steps of an actor in another process; the replay has one stream.

    Returns:
        True when all steps are done, False when stopped.
    """
    with ExitStack() as resources:
        return AsyncTraining(method, components, source, config, intervals, run, resources).train()


class AsyncTraining:
    """Training loop with the actor in another process."""

    def __init__(
        self,
        method: OffPolicyMethod,
        components: OffPolicyComponents,
        source: Source,
        config: HilConfig,
        intervals: Intervals,
        run: Run,
        resources: ExitStack,
    ) -> None:
        self._method, self._replay, self._learner = method, components.replay, components.learner
        self._config, self._intervals, self._run = config, intervals, run
        self._resources = resources
        self._device = source.device
        self._updater = Updater(method.config, components, run)
        self._clock = MonotonicClock()
        folder = Path(resources.enter_context(TemporaryDirectory(prefix="hil-")))
        networks, environment = components.agent.networks, components.envs.describe()
        self._files = pack_policy(networks, {"environment": environment}, folder / "policy")
        self._job = ActorJob(
            task=source.task,
            hil=config,
            seed=source.seed,
            accept=list(source.accept),
            fields=list(components.replay.fields),
            exploration=method.exploration,
            warmup_steps=method.config.warmup_steps,
        )
        self._learner_id = uuid.uuid4().hex
        self._publisher = WeightPublisher(networks, self._learner_id, config.weights_every, self._clock)
        self._step = self._updates = 0
        self._skipped = 0.0
        self._reported_drops = 0
        self._outcomes: list[list[float]] = []
        self._staleness: list[int] = []
        position = (0, 0)
        state = restore_run(run)
        self._run_id = _run_id(run.directory)
        if state:
            self._updater.load_state_dict(state)
            self._step, self._updates, self._skipped = state["step"], state["updates"], state["left_out"]
            self._outcomes, self._publisher.version = state["outcomes"], state["version"]
            position = (state["place"][0], state["place"][1])
        self._stats = InterventionStats(run.directory, position[0])
        if state:
            self._stats.load_state_dict(state["helped"])
        self._server = self._make_server(folder)
        self._server.position, self._server.checkpointed = position, position[0]

    def train(self) -> bool:
        """Train until all steps are done (True) or the run is stopped (False)."""
        intervals, run = self._intervals, self._run
        if self._step >= intervals.total:
            return True
        with ExitStack() as closing:
            child = self._start_actor()
            if child:
                closing.callback(child.close)
            closing.callback(self._server.stop_actor, _STOP_TIMEOUT)
            while self._step < intervals.total and not run.stop() and not self._updater.lost:
                if child:
                    self._restart_if_dead(child)
                for record in self._server.records(0 if self._has_work else _WAIT_MS):
                    self._process(record)
                    if child:
                        child.reset_failures()
                    if self._step >= intervals.total or self._updater.lost:
                        break
                if not self._config.lockstep:
                    self._learn(1)
            if self._step >= intervals.total:
                self._learn()
                self._evaluate(self._step - 1)
            self._save()
        if self._updater.lost:
            raise self._updater.lost
        return self._step >= intervals.total

    def _restart_if_dead(self, child: ActorProcess) -> None:
        """Restart a dead actor; saves a checkpoint if that is not possible."""
        try:
            code = child.restart_if_dead()
        except UserError:
            self._server.drop_actor()
            self._save()
            raise
        if code is not None:
            self._say(f"the actor died with code {code} and was restarted")
            self._server.drop_actor()

    @property
    def _has_work(self) -> bool:
        return not self._config.lockstep and self._updater.pending >= 1

    # ---- records of the actor ----------------------------------------------------------------------------

    def _process(self, record: Record) -> None:
        row = to_row(record, self._replay)
        if isinstance(record, End):
            self._end_episode(record, row)
        else:
            self._add_step(record, row)
            self._after_step(self._step - 1)

    def _add_step(self, step: Step, row: Row) -> None:
        check_reward(np.array([step.reward]), self._step)
        if self._config.takeover_fails and step.index and step.source in ("human", "handover"):
            self._replay.terminate_at_takeover(0)
        self._replay.add(
            _STREAM,
            action=row.action,
            reward=np.array([step.reward], np.float32),
            terminated=np.array([step.terminated]),
            source=SOURCES.index(step.source),
            **row.fields,
        )
        self._stats.step(step.index, step.source, row.action[0], row.proposed[0])
        self._publisher.mark_used(step.version)
        self._staleness.append(self._publisher.version - step.version)
        self._updater.schedule(1, self._step)
        self._step += 1
        # The warm-up of the critics is scheduled at once and never skipped.
        excess = self._updater.pending - self._config.max_pending
        if self._learner.warmed_up and excess > 0:
            self._updater.pending -= excess
            self._skipped += excess

    def _end_episode(self, end: End, row: Row) -> None:
        self._replay.end(_STREAM, **row.fields)
        self._updater.end_episode(0, success=end.success, interrupted=bool(end.interrupted))
        metrics = self._stats.end_episode(end.episode, end.success)
        if end.interrupted:
            return
        self._outcomes = [*self._outcomes, [float(end.success), metrics["hil/intervention_rate"]]][-_RECENT:]
        metrics |= {"train/success": float(end.success), "train/episode_length": float(end.index)}
        metrics["hil/late"] = end.late / max(end.index, 1)
        self._run.logger.log(self._step, **metrics)

    def _welcome(self, hello: Hello) -> Welcome:
        """Answer a new actor. The open episode is cut unless the actor has it.

        Raises:
            ValueError: if the actor has episodes of another run.
        """
        if hello.run not in ("", self._run_id):
            raise ValueError("the actor's spool has episodes of another run: give spool=… another folder")
        episode, index = self._server.position
        if index and episode not in hello.episodes:
            self._say(f"episode {episode} was cut after {index} steps")
            self._replay.cut(0)
            self._updater.end_episode(0, success=False, interrupted=True)
            self._stats.discard_episode()
            episode, index = episode + 1, 0
        if not index:
            episode = min((number for number in hello.episodes if number >= episode), default=episode)
        return Welcome(
            episode=episode,
            index=index,
            learner=self._learner_id,
            run=self._run_id,
            steps=self._step,
            job=pack_job(self._job),
            files=self._files,
            weights=self._publisher.current(self._learner.warmed_up),
        )

    # ---- updates and checkpoints -------------------------------------------------------------------------

    def _after_step(self, before: int) -> None:
        intervals, run, updater, step = self._intervals, self._run, self._updater, self._step
        if self._config.lockstep:
            self._learn()
        if is_due(intervals.log_every, before, step):
            updater.log(step)
            run.logger.log(step, **self._metrics())
            success, intervened = np.mean(self._outcomes or [[0.0, 0.0]], axis=0).tolist()
            run.progress.update(step, success=success, helped=intervened, **self._updater.progress)
            if dropped := self._server.dropped - self._reported_drops:
                self._say(f"dropped {dropped} frames, damaged or from an unknown sender")
                self._reported_drops = self._server.dropped
        if step >= intervals.total:
            return
        self._evaluate(before)
        if is_due(intervals.checkpoint_every, before, step):
            self._save()

    def _evaluate(self, before: int) -> None:
        if self._learner.warmed_up:
            self._run.measure(self._intervals, self._updater.metrics, before, self._step)

    def _learn(self, limit: int | None = None) -> None:
        updates = self._updater.take_pending(limit)
        self._updater.update(updates, self._step)
        self._updates += updates
        self._publisher.count_updates(updates)
        warm = self._learner.warmed_up
        if self._publisher.due(warm):
            self._server.publish(self._publisher.next(warm))

    def _metrics(self) -> dict[str, float]:
        scheduled = self._updates + self._updater.pending + self._skipped
        utd = self._method.config.utd
        staleness, self._staleness = float(np.mean(self._staleness or [0])), []
        return {
            "hil/utd": utd * self._updates / scheduled if scheduled else utd,
            "hil/owed": self._updater.pending,
            "hil/staleness": staleness,
        }

    def _save(self) -> None:
        self._updater.save(
            self._step,
            {
                "place": list(self._server.position),
                "updates": self._updates,
                "left_out": self._skipped,
                "outcomes": self._outcomes,
                "version": self._publisher.version,
                "helped": self._stats.state_dict(),
            },
        )
        self._server.checkpointed = self._server.position[0]
        self._server.acknowledge()

    # ---- the actor ---------------------------------------------------------------------------------------

    def _make_server(self, folder: Path) -> LearnerServer:
        config = self._config
        with mistakes():
            address = parse(config.link or f"ipc://{folder / 'link'}")
            keys = load_server_keys(Path(config.keys)) if config.keys else None
            server = LearnerServer(address, keys, self._clock, self._learner_id, self._welcome)
        self._resources.callback(server.close)
        return server

    def _start_actor(self) -> ActorProcess | None:
        if self._config.remote:
            self._say(f"waiting for `robot-rl actor learner={self._server.address}`")
            return None
        spool = self._run.directory / "spool"
        device = self._device
        learner = f"learner={self._server.address}"
        return ActorProcess([learner, "wait=false", f"spool={spool}", f"device={device}"])

    def _say(self, text: str) -> None:
        print(f"{self._run.directory.name}: {text}", file=sys.stderr, flush=True)


def _run_id(directory: Path) -> str:
    """Id of a run, which prevents mixing in episodes of another run."""
    path = directory / "identity"
    if not path.is_file():
        write_text(path, uuid.uuid4().hex + "\n")
    return path.read_text().strip()
