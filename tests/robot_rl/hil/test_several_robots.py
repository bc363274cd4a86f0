"""One learner and two actors, each in its own process, any of which may be killed."""

import json
import signal
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from robot_rl.errors import UserError
from robot_rl.files.state_tree import join
from robot_rl.hardware.plugins import VARIABLE
from robot_rl.hil.link.messages import Step, from_actor
from robot_rl.hil.link.outbox import Spool
from robot_rl.runs import list_checkpoints
from robot_rl.training.logger import read_metrics
from tests.conftest import RunCommand
from tests.hardware.processes import eventually
from tests.robot_rl.hil.training import HUMAN, StartedActor, Training, arguments
from tests.robot_rl.robot.deploy.test_deploy import serving

WARMUP, CRITIC_WARMUP, HORIZON = 20, 10, 80
NAMES = ("actor1", "actor2")


class Robots:
    """A training with two actors, whose operators take over in each episode."""

    def __init__(self, training: Training, address: str, folder: Path) -> None:
        self.training, self.address, self._folder = training, address, folder
        self.actors: list[StartedActor] = []

    def add(self, name: str, *more: str, folder: Path | None = None) -> StartedActor:
        """Start an actor, with its spool in this folder."""
        self.actors.append(StartedActor(self.address, folder or self._folder, name, *more))
        return self.actors[-1]

    def steps(self) -> list[int]:
        """Steps of each actor in the newest checkpoint."""
        newest = list_checkpoints(self.training.directory / "checkpoints")[-1]
        # Without the arrays, since this is called often.
        state = join(json.loads((newest / "state.json").read_text())["state"], lambda _: np.zeros(0))
        return [actor["step"] for actor in state["actors"]]

    def await_steps(self, more: int, *numbers: int) -> None:
        """Wait until each of these actors has made so many more steps."""
        self.training.await_checkpoint()
        before = self.steps()
        output = self.training.output
        eventually(
            lambda: all(self.steps()[k] >= before[k] + more for k in numbers), f"steps of {numbers}: {output}"
        )

    def cut(self, name: str) -> int:
        """How many episodes of an actor the learner has reported as cut."""
        lines = self.training.output.splitlines()
        return sum(f" {name}: episode" in line and "was cut" in line for line in lines)

    def kill(self) -> None:
        self.training.kill()
        for actor in self.actors:
            actor.kill()


@pytest.fixture
def robots(
    demonstrations: Path, base_run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Robots]:
    # The operator of every actor takes over in each episode, whatever the policy does.
    monkeypatch.setenv(VARIABLE, "tests.robot_rl.hil.sure_expert")
    address = f"ipc://{tmp_path / 'link'}"
    # However slow the learner is, it skips no updates.
    room = ("method.replay_capacity=200000", "hil.max_pending=1000000")
    more = ("hil.actors=2", f"hil.link={address}", f"task.horizon={HORIZON}", *room)
    created = Robots(Training(demonstrations, base_run, tmp_path, *more), address, tmp_path)
    yield created
    created.kill()


def cut_in(state: dict[str, Any], number: int) -> int:
    """Number of cut episodes in the stream of an actor, in which each received step is stored once."""
    replay = state["replay"]
    rows = int(replay["count"][number])
    observed = replay["data.state"][number, :rows].numpy()
    # Of an arm that holds, a late step may see the same sample of the robot again.
    seen = observed[np.append(True, (observed[1:] != observed[:-1]).any(1))]
    assert len(np.unique(seen, axis=0)) == len(seen) > 0.9 * rows
    ends = np.flatnonzero(replay["data.last"][number, :rows].numpy())
    assert np.diff(ends, prepend=-1, append=rows).max() <= HORIZON + 1
    # An episode that ended has one more row than steps.
    ended = int(replay["data.last"][number, :rows].sum())
    return int(state["actors"][number]["step"]) + ended - rows


def spooled_steps(folder: Path, position: tuple[int, int]) -> int:
    """Number of steps in a spool from a position on."""
    spool = Spool(folder)
    records = [from_actor(frame) for episode in spool.episodes for frame in spool.get(episode)]
    steps = [record for record in records if isinstance(record, Step)]
    return sum((step.episode, step.index) >= position for step in steps)


@pytest.mark.full
def test_two_robots_feed_one_learner_at_an_exact_ratio_of_updates(
    robots: Robots, robot_rl: RunCommand, demonstrations: Path, base_run: Path, tmp_path: Path
) -> None:
    """One robot is behind a server that only its actor knows, the other is simulated in its actor."""
    with ExitStack() as resources:
        (tmp_path / "robot").mkdir()
        served, _ = resources.enter_context(serving(tmp_path / "robot", "task=lift", "states=seeds"))
        robots.add("actor1", f"robot={served}")
        robots.add("actor2")
        robots.await_steps(100, 0, 1)
        refusals = {"actor1": "another actor1 is connected", "actor3": "the run has no actor 'actor3'"}
        for name in refusals:
            (tmp_path / name).mkdir()
        refused = [robots.add(name, folder=tmp_path / name) for name in refusals]
        for actor, text in zip(refused, refusals.values(), strict=True):
            assert actor.ended() == 1
            assert sum(text in line for line in actor.output.splitlines()) == 1
        robots.await_steps(60, 0, 1)
        assert robots.training.end() == 130
    state = robots.training.checkpoint()
    step = state["step"]
    assert [actor["step"] for actor in state["actors"]] == robots.steps()
    assert sum(robots.steps()) == step
    assert state["left_out"] == 0
    assert state["learner"]["updates"] + state["owed"] == CRITIC_WARMUP + step - WARMUP
    for number, name in enumerate(NAMES):
        assert cut_in(state, number) == robots.cut(name) == 0
        rows = int(state["replay"]["count"][number])
        assert (state["replay"]["data.source"][number, :rows] == HUMAN).any()
    run = robots.training.directory
    lines = [json.loads(line) for line in (run / "interventions.jsonl").read_text().splitlines()]
    assert {line["actor"] for line in lines} == set(NAMES)
    series = read_metrics(run / "metrics.csv")
    for total, part in (("train/success", "success"), ("hil/intervention_rate", "intervention_rate")):
        each = [len(series[f"hil/{name}/{part}"]) for name in NAMES]
        assert min(each) > 0
        assert sum(each) == len(series[total])
    assert {"hil/actor1/steps", "hil/actor2/staleness"} <= series.keys()
    more = ("hil.actors=3", f"hil.link={robots.address}", "method.replay_capacity=300000")
    with pytest.raises(UserError, match=r"hil.actors was 2, now 3"):
        robot_rl(
            "train",
            *arguments(demonstrations, base_run, tmp_path, "run", *more, "method.steps=100000"),
            "task.horizon=80",
            "hil.realtime=true",
        )


@pytest.mark.full
def test_a_killed_actor_or_learner_costs_only_the_open_episodes_of_the_killed(robots: Robots) -> None:
    training = robots.training
    first, second = robots.add("actor1"), robots.add("actor2")
    robots.await_steps(60, 0, 1)

    # The other goes on, and the killed one comes back.
    second.kill()
    robots.await_steps(100, 0)
    second.start()
    robots.await_steps(60, 0, 1)
    assert robots.cut("actor1") == 0
    assert robots.cut("actor2") <= 1

    # The learner and an actor at once: the other saves what it has and ends, or meets the next learner.
    training.process.send_signal(signal.SIGKILL)
    training.process.wait()
    second.kill()
    assert first.ended() == 1
    assert "no connection to the learner" in first.output
    saved = training.checkpoint()
    places = [tuple(actor["place"]) for actor in saved["actors"]]
    waiting = [
        spooled_steps(actor.spool, place) for actor, place in zip((first, second), places, strict=True)
    ]
    assert waiting[0] > 0
    reported = robots.cut("actor2")
    training.start()
    first.start()
    second.start()
    robots.await_steps(max(waiting) + 60, 0, 1)
    assert training.end() == 130
    state = training.checkpoint()
    assert robots.cut("actor1") == cut_in(state, 0) == 0
    assert cut_in(state, 1) == cut_in(saved, 1) + robots.cut("actor2") - reported
    assert robots.cut("actor2") <= reported + 1
    for now, before, more in zip(state["actors"], saved["actors"], waiting, strict=True):
        assert now["step"] >= before["step"] + more
    assert sum(actor["step"] for actor in state["actors"]) == state["step"]
