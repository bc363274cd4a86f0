"""The half of online training that learns, with its actor in another process."""

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
from robot_rl.hil.actor_job import ActorJob, pack_job, pack_policy
from robot_rl.hil.actor_process import ActorProcess
from robot_rl.hil.config import HilConfig
from robot_rl.hil.intervention_stats import InterventionStats
from robot_rl.hil.link.messages import End, Hello, Record, Step, Welcome
from robot_rl.hil.link.server import LearnerServer
from robot_rl.hil.records import Row, row_of
from robot_rl.hil.weight_publisher import WeightPublisher
from robot_rl.methods.method import OffPolicyMethod
from robot_rl.runs import write_text
from robot_rl.training.components import OffPolicyComponents, Source
from robot_rl.training.loop import Intervals, Run, finite_metrics, is_due, restore_run
from robot_rl.training.online import Updater, check_reward

_WAIT_MS: Final = 20
_FAREWELL: Final = 2000 * MS
_RECENT: Final = 40
"""Finished episodes over which success and help are shown."""
_SLOT: Final = np.array([0])


def train_async(
    method: OffPolicyMethod,
    components: OffPolicyComponents,
    source: Source,
    config: HilConfig,
    intervals: Intervals,
    run: Run,
) -> bool:
    """Learn from the steps that an actor in another process sends, through a replay with one stream.

    Returns True when all steps are done, False when stopped.
    """
    with ExitStack() as ended:
        return AsyncTraining(method, components, source, config, intervals, run, ended).train()


class AsyncTraining:
    """A learner whose actor is another process; the attributes are what a step or an episode changes."""

    def __init__(
        self,
        method: OffPolicyMethod,
        components: OffPolicyComponents,
        source: Source,
        config: HilConfig,
        intervals: Intervals,
        run: Run,
        ended: ExitStack,
    ) -> None:
        self._method, self._replay, self._learner = method, components.replay, components.learner
        self._config, self._intervals, self._run, self._ended = config, intervals, run, ended
        self._device = source.device
        learner, sampler = components.learner, components.sampler
        self._updater = Updater(learner, components.replay, sampler, method.config, run)
        self._clock = MonotonicClock()
        folder = Path(ended.enter_context(TemporaryDirectory(prefix="hil-")))
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
        self._left_out = 0.0
        self._refused = 0
        self._outcomes: list[list[float]] = []
        self._stale: list[int] = []
        place = (0, 0)
        state = restore_run(run)
        self._id = _identity(run.directory)
        if state:
            self._updater.load_state_dict(state)
            self._step, self._updates, self._left_out = state["step"], state["updates"], state["left_out"]
            self._outcomes, self._publisher.version = state["outcomes"], state["version"]
            place = (state["place"][0], state["place"][1])
        self._stats = InterventionStats(run.directory, place[0])
        if state:
            self._stats.load_state_dict(state["helped"])
        self._server = self._open(folder)
        self._server.place, self._server.kept = place, place[0]

    def train(self) -> bool:
        intervals, run = self._intervals, self._run
        if self._step >= intervals.total:
            return True
        with ExitStack() as working:
            child = self._start_actor()
            if child:
                working.callback(child.close)
            working.callback(self._server.dismiss, _FAREWELL)
            while self._step < intervals.total and not run.stop():
                if child:
                    self._keep(child)
                for record in self._server.records(0 if self._has_work else _WAIT_MS):
                    self._take(record)
                    if child:
                        child.worked()
                    if self._step >= intervals.total:
                        break
                if not self._config.lockstep:
                    self._learn(1)
            if self._step >= intervals.total:
                self._learn()
                self._evaluate(self._step - 1)
            self._save()
        return self._step >= intervals.total

    def _keep(self, child: ActorProcess) -> None:
        """Start it again if it died; what was learned is saved where it cannot go on."""
        try:
            code = child.died()
        except UserError:
            self._server.forget()
            self._save()
            raise
        if code is not None:
            self._say(f"the actor died with code {code} and was started again")
            self._server.forget()

    @property
    def _has_work(self) -> bool:
        return not self._config.lockstep and self._updater.pending >= 1

    # ---- what comes ------------------------------------------------------------------------------------

    def _take(self, record: Record) -> None:
        row = row_of(record, self._replay)
        if isinstance(record, End):
            self._close(record, row)
        else:
            self._add(record, row)
            self._after_step(self._step - 1)

    def _add(self, step: Step, row: Row) -> None:
        check_reward(np.array([step.reward]), self._step)
        if self._config.takeover_fails and step.index and step.source in ("human", "handover"):
            self._replay.give_up(0)
        self._replay.add(
            _SLOT,
            action=row.action,
            reward=np.array([step.reward], np.float32),
            terminated=np.array([step.terminated]),
            source=SOURCES.index(step.source),
            **row.fields,
        )
        self._stats.step(step.index, step.source, row.action[0], row.proposed[0])
        self._publisher.used(step.version)
        self._stale.append(self._publisher.version - step.version)
        self._updater.schedule(1, self._step)
        self._step += 1
        # The critics' warm-up is owed all at once and is made whole.
        beyond = self._updater.pending - self._config.most_owed
        if self._learner.warmed_up and beyond > 0:
            self._updater.pending -= beyond
            self._left_out += beyond

    def _close(self, end: End, row: Row) -> None:
        self._replay.end(_SLOT, **row.fields)
        self._updater.end_episode(0, success=end.success)
        figures = self._stats.close(end.episode, end.success)
        if end.interrupted:
            return
        self._outcomes = [*self._outcomes, [float(end.success), figures["hil/intervention_rate"]]][-_RECENT:]
        figures |= {"train/success": float(end.success), "train/episode_length": float(end.index)}
        figures["hil/late"] = end.late / max(end.index, 1)
        self._run.logger.log(self._step, **figures)

    def _welcome(self, hello: Hello) -> Welcome:
        """An actor begins. What the last one had not finished is lost, unless this one has it.

        Raises:
            ValueError: it has episodes of another run.
        """
        if hello.run not in ("", self._id):
            raise ValueError("the actor's spool holds episodes of another run: give it another folder")
        episode, index = self._server.place
        if index and episode not in hello.episodes:
            self._say(f"episode {episode} broke off after {index} steps")
            self._replay.cut(0)
            self._updater.end_episode(0, success=False)
            self._stats.forget()
            episode, index = episode + 1, 0
        if not index:
            episode = min((number for number in hello.episodes if number >= episode), default=episode)
        return Welcome(
            episode=episode,
            index=index,
            learner=self._learner_id,
            run=self._id,
            steps=self._step,
            job=pack_job(self._job),
            files=self._files,
            weights=self._publisher.current(self._learner.warmed_up),
        )

    # ---- what is made of it ----------------------------------------------------------------------------

    def _after_step(self, before: int) -> None:
        intervals, run, updater, step = self._intervals, self._run, self._updater, self._step
        if self._config.lockstep:
            self._learn()
        if is_due(intervals.log_every, before, step):
            updater.log(step)
            run.logger.log(step, **self._figures())
            success, helped = np.mean(self._outcomes or [[0.0, 0.0]], axis=0).tolist()
            run.progress.update(step, success=success, helped=helped)
            if self._server.refused > self._refused:
                self._say(
                    f"{self._server.refused - self._refused} frames were damaged, or a stranger's: dropped"
                )
                self._refused = self._server.refused
        if step >= intervals.total:
            return
        self._evaluate(before)
        if is_due(intervals.checkpoint_every, before, step):
            self._save()

    def _evaluate(self, before: int) -> None:
        run, step = self._run, self._step
        if run.evaluate and self._learner.warmed_up and is_due(self._intervals.eval_every, before, step):
            finite_metrics(self._updater.metrics, step)
            run.evaluate(step)
        if run.keep and self._learner.warmed_up and is_due(self._intervals.save_every, before, step):
            finite_metrics(self._updater.metrics, step)
            run.keep(step)

    def _learn(self, most: int | None = None) -> None:
        updates = self._updater.take_pending(most)
        self._updater.update(updates, self._step)
        self._updates += updates
        self._publisher.updated(updates)
        warm = self._learner.warmed_up
        if self._publisher.due(warm):
            self._server.publish(self._publisher.next(warm))

    def _figures(self) -> dict[str, float]:
        asked = self._updates + self._updater.pending + self._left_out
        utd = self._method.config.utd
        stale, self._stale = float(np.mean(self._stale or [0])), []
        return {
            "hil/utd": utd * self._updates / asked if asked else utd,
            "hil/owed": self._updater.pending,
            "hil/staleness": stale,
        }

    def _save(self) -> None:
        self._updater.save(
            self._step,
            {
                "place": list(self._server.place),
                "updates": self._updates,
                "left_out": self._left_out,
                "outcomes": self._outcomes,
                "version": self._publisher.version,
                "helped": self._stats.state_dict(),
            },
        )
        self._server.kept = self._server.place[0]
        self._server.acknowledge()

    # ---- the actor -------------------------------------------------------------------------------------

    def _open(self, folder: Path) -> LearnerServer:
        config = self._config
        with mistakes():
            address = parse(config.link or f"ipc://{folder / 'link'}")
            keys = load_server_keys(Path(config.keys)) if config.keys else None
            desk = LearnerServer(address, keys, self._clock, self._learner_id, self._welcome)
        self._ended.callback(desk.close)
        return desk

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


def _identity(directory: Path) -> str:
    """Of a run, so that no other run's episodes get into it."""
    path = directory / "identity"
    if not path.is_file():
        write_text(path, uuid.uuid4().hex + "\n")
    return path.read_text().strip()
