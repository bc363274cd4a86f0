"""`robot-rl deploy` against real servers in real time. Success is not asserted: the machine may be slow."""

import json
import os
import pty
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest

from robot_rl.cli.main import main
from robot_rl.data.dataset import Dataset
from robot_rl.data.episode_notes import exemplary_steps, steps_by_source
from robot_rl.envs.real_arm import RealArmEnv
from robot_rl.hardware.client import RobotClient
from robot_rl.hardware.connection import NoAnswer
from robot_rl.hardware.protocol.messages import Mode
from robot_rl.hardware.recording.raw import RawDataset
from robot_rl.hardware.spec import Latency, RobotSpec
from robot_rl.policies.store import read_record
from robot_rl.robot.deploy.judge import load_classifier
from robot_rl.saved_policies.bundle import read_bundle, write_bundle
from robot_rl.saved_policies.loading import policy_directory
from robot_rl.stats import wilson
from tests.conftest import SMALL_BASE, SMALL_RL, RunCommand
from tests.hardware.processes import PATIENCE, ROOT, Process, eventually
from tests.hardware.unhurried import LONG

STEPS = 12
"""Of an episode; 0.6 s."""
UNHURRIED = "plugins=[tests.robot_rl.unhurried]"


@pytest.fixture(autouse=True)
def unhurried(monkeypatch: pytest.MonkeyPatch) -> None:
    """In this process no state is too old for a policy, however busy the machine is."""
    monkeypatch.setitem(RealArmEnv.__init__.__kwdefaults__, "max_age_ms", float(LONG))


@contextmanager
def serving(folder: Path, *robot: str) -> Iterator[tuple[str, Process]]:
    """A server that answers, with a lease that no busy machine loses."""
    address = f"ipc://{folder / 'r'}"
    command = ["-m", "robot_rl", "robot", *robot, f"address={address}", "lease_ms=1000", UNHURRIED]
    process = Process(command, "Ctrl-C ends it")
    try:
        eventually(lambda: answers(address), "the server answers")
        yield address, process
    finally:
        process.kill()


def answers(address: str) -> bool:
    try:
        with RobotClient(address, "test", timeout=5.0) as robot:
            return robot.sample().mode is Mode.IDLE
    except NoAnswer:
        return False


def classifier_with(threshold: float, data: Path, runs: Path, robot_rl: RunCommand) -> Path:
    """A run of a classifier of states that judges by this threshold alone."""
    run = runs / "judge"
    common = (f"data={data}", f"runs_dir={runs}", "name=judge", "threads=1")
    robot_rl("train", "method=classifier", *common, "method.steps=1", "method.encoder=state")
    classifier, _ = load_classifier(str(run))
    classifier.threshold.fill_(threshold)
    saved = policy_directory(run)
    classifier.save(saved, read_record(saved).meta)
    return run


def short(run: Path, to: Path) -> Path:
    """The same policy for episodes of a few steps."""
    shutil.copytree(run, to)
    for path in to.glob("checkpoints/*/policy/policy.json"):
        record = json.loads(path.read_text())
        record["meta"]["environment"]["horizon"] = STEPS
        path.write_text(json.dumps(record))
    return to


@pytest.fixture(scope="module")
def lift(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with serving(tmp_path_factory.mktemp("lift"), "task=lift") as (address, _):
        yield address


@pytest.fixture
def policy(base_run: Path, tmp_path: Path) -> Path:
    return short(base_run, tmp_path / "base")


def read(policy: Path) -> dict:
    return json.loads((policy / "deploy.json").read_text())


def state_of(address: str) -> tuple[Mode, str]:
    with RobotClient(address, "test", timeout=30.0) as robot:
        state = robot.sample()
        return state.mode, state.lease_holder


def test_episodes_begin_at_the_saved_states_of_a_served_task(
    lift: str, policy: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["deploy", f"policy={policy}", f"robot={lift}", "episodes=2"]) == 0
    said, record = capsys.readouterr().out, read(policy)
    assert (record["ended"], record["reset"], record["kind"]) == ("done", "scene", "base")
    assert record["robot"]["name"] == "lift"
    episodes = record["episodes"]
    assert [episode["episode"] for episode in episodes] == [0, 1]
    assert all(episode["steps"] == STEPS or episode["interrupted"] for episode in episodes)
    assert said.count("episode   ") == 2
    assert "success " in said
    assert "95 % [" in said
    with RobotClient(lift, "test", timeout=30.0) as robot:
        begun = [event.text for event in robot.events() if event.what == "scene"]
        assert begun == [f"the scene was reset to start {number}" for number in (1, 0, 1)]
        assert robot.sample().mode is Mode.IDLE


def test_an_arm_can_begin_at_home_and_actions_can_have_their_time(lift: str, policy: Path) -> None:
    more = ("episodes=1", "reset=home", "lookahead_ms=90", "horizon=7")
    assert main(["deploy", f"policy={policy}", f"robot={lift}", *more]) == 0
    assert [read(policy)[name] for name in ("reset", "lookahead_ms", "horizon")] == ["home", 90.0, 7]
    (episode,) = read(policy)["episodes"]
    assert episode["steps"] == 7 or episode["interrupted"]
    assert episode["refused"] == 0 or episode["interrupted"]
    assert state_of(lift) == (Mode.IDLE, "")


def test_chunks_may_be_computed_while_the_arm_moves(lift: str, policy: Path) -> None:
    command = ["deploy", f"policy={policy}", f"robot={lift}", "episodes=1", "asynchronous=naive"]
    assert main([*command, "delay=1"]) == 2
    assert main(command) == 0
    assert (read(policy)["asynchronous"], read(policy)["delay"]) == ("naive", 0)
    (episode,) = read(policy)["episodes"]
    assert episode["steps"] == STEPS or episode["interrupted"]
    assert episode["holds"] <= STEPS
    assert state_of(lift) == (Mode.IDLE, "")


def test_chunks_may_arrive_steps_after_their_request(
    lift: str, demonstrations: Path, tmp_path: Path, robot_rl: RunCommand
) -> None:
    delay, long = 4, ("base.horizon=12", "base.execute=4", "base.max_prefix=4")
    run = (f"data={demonstrations}", f"runs_dir={tmp_path}", "name=long", "method.steps=1", "threads=1")
    robot_rl("train", "method=bc", *SMALL_BASE, *long, *run)
    policy = short(tmp_path / "long", tmp_path / "short")
    more = (f"robot={lift}", "episodes=2", "asynchronous=prefix", f"delay={delay}", "horizon=20")
    assert main(["deploy", f"policy={policy}", *more]) == 0
    record = read(policy)
    assert (record["asynchronous"], record["delay"], record["ended"]) == ("prefix", delay, "done")
    assert all(episode["steps"] == 20 or episode["interrupted"] for episode in record["episodes"])
    assert all(episode["holds"] <= episode["steps"] for episode in record["episodes"])
    assert all(0 < episode["jerk"] < 8 for episode in record["episodes"] if episode["steps"] > 2)
    assert state_of(lift) == (Mode.IDLE, "")


@pytest.mark.parametrize(("threshold", "success", "steps"), [(-1e9, True, 1), (1e9, False, STEPS)])
def test_a_classifier_may_judge_success(
    lift: str,
    policy: Path,
    demonstrations: Path,
    tmp_path: Path,
    robot_rl: RunCommand,
    threshold: float,
    success: bool,
    steps: int,
) -> None:
    run = classifier_with(threshold, demonstrations, tmp_path, robot_rl)
    assert main(["deploy", f"policy={policy}", f"robot={lift}", "episodes=3", f"success={run}"]) == 0
    record = read(policy)
    assert record["judge"] == str(run)
    assert {(episode["success"], episode["steps"]) for episode in record["episodes"]} == {(success, steps)}


@pytest.mark.full
def test_two_take_turns(lift: str, base_run: Path, tmp_path: Path) -> None:
    """A forward and a backward task reset each other."""
    forward, backward = (short(base_run, tmp_path / name) for name in ("forward", "backward"))
    with RobotClient(lift, "test", timeout=30.0) as robot:
        since = robot.events()[-1].seq
    processes: list[Process] = []
    common = ("-m", "robot_rl", "deploy", f"robot={lift}", "reset=home", "episodes=2", UNHURRIED)
    second = (*common, f"policy={backward}", "name=backward", "turns_with=forward")
    first = (*common, f"policy={forward}", "name=forward", "turns_with=backward", "first=true")
    with ExitStack() as stack:
        for command, other in ((second, "forward"), (first, "backward")):
            process = Process([*command], f"it takes turns with {other}")
            stack.callback(process.kill)
            processes.append(process)
        for process in processes:
            assert process.wait() == 0, process.output
    with RobotClient(lift, "test", timeout=30.0) as robot:
        happened = [event.text for event in robot.events(since) if event.what == "lease"]
    acted = [text.rpartition(" ")[2] for text in happened if "(policy) to" in text]
    assert acted == ["forward", "backward"] * 2
    assert [len(read(policy)["episodes"]) for policy in (forward, backward)] == [2, 2]


def deploying(policy: Path, address: str, *more: str) -> Process:
    """Ready when its first episode has ended."""
    command = ["-m", "robot_rl", "deploy", f"policy={policy}", f"robot={address}", "episodes=50"]
    command += [UNHURRIED, *more]
    return Process(command, "episode   0")


@pytest.mark.full
def test_ctrl_c_leaves_the_arm_disarmed_and_the_results_written(lift: str, policy: Path) -> None:
    process = deploying(policy, lift)
    try:
        process.send(signal.SIGINT)
        assert process.wait() == 130
    finally:
        process.kill()
    assert "at rest and disarmed" in process.output
    record = read(policy)
    assert record["ended"] == "stopped"
    assert 0 < len(record["episodes"]) < 50
    assert state_of(lift) == (Mode.IDLE, "")


@pytest.mark.full
def test_a_server_that_dies_is_one_line_and_the_results_are_written(policy: Path, tmp_path: Path) -> None:
    (tmp_path / "other").mkdir()
    with serving(tmp_path / "other", "task=lift") as (address, server):
        process = deploying(policy, address)
        try:
            server.kill()
            assert process.wait() == 1
        finally:
            process.kill()
    last = process.output.strip().splitlines()[-1]
    assert last.startswith(f"robot-rl: {address}: ")
    assert "Traceback" not in process.output
    record = read(policy)
    assert record["ended"] in last
    assert 0 < len(record["episodes"]) < 50


class Person:
    """Somebody at a terminal in which a policy is deployed."""

    def __init__(self, policy: Path, address: str, *more: str) -> None:
        self._keys, program = pty.openpty()
        command = [sys.executable, "-m", "robot_rl", "deploy", f"policy={policy}", f"robot={address}"]
        command += [UNHURRIED, *more]
        self.process = subprocess.Popen(
            command,
            cwd=ROOT,
            env={**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"},
            stdin=program,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        os.close(program)
        self.seen = ""

    def await_text(self, text: str) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.seen += line
            if text in line:
                return
        raise AssertionError(f"never {text!r}: {self.seen}")

    def press(self, key: str) -> None:
        os.write(self._keys, key.encode())

    def end(self) -> int:
        more, _ = self.process.communicate(timeout=PATIENCE)
        self.seen += more
        return self.process.returncode

    def close(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.communicate()
        os.close(self._keys)


@pytest.mark.full
def test_a_person_prepares_the_scene_and_judges_where_the_robot_does_not(
    robot_rl: RunCommand, tmp_path: Path
) -> None:
    """The simulated arm, which says nothing of success; the policy looks at the arm alone."""
    seen = ("task.state_keys=[robot0_eef_pos,robot0_gripper_qpos]", f"data={tmp_path / 'lift.zarr'}")
    robot_rl("collect", *seen, "episodes=1")
    training = ("method=bc", "method.steps=3", "threads=1", *SMALL_BASE)
    robot_rl("train", *seen, f"runs_dir={tmp_path}", "name=bc", *training)
    (tmp_path / "arm").mkdir()
    with serving(tmp_path / "arm", "driver=sim_panda") as (address, _):
        person = Person(tmp_path / "bc", address, "episodes=3")
        try:
            person.await_text("episode 0: prepare the scene, then press Enter")
            assert state_of(address) == (Mode.IDLE, ""), "hands may be in the scene"
            person.press("\n")
            eventually(lambda: state_of(address)[0] is Mode.POLICY, "it acts")
            person.press("s")
            person.await_text("episode   0: success")
            person.await_text("episode 1: prepare")
            person.press("\n")
            eventually(lambda: state_of(address)[0] is Mode.POLICY, "it acts")
            person.press("f")
            person.await_text("episode   1: failure")
            person.await_text("episode 2: prepare")
            person.process.send_signal(signal.SIGINT)
            assert person.end() == 130
        finally:
            person.close()
        assert state_of(address) == (Mode.IDLE, "")
    record = read(tmp_path / "bc")
    assert (record["reset"], record["ended"]) == ("operator", "stopped")
    assert [episode["success"] for episode in record["episodes"]] == [True, False]
    assert all(0 < episode["steps"] < 200 for episode in record["episodes"])


@pytest.mark.full
def test_a_person_at_the_keyboard_ends_an_episode_and_acknowledges_a_fault(
    lift: str, base_run: Path, tmp_path: Path
) -> None:
    shutil.copytree(base_run, tmp_path / "base")
    person = Person(tmp_path / "base", lift, "operator=keyboard", "episodes=3")
    try:
        person.await_text("arm; after a fault")
        eventually(lambda: state_of(lift)[0] is Mode.POLICY, "it acts")
        person.press("f")
        person.await_text("episode   0: failure")
        eventually(lambda: state_of(lift)[0] is Mode.POLICY, "it acts again")
        with RobotClient(lift, "test", timeout=30.0) as robot:
            robot.stop("a hand in the way")
        person.await_text("episode   1: failure")
        person.await_text("episode 2 cannot begin yet: the robot is in fault")
        assert state_of(lift)[0] is Mode.FAULT
        person.press("a")
        eventually(lambda: state_of(lift)[0] is Mode.POLICY, "it goes on")
        person.press("f")
        person.await_text("episode   2: failure")
        assert person.end() == 0
    finally:
        person.close()
        if state_of(lift)[0] is Mode.FAULT:
            with RobotClient(lift, "test", "operator", timeout=30.0) as robot:
                robot.acknowledge("the test is over")
    record = read(tmp_path / "base")
    assert [bool(episode["interrupted"]) for episode in record["episodes"]] == [False, True, False]
    assert len(list((tmp_path / "base" / "deploy.raw").glob("episode_*"))) == 3


@pytest.mark.full
def test_success_through_the_bridge_is_that_of_simulation(robot_rl: RunCommand, tmp_path: Path) -> None:
    """A policy of some skill, on the same starts with the same noise; in real time, as fast as the arm."""
    data, starts = tmp_path / "lift.zarr", 40
    robot_rl("collect", f"data={data}", "episodes=40", "noise=0.3")
    size = ("base.width=128", "base.inference_steps=5")
    where = (f"data={data}", f"runs_dir={tmp_path}", "name=bc", "threads=1")
    robot_rl("train", "method=bc", *where, "method.steps=3000", *size)
    policy = tmp_path / "bc"
    robot_rl("eval", f"policy={policy}", f"episodes={starts}")
    plain = json.loads((policy / "eval" / "summary.json").read_text())["policies"]["base"]["success"]
    (tmp_path / "lift").mkdir()
    with serving(tmp_path / "lift", "task=lift") as (address, _):
        assert main(["deploy", f"policy={policy}", f"robot={address}", f"episodes={starts}"]) == 0
    # Where the machine was too busy for an episode, it says nothing about the policy.
    through = [episode["success"] for episode in read(policy)["episodes"] if not episode["interrupted"]]
    assert len(through) > 0.9 * starts
    low, high = wilson(round(plain * starts), starts, 0.99)
    assert low <= sum(through) / len(through) <= high


def test_recordings_say_what_the_robot_was_asked_to_do(
    lift: str, policy: Path, robot_rl: RunCommand, tmp_path: Path
) -> None:
    for path in policy.glob("checkpoints/*/policy/policy.json"):
        record = json.loads(path.read_text())
        record["meta"]["environment"]["instructions"] = ["lift the cube", "pick up the cube"]
        record["meta"]["environment"]["observation_spec"]["instruction"] = True
        path.write_text(json.dumps(record))
    raw, asked = tmp_path / "x.raw", "pick up the cube"
    words = ["deploy", f"policy={policy}", f"robot={lift}", "episodes=1", f"record={raw}"]
    assert main([*words, "instruction=lift the cube"]) == 0
    words.append(f"out={tmp_path / 'again.json'}")
    assert main([*words, f"instruction={asked}"]) == 0
    words[-1] = f"out={tmp_path / 'other.json'}"
    # It reads none: it would do what it was trained on, and the recording would say something else.
    assert main([*words, "instruction=drop the cube"]) == 2
    said = [read(policy)["instruction"], json.loads((tmp_path / "again.json").read_text())["instruction"]]
    labels = [episode.header.labels["instruction"] for episode in RawDataset(raw).episodes.values()]
    assert said == labels == ["lift the cube", asked]
    data = tmp_path / "x.zarr"
    robot_rl("data derive", f"raw={raw}", f"out={data}", "name=x", "outcomes=[success,failure]")
    assert Dataset(data).instructions == said


@pytest.mark.full
def test_takeovers_are_recorded_and_become_data_and_cases(
    base_run: Path, demonstrations: Path, robot_rl: RunCommand, tmp_path: Path
) -> None:
    """A poor policy, and the task's expert as the operator, who takes over when it stalls."""
    policy, raw, data = tmp_path / "base", tmp_path / "base" / "deploy.raw", tmp_path / "fixed.zarr"
    shutil.copytree(base_run, policy)
    (tmp_path / "lift").mkdir()
    with serving(tmp_path / "lift", "task=lift") as (address, _):
        more = ("operator=scripted", "episodes=2")
        assert main(["deploy", f"policy={policy}", f"robot={address}", *more]) == 0
        assert state_of(address) == (Mode.IDLE, "")
    record = read(policy)
    assert (record["operator"], record["recorded"]) == ("scripted", str(raw))
    helped = [episode for episode in record["episodes"] if episode["interventions"]]
    assert helped
    assert record["alone"] == sum(e["success"] and not e["interventions"] for e in record["episodes"]) / 2
    outcomes = "outcomes=[success,failure,interrupted]"
    robot_rl("data derive", f"raw={raw}", f"out={data}", "task=lift", outcomes, "max_age_ms=5000")
    dataset = Dataset(data)
    by_hand = [count["human"] + count["handover"] for count in steps_by_source(dataset)]
    assert len(by_hand) == len(record["episodes"])
    for steps, episode in zip(by_hand, record["episodes"], strict=True):
        assert (steps > 0) == (episode["interventions"] > 0)
        assert steps >= 0.8 * episode["human_steps"]
    assert not exemplary_steps(dataset).all()
    small = (f"runs_dir={tmp_path}", "threads=1", "method.steps=2")
    robot_rl(
        "train", "method=bc", f"data={data}", "name=bc", "method.successes_only=false", *small, *SMALL_BASE
    )
    drop = ",".join(({*dataset.keys} ^ {*Dataset(demonstrations).keys}) - {"source"})
    more = tmp_path / "more.zarr"
    robot_rl("data merge", f"datasets=[{demonstrations},{data}]", f"out={more}", f"drop=[{drop}]")
    rl = ("method=residual_chunk", "name=rl", f"base={base_run}", "method.warmup_steps=4", *SMALL_RL)
    robot_rl("train", *rl, f"data={more}", f"runs_dir={tmp_path}", "method.steps=10")
    robot_rl("states", "task=lift", f"data={data}", f"out={tmp_path / 'cases.safetensors'}")
    robot_rl("eval", f"policy={tmp_path / 'bc'}", f"states={tmp_path / 'cases.safetensors'}", "num_envs=1")
    episodes = (tmp_path / "bc" / "eval" / "cases" / "episodes.csv").read_text().splitlines()
    failed = [e for e in record["episodes"] if e["interventions"] or not e["success"]]
    assert len(episodes) == 1 + len(failed)


Refused = Callable[..., str]


@pytest.fixture
def refused(capsys: pytest.CaptureFixture[str]) -> Refused:
    """Runs a deployment that must be refused; returns the line that it said."""

    def run(*arguments: str) -> str:
        capsys.readouterr()
        assert main(["deploy", *arguments]) == 2
        (line,) = [line for line in capsys.readouterr().err.splitlines() if line.startswith("robot-rl: ")]
        return line

    return run


def test_what_cannot_be_deployed_is_refused_in_one_line(
    lift: str, policy: Path, refused: Refused, tmp_path: Path
) -> None:
    here = (f"policy={policy}", f"robot={lift}")
    assert "reset=scene, episodes=101: start=100: there are 100 saved states" in refused(
        *here, "episodes=101"
    )
    assert "choose scene, operator, home" in refused(*here, "reset=scen")
    assert "ask for at least 1" in refused(*here, "episodes=0")
    (tmp_path / "cases").mkdir()
    cases = f"cases={tmp_path / 'cases'}"
    assert "has no images such as 000_front.png" in refused(*here, cases)
    (tmp_path / "cases" / "000_front.png").touch()
    assert "are scenes that you prepare: add reset=operator" in refused(*here, cases)
    assert "choose keyboard" in refused(*here, "operator=nobody")
    line = refused(*here, "operator=spacemouse")
    assert "operator: " in line
    assert "operator_device is for a device" in refused(*here, "operator_device.port=1")
    assert "check that the server runs" in refused(here[0], f"robot=ipc://{tmp_path / 'nobody'}")
    assert "does not exist" in refused(f"policy={tmp_path / 'nothing'}", here[1])
    assert not (policy / "deploy.json").exists()
    assert not (tmp_path / "nothing").exists()
    (policy / "deploy.json").write_text("precious")
    assert "holds an earlier deployment" in refused(*here)
    assert (policy / "deploy.json").read_text() == "precious"
    assert state_of(lift) == (Mode.IDLE, "")


def test_a_bundle_is_deployed_on_its_robot_and_refused_elsewhere(
    lift: str, policy: Path, refused: Refused, tmp_path: Path
) -> None:
    """Another robot, another action space, another camera: each is one line, and nothing moves."""
    bundle, here = tmp_path / "bundle", f"robot={lift}"
    assert main(["export", f"policy={policy}", f"out={bundle}", here]) == 0
    assert main(["deploy", f"policy={bundle}", here, "episodes=1"]) == 0
    assert read(bundle)["bundle"] == read_bundle(bundle).fingerprint
    (bundle / "deploy.json").unlink()

    saved = policy_directory(policy)

    def exported(name: str, robot: RobotSpec | None = None, **environment: Any) -> str:
        """A bundle of a policy of another environment."""
        shutil.copytree(saved, tmp_path / name)
        record = json.loads((saved / "policy.json").read_text())
        record["meta"]["environment"] |= environment
        (tmp_path / name / "policy.json").write_text(json.dumps(record))
        to = tmp_path / f"{name}_bundle"
        write_bundle(tmp_path / name, to, robot=(robot, Latency()) if robot else None)
        return f"policy={to}"

    with RobotClient(lift, "test", timeout=30.0) as client:
        spec = msgspec.structs.replace(client.spec, name="twin", calibration={"tool": (0.1,)})
    line = refused(exported("elsewhere", spec), here)
    assert "is for the robot twin, this one is lift: name, calibration differ" in line
    environment = read_record(saved).meta["environment"]
    action = [{**dim, "unit": "Nm", "kind": "torque"} for dim in environment["action_spec"]]
    assert "torque" in refused(exported("torques", action_spec=action), here)
    seen = {**environment["observation_spec"], "cameras": ["wrist"]}
    assert "camera 'wrist'; the robot has none" in refused(exported("seeing", observation_spec=seen), here)
    assert state_of(lift) == (Mode.IDLE, "")
