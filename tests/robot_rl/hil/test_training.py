"""Training with somebody who takes over, as two processes that may be killed or stopped at any time."""

import json
import os
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

from robot_rl.cli.main import COMMANDS
from robot_rl.data.replay import SOURCES
from robot_rl.hardware.client import RobotClient
from robot_rl.hardware.plugins import VARIABLE
from robot_rl.training.logger import read_metrics
from tests.conftest import RunCommand
from tests.hardware.processes import eventually
from tests.robot_rl.hil.training import HUMAN, SMALL, Training, arguments
from tests.robot_rl.robot.deploy.test_deploy import serving
from tests.robot_rl.training.test_training import assert_same, final_state, metrics

HANDOVER = SOURCES.index("handover")
Begin = Callable[..., Training]


@pytest.fixture
def begin(demonstrations: Path, base_run: Path, tmp_path: Path) -> Iterator[Begin]:
    begun: list[Training] = []

    def make(*more: str) -> Training:
        begun.append(Training(demonstrations, base_run, tmp_path, *more))
        return begun[-1]

    yield make
    for training in begun:
        training.kill()


@pytest.fixture
def sure_help(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever the policy does, the operator of an actor that is started takes over once in each episode."""
    monkeypatch.setenv(VARIABLE, "tests.robot_rl.hil.sure_expert")


@pytest.mark.full
@pytest.mark.usefixtures("sure_help")
def test_a_scripted_operator_helps_and_all_of_it_is_stored_and_told(
    robot_rl: RunCommand, demonstrations: Path, base_run: Path, tmp_path: Path
) -> None:
    """In lockstep, where the same seed gives the same run."""
    for name in ("first", "second"):
        more = ("method.steps=300", "hil.lockstep=true", "task.horizon=120")
        robot_rl("train", *arguments(demonstrations, base_run, tmp_path, name, *more))
    state = final_state(tmp_path / "first")
    assert_same(state, final_state(tmp_path / "second"))
    assert metrics(tmp_path / "first") == metrics(tmp_path / "second")
    assert state["learner"]["updates"] == 10 + 280

    replay = state["replay"]
    rows = int(replay["count"][0])
    source, last = replay["data.source"][0, :rows].numpy(), replay["data.last"][0, :rows].numpy()
    driven = np.flatnonzero((source == HUMAN) & ~last)
    lines = (tmp_path / "first" / "interventions.jsonl").read_text().splitlines()
    told = [json.loads(line) for line in lines]
    assert len(told) >= 2
    # What is stored as the action is what the person did, not what the muted policy would have done.
    applied = np.concatenate([line["applied"] for line in told])
    proposed = np.concatenate([line["proposed"] for line in told])
    stored = replay["data.action"][0, driven].numpy()
    np.testing.assert_allclose(stored[: len(applied)], applied, atol=1e-3)
    assert np.abs(applied - proposed).mean() > 0.1
    # After a person lets go comes the hold, then the ramp.
    assert (source[~last] == HANDOVER).any()

    series = read_metrics(tmp_path / "first" / "metrics.csv")
    rate = [value for _, _, value in series["hil/intervention_rate"]]
    assert len(rate) == len(series["train/success"])
    assert 0 < max(rate) < 1
    assert {"hil/interventions", "hil/intervention_steps", "hil/alone"} <= series.keys()
    assert {value for _, _, value in series["hil/utd"]} == {1.0}


@pytest.mark.full
@pytest.mark.usefixtures("sure_help")
@pytest.mark.parametrize("method", ["residual", "expo", "dsrl", "dsrl_na", "ibrl", "rlpd"])
def test_every_method_learns_from_interventions(
    method: str, robot_rl: RunCommand, demonstrations: Path, base_run: Path, tmp_path: Path
) -> None:
    small = [option for option in SMALL if "critic_warmup" not in option]
    robot_rl(
        "train",
        f"method={method}",
        "hil=on",
        "hil.operator=scripted",
        "hil.lockstep=true",
        f"base={base_run}",
        f"runs_dir={tmp_path}",
        "name=run",
        "method.steps=120",
        "method.warmup_steps=20",
        "method.critic_warmup=5",
        "task.horizon=110",
        *([] if method == "dsrl" else [f"data={demonstrations}"]),
        *small,
    )
    state = final_state(tmp_path / "run")
    assert state["learner"]["updates"] == 5 + 100
    assert state["version"] >= 1
    rows = int(state["replay"]["count"][0])
    assert (state["replay"]["data.source"][0, :rows] == HUMAN).any()


@pytest.mark.full
def test_a_killed_actor_costs_at_most_its_open_episode(begin: Begin) -> None:
    training = begin()
    training.await_checkpoint()
    os.kill(training.actor(), signal.SIGKILL)
    training.await_text("the actor died with code -9 and was started again")
    before = training.await_checkpoint()
    training.await_checkpoint(after=before)
    assert training.end() == 130
    state = training.checkpoint()
    replay = state["replay"]
    rows, broken = int(replay["count"][0]), training.said.count("broke off after")
    ended = int(replay["data.last"][0, :rows].sum())
    # Every step that ever came is there. A whole episode has a row for its end; one that broke off has none.
    assert rows == state["step"] + ended - broken
    assert broken <= 1


@pytest.mark.full
def test_a_killed_learner_ends_the_episode_and_goes_on_without_a_loss(begin: Begin) -> None:
    training = begin()
    training.await_checkpoint()
    actor = training.actor()
    training.process.send_signal(signal.SIGKILL)
    training.process.wait()
    training.await_text("has been gone for")
    training.await_text("episodes wait in")
    eventually(lambda: not Path(f"/proc/{actor}").exists(), "the actor has ended")
    waiting = training.spooled()
    assert waiting
    saved = training.checkpoint()
    episode, index = saved["place"]

    training.start()
    training.await_checkpoint(after=saved["step"])
    assert training.end() == 130
    state = training.checkpoint()
    # The episode that was open when the learner died was closed by its actor, and came from its disk.
    assert "broke off" not in training.said
    assert state["place"][0] > episode
    rows = int(state["replay"]["count"][0])
    ended = int(state["replay"]["data.last"][0, :rows].sum())
    assert rows == state["step"] + ended
    assert state["step"] > saved["step"]
    assert index >= 0


@pytest.mark.full
def test_an_actor_goes_on_while_its_learner_is_stopped(begin: Begin) -> None:
    training = begin("task.horizon=10")
    step = training.await_checkpoint()
    during: set[str] = set()
    # Each time it is stopped for less than the actor's patience; a busy machine needs several.
    while len(during) < 3:
        before = training.spooled()
        training.process.send_signal(signal.SIGSTOP)
        time.sleep(3.0)
        during |= training.spooled() - before
        training.process.send_signal(signal.SIGCONT)
        step = training.await_checkpoint(after=step)
    training.await_checkpoint(after=step)
    assert training.end() == 130
    assert "has been gone" not in training.said
    assert "started again" not in training.said


@pytest.mark.full
@pytest.mark.usefixtures("sure_help")
def test_a_served_arm_is_the_persons_while_they_drive(
    robot_rl: RunCommand, demonstrations: Path, base_run: Path, tmp_path: Path
) -> None:
    """A simulated task behind its server, which the expert sees by what the robot measures."""
    (tmp_path / "robot").mkdir()
    with serving(tmp_path / "robot", "task=lift", "states=seeds") as (address, _):
        more = ("method.steps=250", f"hil.robot={address}", "task.horizon=120")
        robot_rl("train", *arguments(demonstrations, base_run, tmp_path, "run", *more))
        with RobotClient(address, "test", timeout=30.0) as robot:
            modes = [event.text for event in robot.events() if event.what in ("mode", "lease")]
    assert any("(human) to actor" in text for text in modes)
    state = final_state(tmp_path / "run")
    rows = int(state["replay"]["count"][0])
    assert (state["replay"]["data.source"][0, :rows] == HUMAN).any()


def test_what_cannot_work_is_refused(
    robot_rl: RunCommand, demonstrations: Path, base_run: Path, tmp_path: Path
) -> None:
    here = arguments(demonstrations, base_run, tmp_path, "run", "method.steps=50")
    for more, said in (
        (["method.num_envs=2"], "somebody who may take over watches one arm"),
        (["method.replay_capacity=40"], "interventions would be overwritten"),
        (["hil.lockstep=true", "hil.realtime=true"], "which a robot or a person cannot"),
        (["hil.reset=home"], "give hil.robot"),
        (["hil.fraction=2"], "choose it in"),
        (["hil.keys=keys"], "hil.link=tcp://"),
        (["hil.operator=joystick"], "choose keyboard, spacemouse"),
        (["hil.operator=leader"], "it has to give motions of the tool"),
        (["hil.operator=web"], r"give hil.robot=…"),
        (["hil.operator=web", "hil.device.host=0.0.0.0"], "hil.device.* can be reached by other machines"),
        (["hil.operator=gamepad", "hil.device.port=1"], "hil.device.port: gamepad has path"),
        (["hil.operator=replay"], "needs hil.device.path=…"),
        (["hil.device.port=1"], "and hil.operator=scripted: leave it out"),
    ):
        with pytest.raises(ValueError, match=said):
            robot_rl("train", *here, *more)
    assert not (tmp_path / "run").exists()


def test_on_policy_learning_is_refused(
    robot_rl: RunCommand, demonstrations: Path, base_run: Path, tmp_path: Path
) -> None:
    with pytest.raises(ValueError, match="does not learn from what others did"):
        robot_rl(
            "train",
            "method=residual_ppo",
            "hil=on",
            "hil.operator=none",
            f"base={base_run}",
            f"runs_dir={tmp_path}",
            "name=run",
        )


def test_the_actor_is_a_command() -> None:
    assert "actor" in COMMANDS["who trains"]
