"""Training with interventions, in two processes that may be killed or stopped at any time."""

import json
import os
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

from robot_rl.cli.main import COMMANDS
from robot_rl.data.replay_buffer import SOURCES
from robot_rl.hardware.client import RobotClient
from robot_rl.hardware.clock import MS
from robot_rl.hardware.plugins import VARIABLE
from robot_rl.hardware.protocol.security import make_client_keys
from robot_rl.hil.link.client import LOST_AFTER
from robot_rl.robot.deploy.judge import load_classifier
from robot_rl.training.logger import read_metrics
from tests.conftest import RunCommand
from tests.hardware.processes import eventually
from tests.robot_rl.hil.training import HUMAN, SMALL, Training, arguments
from tests.robot_rl.robot.deploy.test_deploy import classifier_with, serving
from tests.robot_rl.training.test_training import assert_same, final_state, metrics

HANDOVER = SOURCES.index("handover")
Start = Callable[..., Training]


@pytest.fixture
def start(demonstrations: Path, base_run: Path, tmp_path: Path) -> Iterator[Start]:
    started: list[Training] = []

    def make(*more: str) -> Training:
        started.append(Training(demonstrations, base_run, tmp_path, *more))
        return started[-1]

    yield make
    for training in started:
        training.kill()


@pytest.fixture
def sure_interventions(monkeypatch: pytest.MonkeyPatch) -> None:
    """The operator of every actor takes over in each episode, whatever the policy does."""
    monkeypatch.setenv(VARIABLE, "tests.robot_rl.hil.sure_expert")


@pytest.mark.full
@pytest.mark.usefixtures("sure_interventions")
def test_interventions_of_a_scripted_operator_are_stored_and_logged(
    robot_rl: RunCommand, demonstrations: Path, base_run: Path, tmp_path: Path
) -> None:
    """In lockstep, so that the same seed gives the same run."""
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
    interventions = [json.loads(line) for line in lines]
    assert len(interventions) >= 2
    # The replay stores the applied action, not the policy's.
    applied = np.concatenate([line["applied"] for line in interventions])
    proposed = np.concatenate([line["proposed"] for line in interventions])
    stored = replay["data.action"][0, driven].numpy()
    np.testing.assert_allclose(stored[: len(applied)], applied, atol=1e-3)
    assert np.abs(applied - proposed).mean() > 0.1
    # Hold and ramp follow an intervention.
    assert (source[~last] == HANDOVER).any()

    series = read_metrics(tmp_path / "first" / "metrics.csv")
    rate = [value for _, _, value in series["hil/intervention_rate"]]
    assert len(rate) == len(series["train/success"])
    assert 0 < max(rate) < 1
    assert {"hil/interventions", "hil/intervention_steps", "hil/alone"} <= series.keys()
    assert {value for _, _, value in series["hil/utd"]} == {1.0}


@pytest.mark.full
@pytest.mark.usefixtures("sure_interventions")
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
def test_a_world_model_learns_from_the_episodes_of_an_actor(
    robot_rl: RunCommand, demonstrations: Path, base_run: Path, tmp_path: Path
) -> None:
    world_model = ("refit_every=2", "pool=2", "first_updates=4", "fit_updates=2", "branches=8", "hidden=[16]")
    more = ("method=residual_chunk", "method.steps=150", "hil.lockstep=true", "task.horizon=15")
    options = ("imagination=state", "device=cpu", *(f"imagination.{option}" for option in world_model))
    robot_rl("train", *arguments(demonstrations, base_run, tmp_path, "rl", *more, *options))
    records = (tmp_path / "rl" / "imagination.jsonl").read_text().splitlines()
    assert json.loads(records[-1])["episodes"] > len(records)


@pytest.mark.full
def test_a_killed_actor_loses_at_most_its_open_episode(start: Start) -> None:
    training = start()
    training.await_checkpoint()
    os.kill(training.actor(), signal.SIGKILL)
    training.await_text("the actor died with code -9 and was restarted")
    before = training.await_checkpoint()
    training.await_checkpoint(after=before)
    assert training.end() == 130
    state = training.checkpoint()
    replay = state["replay"]
    rows, cut = int(replay["count"][0]), training.output.count("was cut after")
    ended = int(replay["data.last"][0, :rows].sum())
    # Every received step is stored. A complete episode has one more row, for its end; a cut one has none.
    assert rows == state["step"] + ended - cut
    assert cut <= 1


@pytest.mark.full
def test_a_killed_learner_ends_the_episode_and_resumes_without_loss(start: Start) -> None:
    training = start()
    training.await_checkpoint()
    actor = training.actor()
    training.process.send_signal(signal.SIGKILL)
    killed = time.monotonic()
    training.process.wait()
    training.await_text("no connection to the learner")
    assert time.monotonic() - killed > LOST_AFTER / (1000 * MS) - 0.5
    training.await_text("unsaved episodes are in")
    eventually(lambda: not Path(f"/proc/{actor}").exists(), "the actor has ended")
    waiting = training.spooled()
    assert waiting
    saved = training.checkpoint()
    episode, index = saved["actors"][0]["place"]

    training.start()
    training.await_checkpoint(after=saved["step"])
    assert training.end() == 130
    state = training.checkpoint()
    # The actor closed the open episode and sent it from its disk.
    assert "was cut" not in training.output
    assert state["actors"][0]["place"][0] > episode
    rows = int(state["replay"]["count"][0])
    ended = int(state["replay"]["data.last"][0, :rows].sum())
    assert rows == state["step"] + ended
    assert state["step"] > saved["step"]
    assert index >= 0


@pytest.mark.full
def test_an_actor_continues_while_its_learner_is_stopped(start: Start) -> None:
    training = start("task.horizon=10")
    step = training.await_checkpoint()
    during: set[str] = set()
    # Each stop is shorter than the actor's timeout; a busy machine needs several.
    while len(during) < 3:
        before = training.spooled()
        training.process.send_signal(signal.SIGSTOP)
        time.sleep(3.0)
        during |= training.spooled() - before
        training.process.send_signal(signal.SIGCONT)
        step = training.await_checkpoint(after=step)
    training.await_checkpoint(after=step)
    assert training.end() == 130
    assert "no connection to the learner" not in training.output
    assert "restarted" not in training.output


@pytest.mark.full
@pytest.mark.usefixtures("sure_interventions")
def test_the_mode_of_a_served_arm_is_human_during_an_intervention(
    robot_rl: RunCommand, demonstrations: Path, base_run: Path, tmp_path: Path
) -> None:
    """A simulated task behind a server; the expert sees what the robot measures."""
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


@pytest.mark.full
def test_the_scripted_operator_takes_back_what_a_classifier_sees_wrongly_and_it_is_corrected(
    robot_rl: RunCommand, demonstrations: Path, base_run: Path, tmp_path: Path
) -> None:
    sees_everywhere = classifier_with(-1e9, demonstrations, tmp_path, robot_rl)
    (tmp_path / "robot").mkdir()
    with serving(tmp_path / "robot", "task=lift", "states=seeds") as (address, _):
        judged = (f"hil.success={sees_everywhere}", "hil.correct_classifier=true")
        more = ("method.steps=150", f"hil.robot={address}", "task.horizon=60", "hil.fraction=0", *judged)
        robot_rl("train", *arguments(demonstrations, base_run, tmp_path, "run", *more))
    corrected, _ = load_classifier(str(tmp_path / "run" / "spool" / "classifier"))
    assert corrected.corrected > 0
    assert corrected.threshold > -1e9
    replay = final_state(tmp_path / "run")["replay"]
    ends = replay["data.last"][0, : int(replay["count"][0])].nonzero()
    assert len(ends) > 0
    # The first episode ended by a success that was none, in its first steps.
    assert ends[0] < 10
    assert replay["data.reward"][0, : int(ends[0]) + 1].sum() == 0


def test_contradictory_options_are_rejected(
    robot_rl: RunCommand, demonstrations: Path, base_run: Path, tmp_path: Path
) -> None:
    here = arguments(demonstrations, base_run, tmp_path, "run", "method.steps=50")
    several, keys = ("hil.actors=2", "hil.link=tcp://127.0.0.1:5560"), tmp_path / "keys"
    make_client_keys(keys, "actor1", "policy")
    for more, message in (
        (["method.num_envs=2"], "an operator watches one arm"),
        (["method.replay_capacity=40"], "interventions would be overwritten"),
        (["hil.lockstep=true", "hil.realtime=true"], "which a robot or a person cannot"),
        (["hil.reset=home"], "give hil.robot"),
        (["hil.robot=ipc:///tmp/x", "hil.reset=scen"], "hil.reset=scen: choose scene, operator, home"),
        (["hil.first=true"], "give hil.turns_with=…"),
        (["hil.fraction=2"], "choose it in"),
        (["hil.keys=keys"], "hil.link=tcp://"),
        (["hil.operator=joystick"], "choose keyboard, spacemouse"),
        (["hil.operator=leader"], "the device must give motions of the tool"),
        (["hil.operator=web"], r"give hil.robot=…"),
        (["hil.operator=web", "hil.device.host=0.0.0.0"], "hil.device.* can be reached by other machines"),
        (["hil.operator=gamepad", "hil.device.port=1"], "hil.device.port: the settings of gamepad are path"),
        (["hil.operator=replay"], "needs hil.device.path=…"),
        (["hil.device.port=1"], "hil.operator=scripted is none: leave it out"),
        (["hil.actors=0"], "(hil.actors|method.num_envs)=0: choose 1 or more"),
        (["hil.actors=2"], "hil.actors=2: give hil.link=…"),
        ([*several, "hil.lockstep=true"], "alternates between learner and one actor"),
        ([*several, "method.num_envs=1"], "leave it out with hil=on, or set it to 2"),
        ([*several, "method.replay_capacity=99"], r"method.steps=50 times hil.actors=2: interventions would"),
        (
            [*several, f"hil.keys={keys}"],
            "has no key of actor2: make one with `robot-rl robot keys name=",
        ),
    ):
        with pytest.raises(ValueError, match=message):
            robot_rl("train", *here, *more)
    assert not (tmp_path / "run").exists()


def test_an_actor_has_a_name_or_keys(robot_rl: RunCommand) -> None:
    with pytest.raises(ValueError, match=r"leave name=… or keys=… out"):
        robot_rl("actor", "learner=ipc:///nowhere/l", "name=actor1", "keys=arm.json")


def test_on_policy_methods_are_rejected(
    robot_rl: RunCommand, demonstrations: Path, base_run: Path, tmp_path: Path
) -> None:
    with pytest.raises(ValueError, match="not from interventions"):
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
    assert "actor" in COMMANDS["Training"]
