"""The half of online training that learns, with its actor in another process."""

import sys
import uuid
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final

import numpy as np

from robot_rl.data.replay import SOURCES, Replay
from robot_rl.errors import UserError, mistakes
from robot_rl.hardware.clock import MS, MonotonicClock
from robot_rl.hardware.protocol.endpoints import parse
from robot_rl.hardware.protocol.security import load_server_keys
from robot_rl.hil.actor_job import base_files, plain
from robot_rl.hil.actor_process import ActorProcess
from robot_rl.hil.intervention_stats import Helped
from robot_rl.hil.link.messages import End, Hello, Record, Step, Welcome
from robot_rl.hil.link.server import Desk
from robot_rl.hil.publisher import Publisher
from robot_rl.hil.records import Row, row_of
from robot_rl.methods.context import Job
from robot_rl.policies.wrappers.wrapper import Wrapper
from robot_rl.training.online import (
    Batches,
    Cadence,
    Learning,
    OnlineLearner,
    Run,
    Schedule,
    checked,
    due,
    refuse_reward,
    restored,
)
from robot_rl.training.runs import write_text

_WAIT_MS: Final = 20
_FAREWELL: Final = 2000 * MS
_RECENT: Final = 40
"""Finished episodes over which success and help are shown."""
_SLOT: Final = np.array([0])


@dataclass(frozen=True)
class Apart:
    """What a learner needs to learn from an actor elsewhere."""

    job: Job
    networks: Wrapper
    environment: dict[str, Any]
    learner: OnlineLearner
    replay: Replay
    """With one stream."""
    batches: Batches
    schedule: Schedule
    cadence: Cadence


def train_apart(apart: Apart, run: Run) -> bool:
    """Learn from what an actor sends. Returns True when all steps are done, False when stopped."""
    with ExitStack() as ended:
        return _Run(apart, run, ended).train()


class _Run:
    """One run; its attributes are what a step or an episode changes."""

    def __init__(self, apart: Apart, run: Run, ended: ExitStack) -> None:
        job = apart.job
        assert job.hil is not None
        self._apart, self._run, self._config = apart, run, job.hil
        self._ended = ended
        self._learning = Learning(apart.learner, apart.replay, apart.batches, apart.schedule, run)
        self._clock = MonotonicClock()
        folder = Path(ended.enter_context(TemporaryDirectory(prefix="hil-")))
        base, about = apart.networks.base, {"environment": apart.environment}
        is_run = plain(job)["uniform"] is None
        self._files = base_files(base, about, folder / "base") if is_run else {}
        self._learner = uuid.uuid4().hex
        self._publisher = Publisher(apart.networks, self._learner, self._config.weights_every, self._clock)
        self._step = self._updates = 0
        self._left_out = 0.0
        self._refused = 0
        self._outcomes: list[list[float]] = []
        self._stale: list[int] = []
        self._id = _identity(run.directory)
        place = (0, 0)
        state = restored(run)
        if state:
            self._learning.load_state_dict(state)
            self._step, self._updates, self._left_out = state["step"], state["updates"], state["left_out"]
            self._outcomes, self._publisher.version = state["outcomes"], state["version"]
            place = (state["place"][0], state["place"][1])
        self._helped = Helped(run.directory, place[0])
        if state:
            self._helped.load_state_dict(state["helped"])
        self._desk = self._open(folder)
        self._desk.place, self._desk.kept = place, place[0]

    def train(self) -> bool:
        cadence, run = self._apart.cadence, self._run
        if self._step >= cadence.total:
            return True
        with ExitStack() as working:
            child = self._start_actor()
            if child:
                working.callback(child.close)
            working.callback(self._desk.dismiss, _FAREWELL)
            while self._step < cadence.total and not run.stop():
                if child:
                    self._keep(child)
                for record in self._desk.records(0 if self._has_work else _WAIT_MS):
                    self._take(record)
                    if child:
                        child.worked()
                    if self._step >= cadence.total:
                        break
                if not self._config.lockstep:
                    self._learn(1)
            if self._step >= cadence.total:
                self._learn()
                self._evaluate(self._step - 1)
            self._save()
        return self._step >= cadence.total

    def _keep(self, child: ActorProcess) -> None:
        """Start it again if it died; what was learned is saved where it cannot go on."""
        try:
            code = child.died()
        except UserError:
            self._desk.forget()
            self._save()
            raise
        if code is not None:
            self._say(f"the actor died with code {code} and was started again")
            self._desk.forget()

    @property
    def _has_work(self) -> bool:
        return not self._config.lockstep and self._learning.owed >= 1

    # ---- what comes ------------------------------------------------------------------------------------

    def _take(self, record: Record) -> None:
        row = row_of(record, self._apart.replay)
        if isinstance(record, End):
            self._close(record, row)
        else:
            self._add(record, row)
            self._after_step(self._step - 1)

    def _add(self, step: Step, row: Row) -> None:
        refuse_reward(np.array([step.reward]), self._step)
        if self._config.takeover_fails and step.index and step.source in ("human", "handover"):
            self._apart.replay.give_up(0)
        self._apart.replay.add(
            _SLOT,
            action=row.action,
            reward=np.array([step.reward], np.float32),
            terminated=np.array([step.terminated]),
            source=SOURCES.index(step.source),
            **row.fields,
        )
        self._helped.step(step.index, step.source, row.action[0], row.proposed[0])
        self._publisher.used(step.version)
        self._stale.append(self._publisher.version - step.version)
        self._learning.owe(1, self._step)
        self._step += 1
        # The critics' warm-up is owed all at once and is made whole.
        beyond = self._learning.owed - self._config.most_owed
        if self._apart.learner.warm and beyond > 0:
            self._learning.owed -= beyond
            self._left_out += beyond

    def _close(self, end: End, row: Row) -> None:
        self._apart.replay.end(_SLOT, **row.fields)
        self._learning.close(0, success=end.success)
        figures = self._helped.close(end.episode, end.success)
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
        episode, index = self._desk.place
        if index and episode not in hello.episodes:
            self._say(f"episode {episode} broke off after {index} steps")
            self._apart.replay.cut(0)
            self._learning.close(0, success=False)
            self._helped.forget()
            episode, index = episode + 1, 0
        if not index:
            episode = min((number for number in hello.episodes if number >= episode), default=episode)
        return Welcome(
            episode=episode,
            index=index,
            learner=self._learner,
            run=self._id,
            steps=self._step,
            job=plain(self._apart.job),
            files=self._files,
            weights=self._publisher.current(self._apart.learner.warm),
        )

    # ---- what is made of it ----------------------------------------------------------------------------

    def _after_step(self, before: int) -> None:
        cadence, run, learning, step = self._apart.cadence, self._run, self._learning, self._step
        if self._config.lockstep:
            self._learn()
        if due(cadence.log_every, before, step):
            learning.log(step)
            run.logger.log(step, **self._figures())
            success, helped = np.mean(self._outcomes or [[0.0, 0.0]], axis=0).tolist()
            run.show.update(step, success=success, helped=helped)
            if self._desk.refused > self._refused:
                self._say(
                    f"{self._desk.refused - self._refused} frames were damaged, or a stranger's: dropped"
                )
                self._refused = self._desk.refused
        if step >= cadence.total:
            return
        self._evaluate(before)
        if due(cadence.checkpoint_every, before, step):
            self._save()

    def _evaluate(self, before: int) -> None:
        run, step = self._run, self._step
        if run.evaluate and self._apart.learner.warm and due(self._apart.cadence.eval_every, before, step):
            checked(self._learning.metrics, step)
            run.evaluate(step)
        if run.keep and self._apart.learner.warm and due(self._apart.cadence.save_every, before, step):
            checked(self._learning.metrics, step)
            run.keep(step)

    def _learn(self, most: int | None = None) -> None:
        updates = self._learning.take(most)
        self._learning.learn(updates, self._step)
        self._updates += updates
        self._publisher.updated(updates)
        warm = self._apart.learner.warm
        if self._publisher.due(warm):
            self._desk.publish(self._publisher.next(warm))

    def _figures(self) -> dict[str, float]:
        asked = self._updates + self._learning.owed + self._left_out
        utd = self._apart.schedule.updates_per_step
        stale, self._stale = float(np.mean(self._stale or [0])), []
        return {
            "hil/utd": utd * self._updates / asked if asked else utd,
            "hil/owed": self._learning.owed,
            "hil/staleness": stale,
        }

    def _save(self) -> None:
        self._learning.save(
            self._step,
            {
                "place": list(self._desk.place),
                "updates": self._updates,
                "left_out": self._left_out,
                "outcomes": self._outcomes,
                "version": self._publisher.version,
                "helped": self._helped.state_dict(),
            },
        )
        self._desk.kept = self._desk.place[0]
        self._desk.acknowledge()

    # ---- the actor -------------------------------------------------------------------------------------

    def _open(self, folder: Path) -> Desk:
        config = self._config
        with mistakes():
            address = parse(config.link or f"ipc://{folder / 'link'}")
            keys = load_server_keys(Path(config.keys)) if config.keys else None
            desk = Desk(address, keys, self._clock, self._learner, self._welcome)
        self._ended.callback(desk.close)
        return desk

    def _start_actor(self) -> ActorProcess | None:
        if self._config.remote:
            self._say(f"waiting for `robot-rl actor learner={self._desk.address}`")
            return None
        spool = self._run.directory / "spool"
        device = self._apart.job.device
        learner = f"learner={self._desk.address}"
        return ActorProcess([learner, "wait=false", f"spool={spool}", f"device={device}"])

    def _say(self, text: str) -> None:
        print(f"{self._run.directory.name}: {text}", file=sys.stderr, flush=True)


def _identity(directory: Path) -> str:
    """Of a run, so that no other run's episodes get into it."""
    path = directory / "identity"
    if not path.is_file():
        write_text(path, uuid.uuid4().hex + "\n")
    return path.read_text().strip()
