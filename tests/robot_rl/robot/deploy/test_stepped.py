"""A policy through the bridge on a stepped clock: what it does there is what it does in simulation."""

import itertools
import json
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import numpy as np
import pytest
import torch

from robot_rl.data.dataset import Dataset
from robot_rl.envs.real_arm import RealArmEnv
from robot_rl.envs.robosuite_env import RobosuiteEnv
from robot_rl.evaluation.initial_states import load_states
from robot_rl.evaluation.videos import act_episode
from robot_rl.factory import make_robosuite_env, task_of
from robot_rl.hardware.client import StaleState
from robot_rl.hardware.clock import MS
from robot_rl.hardware.connection import NotAtHome, RequestRefused
from robot_rl.hardware.protocol.messages import Mode, State
from robot_rl.hardware.recording.recorder import RecorderError
from robot_rl.hardware.recording.recorder_process import RecorderProcess
from robot_rl.hardware.spec import CameraSpec
from robot_rl.policies.acting import ActingPolicy
from robot_rl.policies.bases.base_policy import BasePolicy
from robot_rl.policies.chunk_runner import ChunkRunner
from robot_rl.policies.finetuned.finetuned_policy import FinetunedPolicy
from robot_rl.policies.finetuned.residual import Residual, ResidualSpec
from robot_rl.policies.nets.encoder import EncoderSpec
from robot_rl.policy_client.connection import PolicyLost
from robot_rl.robot.deploy.controller import Controller
from robot_rl.robot.deploy.deployment import check_robot_fits, deploy
from robot_rl.robot.deploy.recording import EpisodeRecording
from robot_rl.robot.deploy.resets import scene_reset
from robot_rl.robot.deploy.results import DeploymentResults
from robot_rl.robot.deploy.terminal import Stopped
from robot_rl.robot.operators.operator import NoOperator, Operator, OperatorInput, Outcome, Readiness
from robot_rl.robot.operators.shared_control import SharedControl, SharedRobot
from robot_rl.robot.takeover import Cue
from robot_rl.rollout import episode_seed
from robot_rl.saved_policies.loading import acting_policy, load_networks
from tests.conftest import RunCommand
from tests.envs.stepped_bridge import SteppedBridge

HORIZON = 60


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory, robot_rl: RunCommand, demonstrations: Path) -> Path:
    """A policy that can repeat what was demonstrated."""
    runs = tmp_path_factory.mktemp("runs")
    size = ("base.width=64", "base.depth=2", "base.train_steps=16", "base.inference_steps=4")
    common = (f"data={demonstrations}", f"runs_dir={runs}", "name=bc", "threads=1")
    robot_rl("train", "method=bc", *common, "method.steps=400", *size)
    return runs / "bc"


class Rig:
    """A policy, the plain environment, and the same task behind a bridge; all begin at the same states."""

    def __init__(self, run: Path, demonstrations: Path) -> None:
        networks, meta = load_networks(run)
        assert isinstance(networks, BasePolicy)
        self.networks = networks
        self.environment = {**meta["environment"], "horizon": HORIZON}
        task = task_of(self.environment)
        self.plain = make_robosuite_env(task)
        data = Dataset(demonstrations)
        begun = [data["sim_state"][episode.start] for episode in data.episodes]
        self.starts = np.stack([*begun, *load_states(self.plain).states[:3]])
        self.bridge = SteppedBridge(task, self.starts)
        self.client, self.line = self.bridge.client, self.bridge.line

    def controller(
        self,
        networks: BasePolicy | FinetunedPolicy | None = None,
        *,
        horizon: int = HORIZON,
        stop: Callable[[], bool] = bool,
        operator: Operator | None = None,
        say: Callable[[str], None] = print,
        recorder: RecorderProcess | None = None,
    ) -> Controller:
        recording = EpisodeRecording(recorder, {}) if recorder else None
        prepare = scene_reset(self.client)
        env = RealArmEnv(
            self.client,
            {**self.environment, "horizon": horizon},
            prepare=recording.after(prepare) if recording else prepare,
            clock=self.bridge.clock,
        )
        clock = self.bridge.clock
        robot = SharedRobot(env, self.client, self.client, clock)
        policy = acting_policy(networks or self.networks, 1)
        patient = operator is not None
        shared = SharedControl(
            robot, operator or NoOperator(), policy, clock, stopping=stop, say=say, patient=patient
        )
        return Controller(env, policy, clock, 0.05, shared=shared, stop=stop, recording=recording)

    def outcomes(self, controller: Controller, folder: Path) -> DeploymentResults:
        return DeploymentResults(folder / "deploy.json", {"task": "lift"}, controller.timing)

    def mode(self) -> Mode:
        return self.client.sample().mode


@pytest.fixture(scope="module")
def built(trained: Path, demonstrations: Path) -> Iterator[Rig]:
    rig = Rig(trained, demonstrations)
    with rig.client:
        yield rig
    rig.plain.close()


@pytest.fixture
def rig(built: Rig) -> Iterator[Rig]:
    """Whatever a test does, the arm is disarmed for the next."""
    yield built
    built.line.dead = False
    if built.mode() is Mode.FAULT:
        built.line.role = "operator"
        built.client.acknowledge("the test is over")
        built.line.role = "policy"
    if built.mode() is not Mode.IDLE:
        built.client.disarm()


def tool(env: RobosuiteEnv) -> np.ndarray:
    """Position of the tool point in the world, m."""
    assert env.control is not None
    return env.sim.sim.data.site_xpos[env.control.arms[0].site].copy()


def before_decisions(
    controller: Controller, monkeypatch: pytest.MonkeyPatch, act: Callable[[int], None]
) -> None:
    """Call `act` before each decision, with its number from 1."""
    decide, numbers = controller._decide, itertools.count(1)

    def decide_after(obs: Any) -> Any:
        act(next(numbers))
        return decide(obs)

    monkeypatch.setattr(controller, "_decide", decide_after)


def test_outcomes_are_those_of_simulation(rig: Rig) -> None:
    """Not to the bit: robosuite observes up to a control step late, a robot's server does not."""
    controller = rig.controller()
    wins, lengths = [], []
    for number in range(len(rig.starts)):
        seed = episode_seed(0, "eval", number)
        through = controller.run(number, seed)
        states = act_episode(rig.plain, acting_policy(rig.networks, 1), rig.starts[number], seed)
        steps, success = len(states) - 1, rig.plain.succeeds()
        wins.append((through.success, success))
        assert (through.interrupted, through.refused, through.late_steps) == ("", 0, 0)
        assert through.seconds == pytest.approx(through.steps / 20)
        if through.success and success:
            lengths.append((through.steps, steps))
    # At starts that were demonstrated, and at others that mostly fail.
    assert wins[:3].count((True, True)) >= 2
    # One grasp that is tried again takes half as long again: as long on the whole.
    through_all, plain_all = np.sum(lengths, axis=0)
    assert abs(through_all - plain_all) <= 0.3 * plain_all
    assert sum(one == other for one, other in wins) >= len(wins) - 1


def test_a_wrapped_policy_goes_where_it_goes_in_simulation(rig: Rig) -> None:
    torch.manual_seed(0)
    spec = ResidualSpec(EncoderSpec(rig.networks.spec.state_size), 7, (16,), (0.5,) * 7)
    networks = Residual(rig.networks, spec).eval()
    torch.nn.init.normal_(networks.actor.net.head.weight, std=1.0)
    ends = {}
    for name, candidate in (("base", rig.networks), ("tuned", networks)):
        rig.controller(candidate, horizon=15).run(0, 7)
        through = tool(rig.bridge.driver.env)
        policy, plain = acting_policy(candidate, 1), rig.plain
        obs, _ = plain.reset(options={"state": rig.starts[0]})
        policy.reset([0], [7])
        begun = tool(plain)
        for _ in range(15):
            obs, *_ = plain.step(policy.act({"state": obs["state"][None]}).action[0])
        ends[name] = tool(plain)
        assert np.linalg.norm(ends[name] - begun) > 0.05
        assert np.linalg.norm(through - ends[name]) < 0.02
    assert np.linalg.norm(ends["base"] - ends["tuned"]) > 0.04, "the wrapper changes nothing"


def test_all_of_a_deployment_is_in_its_file(rig: Rig, tmp_path: Path) -> None:
    controller = rig.controller(horizon=3)
    outcomes = rig.outcomes(controller, tmp_path)
    assert deploy(controller, outcomes, 2, 5) == "done"
    record = json.loads((tmp_path / "deploy.json").read_text())
    assert record["ended"] == "done"
    assert (record["success"], record["interval"][0], record["interrupted"]) == (0.0, 0.0, 0)
    assert (record["steps"], record["late_steps"]) == (6, 0)
    assert record["ages_ms"].keys() == {"state", "gripper"}
    assert record["late_ms"].keys() == record["decision_ms"].keys() == {"p50", "p95", "p99", "max"}
    assert record["task"] == "lift"
    # The noise is that of an evaluation.
    assert [episode["seed"] for episode in record["episodes"]] == [episode_seed(5, "eval", i) for i in (0, 1)]
    assert [episode["steps"] for episode in record["episodes"]] == [3, 3]
    assert rig.mode() is Mode.IDLE
    assert "success 0.000  95 % [0.000" in outcomes.summary()[0]


def test_who_stops_finds_the_arm_disarmed_and_what_was_finished_in_the_file(rig: Rig, tmp_path: Path) -> None:
    asked = iter([False] * 7)
    controller = rig.controller(horizon=4, stop=lambda: next(asked, True))
    outcomes = rig.outcomes(controller, tmp_path)
    assert deploy(controller, outcomes, 10, 0) == "stopped"
    state = rig.client.sample()
    assert (state.mode, state.lease_holder) == (Mode.IDLE, "")
    record = json.loads((tmp_path / "deploy.json").read_text())
    assert (record["ended"], [episode["steps"] for episode in record["episodes"]]) == ("stopped", [4])


def test_a_server_that_is_lost_ends_it_and_what_was_finished_is_in_the_file(
    rig: Rig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    controller = rig.controller(horizon=4)

    def dies_in_the_second_episode(decision: int) -> None:
        rig.line.dead = decision > 6

    before_decisions(controller, monkeypatch, dies_in_the_second_episode)
    assert "no answer" in deploy(controller, rig.outcomes(controller, tmp_path), 10, 0)
    record = json.loads((tmp_path / "deploy.json").read_text())
    assert "no answer" in record["ended"]
    assert [episode["steps"] for episode in record["episodes"]] == [4]


def test_a_policys_server_that_is_lost_ends_it_and_what_was_finished_is_in_the_file(
    rig: Rig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    controller, why = rig.controller(horizon=3), "the policy server at ws://gpu:8000 cannot be used"

    def lost(decision: int) -> None:
        if decision == 5:
            raise PolicyLost(why)

    before_decisions(controller, monkeypatch, lost)
    outcomes = rig.outcomes(controller, tmp_path)
    assert deploy(controller, outcomes, 3, 0) == why
    record = json.loads((tmp_path / "deploy.json").read_text())
    assert (len(record["episodes"]), record["ended"]) == (1, why)
    assert rig.mode() is Mode.IDLE


def test_an_episode_without_a_fresh_observation_is_cut_and_the_next_goes_on(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    controller = rig.controller(horizon=4)
    state, looks = rig.client.state, 0

    def stale_once(max_age: float) -> State:
        nonlocal looks
        looks += 1
        if looks == 3:
            raise StaleState(0.2, "the newest state is 200 ms old")
        return state(max_age)

    monkeypatch.setattr(rig.client, "state", stale_once)
    cut = controller.run(0, 0)
    assert (cut.success, cut.steps, cut.interrupted) == (False, 2, "the newest state is 200 ms old")
    assert "interrupted: the newest state" in cut.line()
    assert rig.mode() is Mode.IDLE
    assert controller.run(1, 0).interrupted == ""


def test_an_arm_whose_lease_was_lost_is_disarmed_before_that_is_a_fault(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    controller = rig.controller(horizon=4)

    def slow_once(decision: int) -> None:
        if decision == 3:
            clock = rig.bridge.clock
            clock.sleep_until(clock.now() + 200 * MS)

    before_decisions(controller, monkeypatch, slow_once)
    cut = controller.run(0, 0)
    assert "lease was lost" in cut.interrupted
    assert (cut.refused, cut.late_steps) == (1, 1)
    assert rig.mode() is Mode.IDLE
    assert controller.run(1, 0).interrupted == ""


def test_after_a_fault_the_episodes_go_on_once_an_operator_has_acknowledged_it(
    rig: Rig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    said: list[str] = []

    def acknowledge(line: str) -> None:
        """The operator is somewhere else and takes a while."""
        said.append(line)
        seen = rig.mode()
        rig.bridge.clock.sleep_until(rig.bridge.clock.now() + 1000 * MS)
        assert seen is rig.mode() is Mode.FAULT
        rig.line.role = "operator"
        rig.client.acknowledge("looked at it")
        rig.line.role = "policy"

    controller = rig.controller(horizon=4, say=acknowledge)

    def pressed(decision: int) -> None:
        if decision == 2:
            rig.client.stop("a hand in the way")

    before_decisions(controller, monkeypatch, pressed)
    outcomes = rig.outcomes(controller, tmp_path)
    assert deploy(controller, outcomes, 3, 0) == "done"
    cut = ["a hand in the way" in episode.interrupted for episode in outcomes.episodes]
    assert cut == [True, False, False]
    (line,) = said
    assert line.startswith("episode 1 cannot begin yet: the robot is in fault")


def test_with_an_operator_an_episode_that_cannot_begin_is_tried_again(
    rig: Rig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    reset_scene, failures = rig.client.reset_scene, iter([NotAtHome("the arm was not at home after 30 s")])

    def fail_once(start: int) -> None:
        for failure in failures:
            raise failure
        reset_scene(start)

    monkeypatch.setattr(rig.client, "reset_scene", fail_once)
    said: list[str] = []
    controller = rig.controller(horizon=4, operator=NoOperator(), say=said.append)
    assert deploy(controller, rig.outcomes(controller, tmp_path), 1, 0) == "done"
    assert said == ["episode 0 cannot begin yet: the arm was not at home after 30 s"]


def test_a_fault_at_the_reset_is_waited_for_too(
    rig: Rig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    reset_scene, hands = rig.client.reset_scene, iter(["a hand in the way"])

    def stopped_once(start: int) -> None:
        reset_scene(start)
        for reason in hands:
            rig.client.stop(reason)
            rig.client.arm()

    def acknowledge(line: str) -> None:
        said.append(line)
        rig.line.role = "operator"
        rig.client.acknowledge("looked at it")
        rig.line.role = "policy"

    monkeypatch.setattr(rig.client, "reset_scene", stopped_once)
    said: list[str] = []
    controller = rig.controller(horizon=4, say=acknowledge)
    assert deploy(controller, rig.outcomes(controller, tmp_path), 1, 0) == "done"
    assert len(said) == 1
    assert "a hand in the way" in said[0]


def test_a_fault_that_nobody_acknowledges_lets_the_user_end_it(
    rig: Rig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = iter([False] * 8)
    controller = rig.controller(horizon=4, stop=lambda: next(asked, True))
    before_decisions(controller, monkeypatch, lambda decision: rig.client.stop("a hand in the way"))
    assert deploy(controller, rig.outcomes(controller, tmp_path), 3, 0) == "stopped"
    assert rig.mode() is Mode.FAULT


class FullDisk(RecorderProcess):
    """A recorder that cannot write the end of its second episode."""

    def __init__(self) -> None:
        self.begun: list[str] = []

    def begin(self, labels: Mapping[str, str] | None = None) -> str:
        assert labels
        self.begun.append(labels["episode"])
        return ""

    def end(self, outcome: str, labels: Mapping[str, str] | None = None) -> Any:
        if len(self.begun) == 2:
            raise RecorderError("the disk is full")


def test_an_episode_that_could_not_be_recorded_is_in_the_results_and_ends_the_deployment(
    rig: Rig, tmp_path: Path
) -> None:
    recorder = FullDisk()
    controller = rig.controller(horizon=4, recorder=recorder)
    outcomes = rig.outcomes(controller, tmp_path)
    assert deploy(controller, outcomes, 5, 0) == "the disk is full"
    assert [episode.steps for episode in outcomes.episodes] == [4, 4]
    assert recorder.begun == ["0", "1"]
    assert rig.mode() is Mode.IDLE


class SilentCamera(RecorderProcess):
    """A recorder to which a camera is silent at first."""

    def __init__(self) -> None:
        self.begun = 0
        self.process = SimpleNamespace(poll=lambda: None)  # type: ignore[assignment]

    def begin(self, labels: Mapping[str, str] | None = None) -> str:
        self.begun += 1
        if self.begun == 1:
            raise RecorderError("no images from front: wait for them")
        return ""

    def end(self, outcome: str, labels: Mapping[str, str] | None = None) -> Any:
        pass


def test_with_an_operator_an_episode_waits_until_it_can_be_recorded(rig: Rig, tmp_path: Path) -> None:
    said: list[str] = []
    controller = rig.controller(horizon=4, recorder=SilentCamera(), operator=NoOperator(), say=said.append)
    assert deploy(controller, rig.outcomes(controller, tmp_path), 1, 0) == "done"
    assert said == ["episode 0 cannot begin yet: no images from front: wait for them"]


class Planned(NoOperator):
    """An operator who does at each control step, from 0, what a test says."""

    def __init__(self, plan: Callable[[int], OperatorInput]) -> None:
        self._plan, self._step, self.outcomes = plan, 0, []  # type: ignore[var-annotated]

    def begin(self, number: int) -> Readiness:
        self._step = 0
        return Readiness()

    def read(self, now: int) -> OperatorInput:
        self._step += 1
        return self._plan(self._step - 1)

    def end(self, outcome: Outcome) -> None:
        self.outcomes.append(outcome)


def test_a_person_takes_over_and_hands_back_without_a_jump(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    """The person's action moves the arm at once; then it holds, and the policy returns."""
    wanted = np.array([0.5, 0, 0, 0, 0, 0, np.nan], np.float32)

    def plan(step: int) -> OperatorInput:
        return OperatorInput(Cue.DRIVING, wanted) if 5 <= step < 15 else OperatorInput(Cue.OPEN)

    operator = Planned(plan)
    controller = rig.controller(operator=operator)
    executed, modes = [], []
    step, decide = RealArmEnv.step, controller._decide

    def observed(env: RealArmEnv, action: np.ndarray) -> Any:
        executed.append(action.copy())
        result = step(env, action)
        modes.append(rig.mode())
        return result

    monkeypatch.setattr(RealArmEnv, "step", observed)
    full = np.array([1, 1, 1, 1, 1, 1, -1], np.float32)
    monkeypatch.setattr(controller, "_decide", lambda obs: (full, decide(obs)[1]))
    episode = controller.run(0, 0)
    assert (episode.interventions, episode.human_steps) == (1, 10)
    assert (episode.interrupted, episode.refused) == ("", 0)
    assert operator.outcomes == [episode.outcome]
    assert all(np.array_equal(action, full) for action in executed[:5])
    assert all(np.array_equal(action[:6], wanted[:6]) for action in executed[5:15])
    # The gripper stays as it was commanded last, and the arm holds for 0.5 s.
    assert {float(action[6]) for action in executed} == {-1.0}
    assert not np.any([action[:6] for action in executed[15:25]])
    ramp = [float(action[0]) for action in executed[25:32]]
    assert ramp == sorted(ramp)
    assert 0 <= ramp[0] < 0.2
    assert max(np.diff(ramp)) < 0.2
    assert ramp[-1] == 1.0
    assert modes[:5] == [Mode.POLICY] * 5
    assert modes[5:25] == [Mode.HUMAN] * 20
    assert modes[25:40] == [Mode.POLICY] * 15


@pytest.mark.parametrize(
    ("ends", "interrupted", "outcome"),
    [
        (OperatorInput(Cue.OPEN, verdict="discard"), "discard", "discarded"),
        (OperatorInput(Cue.OPEN, verdict="failure"), "", "failure"),
        (OperatorInput(Cue.OPEN, verdict="stop"), "stop", "interrupted"),
        (OperatorInput(Cue.SILENT), "the operator's device is silent", "interrupted"),
    ],
)
def test_an_operator_ends_an_episode_with_the_arm_at_rest(
    rig: Rig, ends: OperatorInput, interrupted: str, outcome: str
) -> None:
    """Also if the device falls silent while the person drives."""
    drives = OperatorInput(Cue.DRIVING, np.zeros(7, np.float32))
    operator = Planned(lambda step: drives if step < 3 else ends)
    episode = rig.controller(operator=operator).run(0, 0)
    assert (episode.steps, episode.interrupted, episode.success) == (3, interrupted, False)
    assert operator.outcomes == [episode.outcome] == [outcome]
    assert rig.mode() is (Mode.FAULT if interrupted == "stop" else Mode.IDLE)


@pytest.mark.parametrize(
    ("blocks", "mode"),
    [
        (Readiness("the robot was disarmed: arm it", request="disarm"), Mode.IDLE),
        (Readiness("no samples from the device"), Mode.ARMED),
    ],
)
def test_between_episodes_an_operator_disarms_the_arm_only_by_asking_for_it(
    rig: Rig, monkeypatch: pytest.MonkeyPatch, blocks: Readiness, mode: Mode
) -> None:
    """Another program may have the arm meanwhile."""
    begun = iter([Readiness()])
    operator = NoOperator()
    monkeypatch.setattr(operator, "begin", lambda number: next(begun, blocks))

    def lost(number: int) -> None:
        rig.client.arm()
        raise NotAtHome("stretched")

    monkeypatch.setattr(rig.client, "reset_scene", lost)
    modes: list[Mode] = []

    def stop() -> bool:
        modes.append(rig.mode())
        return len(modes) > 4

    with pytest.raises(Stopped):
        rig.controller(operator=operator, stop=stop).run(0, 0)
    assert modes[-1] is mode


def test_a_policy_that_decides_too_slowly_is_refused_before_anything_moves(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    act, clock = ActingPolicy.act, rig.bridge.clock
    monkeypatch.setattr(
        ActingPolicy, "act", lambda *a, **k: (clock.sleep_until(clock.now() + 80 * MS), act(*a, **k))[1]
    )
    with pytest.raises(ValueError, match=r"takes 80 ms here, .* every 50 ms.* delay=2 or more"):
        rig.controller().warm_up()
    assert rig.mode() is Mode.IDLE
    # A chunk that arrives two steps after its request has 100 ms.
    monkeypatch.setattr(ChunkRunner, "delay", 2)
    rig.controller().warm_up()


def test_there_are_as_many_beginnings_as_saved_states(rig: Rig) -> None:
    with pytest.raises(RequestRefused, match="there are 6 saved states"):
        rig.controller().run(6, 0)


EYE = CameraSpec(name="eye", serial="eye", width=64, height=48, rate=60.0)


@pytest.mark.parametrize(
    ("changed", "observed", "lease_ms", "message"),
    [
        ({}, {}, 50, "lease_ms=100"),
        ({}, {"cameras": ["eye"]}, 100, "observes camera 'eye'; the robot has none"),
        ({"cameras": (EYE,)}, {"cameras": ["hand"]}, 100, "the robot has eye"),
        (
            {"cameras": (EYE,)},
            {"cameras": ["eye"], "image_size": [64, 48]},
            100,
            "are 48 × 64 .* on 64 × 48",
        ),
        ({"cameras": (EYE,)}, {"cameras": ["eye"], "image_size": [48, 64]}, 100, "task.render=robosuite"),
    ],
)
def test_a_robot_that_does_not_fit_is_refused(
    rig: Rig, changed: dict, observed: dict, lease_ms: int, message: str
) -> None:
    robot = msgspec.structs.replace(rig.client.spec, **changed)
    spec = {**rig.environment["observation_spec"], **observed}
    with pytest.raises(ValueError, match=message):
        check_robot_fits(robot, lease_ms, {**rig.environment, "observation_spec": spec})


def test_a_robot_that_fits_is_not_refused(rig: Rig) -> None:
    check_robot_fits(rig.client.spec, 100, rig.environment)
