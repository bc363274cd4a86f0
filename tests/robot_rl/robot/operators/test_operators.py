"""A person's device becomes actions and verdicts; the scripted operator detects faults and corrects them."""

import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack
from functools import partial
from types import SimpleNamespace
from typing import Any, Self

import numpy as np
import pytest

from robot_rl.cli.compose import load_group
from robot_rl.envs.experts import make_expert
from robot_rl.envs.experts.expert import hand
from robot_rl.envs.robosuite_env import RobosuiteEnv
from robot_rl.envs.scene_state import SCENE, SceneState
from robot_rl.envs.task import TaskConfig, without_cameras
from robot_rl.factory import make_robosuite_env
from robot_rl.hardware.clock import MS, SteppedClock
from robot_rl.hardware.connection import NoAnswer, RequestRefused
from robot_rl.hardware.protocol.messages import Code, Gripped, Mode, State
from robot_rl.hardware.teleop.device import DeviceError, Mark, Sample
from robot_rl.hardware.teleop.motion import Speed
from robot_rl.hardware.teleop.operator_display import OperatorDisplay
from robot_rl.robot.deploy.terminal import Stopped
from robot_rl.robot.operators.operator import Readiness
from robot_rl.robot.operators.person import Person
from robot_rl.robot.operators.scripted import (
    FAULT_DURATION_S,
    STALLED_S,
    FaultDetector,
    Mirror,
    ScriptedOperator,
    mirror,
)
from robot_rl.robot.operators.shared_control import SharedRobot
from robot_rl.robot.takeover import ControlState, Cue, Takeover
from tests.hardware.processes import eventually

TICK = 50 * MS


def nothing() -> None:
    """Neither stop nor disarm."""


@pytest.fixture(scope="module")
def can() -> Iterator[RobosuiteEnv]:
    env = make_robosuite_env("can")
    yield env
    env.close()


@pytest.fixture(scope="module")
def lift() -> Iterator[RobosuiteEnv]:
    env = make_robosuite_env("lift")
    yield env
    env.close()


# ---- person -----------------------------------------------------------------------------------------------


class FakeDevice:
    """A device with the samples that a test sets."""

    name = "fake device"
    controls = ()

    def __init__(self, clock: SteppedClock) -> None:
        self._clock = clock
        self.sample: Sample | None = None
        self.unplugged = False

    def set(
        self,
        enable: bool,
        motion: tuple[float, ...] = (0.0,) * 6,
        gripper: float | None = None,
        marks: tuple[Mark, ...] = (),
    ) -> None:
        self.sample = Sample(t=self._clock.now(), enable=enable, motion=motion, gripper=gripper, marks=marks)

    def read(self) -> Sample | None:
        if self.unplugged:
            raise DeviceError("unplugged")
        return self.sample

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        pass


@pytest.fixture
def clock() -> SteppedClock:
    return SteppedClock()


@pytest.fixture
def device(clock: SteppedClock) -> FakeDevice:
    return FakeDevice(clock)


@pytest.fixture
def display() -> OperatorDisplay:
    return OperatorDisplay("")


@pytest.fixture
def person(device: FakeDevice, display: OperatorDisplay, clock: SteppedClock, lift: RobosuiteEnv) -> Person:
    created = Person(device, display, lift.action_spec, 20, Speed(linear=0.25, angular=1.0), clock)
    device.set(False)
    assert created.begin(0) == Readiness()
    # The clutch must be open once before a press counts.
    assert created.read(clock.now()).cue is Cue.OPEN
    return created


def test_a_pressed_clutch_drives_at_the_configured_speed(
    person: Person, device: FakeDevice, clock: SteppedClock
) -> None:
    device.set(True, (1.0, 0, 0, 0, 0, -1.0))
    user = person.read(clock.now())
    assert user.cue is Cue.DRIVING
    assert user.action is not None
    # 0.25 m/s is 12.5 mm per step of 50 ms; an action of 1 is 50 mm. 1 rad/s is 0.05 rad of 0.5 rad.
    np.testing.assert_allclose(user.action[:6], [0.25, 0, 0, 0, 0, -0.1], atol=1e-6)
    assert np.isnan(user.action[6])


def test_the_gripper_follows_once_the_person_changes_its_opening(
    person: Person, device: FakeDevice, clock: SteppedClock
) -> None:
    closing = []
    for opening in (1.0, 1.0, 0.0, 0.0, 1.0):
        device.set(True, gripper=opening)
        action = person.read(clock.now()).action
        assert action is not None
        closing.append(action[6])
        clock.advance(TICK)
    np.testing.assert_array_equal(closing, [np.nan, np.nan, 1, 1, -1])


def test_moving_a_device_with_an_open_clutch_is_detected(
    person: Person, device: FakeDevice, clock: SteppedClock
) -> None:
    device.set(False, (0.0, 0.2, 0, 0, 0, 0))
    assert person.read(clock.now()).cue is Cue.MOVED
    device.set(False, (0.0, 0.01, 0, 0, 0, 0))
    assert person.read(clock.now()).cue is Cue.OPEN


def test_a_device_goes_late_then_silent(person: Person, device: FakeDevice, clock: SteppedClock) -> None:
    device.set(True)
    cues = []
    for _ in range(12):
        cues.append(person.read(clock.now()).cue)
        clock.advance(TICK)
    assert cues == [Cue.DRIVING] * 4 + [Cue.LATE] * 7 + [Cue.SILENT]
    assert "no samples from the fake device" in person.begin(1).blocked


def test_an_unplugged_device_is_silent_and_no_episode_begins(
    person: Person, device: FakeDevice, clock: SteppedClock
) -> None:
    device.unplugged = True
    assert person.read(clock.now()).cue is Cue.SILENT
    with pytest.raises(DeviceError):
        person.begin(1)


def test_a_device_whose_keys_go_on_is_lost_all_the_same(
    person: Person, device: FakeDevice, clock: SteppedClock
) -> None:
    device.unplugged = True
    assert person.read(clock.now()).cue is Cue.SILENT
    # The keys of its terminal.
    device.unplugged = False
    with pytest.raises(DeviceError, match="unplugged"):
        person.begin(1)


def test_keys_stop_the_arm_after_the_device_was_lost(person: Person, device: FakeDevice) -> None:
    stops: list[bool] = []
    with person.monitor(lambda: stops.append(True), nothing):
        device.unplugged = True
        eventually(lambda: person.lost, "it is noticed")
        device.set(False, marks=("stop",))
        device.unplugged = False
        eventually(lambda: stops, "it is stopped")
        with pytest.raises(DeviceError, match="unplugged"):
            person.ready(bool, print)(1)


def test_the_verdict_is_kept_until_the_next_episode(
    person: Person, device: FakeDevice, clock: SteppedClock
) -> None:
    device.set(False, marks=("success",))
    assert person.read(clock.now()).verdict == "success"
    device.set(False)
    assert person.read(clock.now()).verdict == "success"
    assert person.succeeded
    person.begin(1)
    assert person.read(clock.now()).verdict == ""
    assert not person.succeeded


@pytest.mark.parametrize(
    ("mark", "verdict"), [("stop", "stop"), ("disarm", "discard"), ("failure", "failure")]
)
def test_a_success_that_ended_nothing_hides_no_later_mark(
    mark: Mark, verdict: str, person: Person, device: FakeDevice, clock: SteppedClock
) -> None:
    """As on a robot that measures success itself."""
    device.set(False, marks=("success",))
    assert person.read(clock.now()).verdict == "success"
    device.set(False, marks=(mark,))
    assert person.read(clock.now()).verdict == verdict
    device.set(False, marks=("success",))
    assert person.read(clock.now()).verdict == verdict


def test_disarming_discards_the_episode_and_the_next_waits_for_arming(
    person: Person, device: FakeDevice, clock: SteppedClock
) -> None:
    device.set(False, marks=("disarm",))
    assert person.read(clock.now()).verdict == "discard"
    device.set(False)
    for _ in range(2):
        assert "disarmed" in person.begin(1).blocked
    device.set(False, marks=("arm",))
    assert person.begin(1) == Readiness(request="arm")
    device.set(False)
    assert person.begin(1) == Readiness()


@pytest.mark.parametrize(
    ("motion", "ahead"),
    [((float("nan"), *(0.0,) * 5), 0), ((2.0, *(0.0,) * 5), 0), ((0.5,), 0), ((0.5, *(0.0,) * 5), 2 * MS)],
)
def test_a_sample_that_must_not_move_an_arm_does_not(
    person: Person, device: FakeDevice, clock: SteppedClock, motion: tuple[float, ...], ahead: int
) -> None:
    device.set(False)
    person.read(clock.now())
    device.sample = Sample(t=clock.now() + ahead, enable=True, motion=motion, marks=("stop",))
    read = person.read(clock.now())
    assert (read.cue, read.action, read.verdict) == (Cue.SILENT, None, "stop")
    assert "no samples" in person.begin(1).blocked


def test_of_arming_and_disarming_between_two_episodes_the_last_counts(
    person: Person, device: FakeDevice
) -> None:
    device.set(False, marks=("arm", "disarm"))
    found = person.begin(1)
    assert (found.request, "disarmed" in found.blocked) == ("disarm", True)
    device.set(False, marks=("disarm", "arm"))
    assert person.begin(1) == Readiness(request="arm")


def test_a_stop_between_two_episodes_is_requested(person: Person, device: FakeDevice) -> None:
    device.set(False, marks=("stop",))
    assert person.begin(1).request == "stop"


def test_a_stop_works_while_the_scene_is_prepared(person: Person, device: FakeDevice) -> None:
    stopped = threading.Event()
    with person.monitor(stopped.set, nothing):
        assert not stopped.wait(0.1)
        device.set(False, marks=("stop",))
        assert stopped.wait(60)
    stopped.clear()
    assert not stopped.wait(0.1)


def test_a_stop_that_the_robot_does_not_answer_is_repeated(person: Person, device: FakeDevice) -> None:
    attempts, once = [], threading.Event()

    def stop() -> None:
        attempts.append("stop")
        if once.wait(60) and len(attempts) < 3:
            raise NoAnswer("nothing came")

    with person.monitor(stop, nothing):
        device.set(False, marks=("stop",))
        eventually(lambda: attempts, "a stop")
        device.set(False)
        once.set()
        eventually(lambda: len(attempts) == 3, "an answer")
        time.sleep(0.1)
    assert len(attempts) == 3


def test_a_device_that_fails_in_an_unknown_way_stops_the_arm_once_and_is_read_on(
    person: Person, device: FakeDevice, monkeypatch: pytest.MonkeyPatch
) -> None:
    stops: list[bool] = []
    read, reads = device.read, [0]

    def broken() -> Sample | None:
        reads[0] += 1
        if reads[0] < 5:
            raise OSError("unplugged")
        return read()

    monkeypatch.setattr(device, "read", broken)
    with person.monitor(lambda: stops.append(True), nothing):
        eventually(lambda: reads[0] > 6, "it is read on")
        assert len(stops) == 1
        device.set(False, marks=("stop",))
        eventually(lambda: len(stops) > 1, "a stop is still heard")
        device.set(False)
    with pytest.raises(DeviceError, match="failed: OSError: unplugged"):
        person.begin(1)


def test_an_unanswered_stop_is_requested_again(
    person: Person, device: FakeDevice, clock: SteppedClock
) -> None:
    attempts = threading.Event()

    def stop() -> None:
        attempts.set()
        raise NoAnswer("nothing came")

    for request in (lambda: person.read(clock.now()).verdict, lambda: person.begin(1).request):
        person.begin(1)
        attempts.clear()
        with person.monitor(stop, nothing):
            device.set(False, marks=("stop",))
            assert attempts.wait(60)
            device.set(False)
        assert request() == "stop"
        # The caller stops the arm.
        assert person.begin(1).request == ""


def test_disarming_while_the_scene_is_prepared_disarms_at_once_and_discards_the_episode(
    person: Person, device: FakeDevice, clock: SteppedClock
) -> None:
    attempts = []

    def disarm() -> None:
        attempts.append("disarm")
        if len(attempts) < 3:
            raise NoAnswer("nothing came")

    with person.monitor(nothing, disarm):
        device.set(False, marks=("disarm",))
        eventually(lambda: attempts, "it is disarmed")
        device.set(False)
        eventually(lambda: len(attempts) == 3, "an answer")
        time.sleep(0.1)
    assert len(attempts) == 3
    assert person.read(clock.now()).verdict == "discard"
    assert "disarmed" in person.begin(1).blocked


def test_until_the_next_episode_a_success_can_be_taken_back(
    device: FakeDevice, display: OperatorDisplay, clock: SteppedClock, lift: RobosuiteEnv
) -> None:
    speed = Speed(linear=0.25, angular=1.0)
    person = Person(device, display, lift.action_spec, 20, speed, clock, revocable=True)
    device.set(False)
    person.begin(0)
    person.end("failure")
    assert display.program.marks == ()
    person.end("success")
    device.set(False, marks=("failure",))
    person.begin(1)
    assert (person.revoked(), display.program.outcomes) == (True, ("failure", "failure"))
    device.set(False)
    person.end("success")
    assert (person.revoked(), display.program.marks) == (False, ("failure",))
    wait_until_ready = person.ready(bool, lambda line: None)
    with person.monitor(nothing, nothing):
        threading.Timer(0.2, device.set, (False,), {"marks": ("failure",)}).start()
        eventually(person.revoked, "it is taken back")
        device.set(False, marks=("begin",))
        wait_until_ready(2)
    assert display.program.marks == ("begin",)
    assert display.program.outcomes == ("failure", "failure", "failure")


def test_without_a_classifier_nothing_is_taken_back(
    person: Person, device: FakeDevice, display: OperatorDisplay
) -> None:
    person.end("success")
    device.set(False, marks=("failure",))
    person.begin(1)
    assert (person.revoked(), display.program.outcomes, display.program.marks) == (False, ("success",), ())


def test_the_operator_confirms_that_the_scene_is_prepared(person: Person, device: FakeDevice) -> None:
    stop, lines = threading.Event(), list[str]()
    wait_until_ready = person.ready(stop.is_set, lines.append)
    with person.monitor(nothing, nothing):
        threading.Timer(0.2, device.set, (False,), {"marks": ("begin",)}).start()
        wait_until_ready(3)
        device.set(False)
        assert lines == ["episode 3: prepare the scene, then press b (begin)"]
        for end in (stop.set, partial(device.set, False, marks=("disarm",))):
            end()
            with pytest.raises(Stopped):
                wait_until_ready(4)
            stop.clear()


def test_the_display_shows_the_episode_and_the_last_outcomes(
    person: Person, display: OperatorDisplay, clock: SteppedClock
) -> None:
    clock.advance(20 * TICK)
    person.read(clock.now())
    shown = display.program
    assert (shown.task, shown.episode, shown.running, shown.seconds) == ("training", 0, True, 1.0)
    person.end("failure")
    person.begin(1)
    assert (display.program.episode, display.program.running) == (1, False)
    person.read(clock.now())
    assert display.program.seconds == 0
    for _ in range(20):
        person.end("success")
    assert display.program.outcomes == ("success",) * 8


# ---- scripted operator ------------------------------------------------------------------------------------


def test_the_fault_detector_reports_each_fault_and_nothing_else() -> None:
    detector, second = FaultDetector(), 1_000_000_000
    detector.begin(0)
    assert detector.fault(0.5, 0.08, 0) == ""
    assert detector.fault(0.4, 0.08, int(STALLED_S * second)) == ""
    assert detector.fault(0.39, 0.08, int(2 * STALLED_S * second)) == "stalled"
    detector.begin(0)
    assert detector.fault(0.3, 0.08, 0) == ""
    assert detector.fault(0.35, 0.08, TICK) == ""
    assert detector.fault(0.4, 0.08, 2 * TICK) == ""
    assert detector.fault(0.35, 0.08, int(FAULT_DURATION_S * second)) == ""
    assert detector.fault(0.4, 0.08, int(1.9 * FAULT_DURATION_S * second)) == ""
    assert detector.fault(0.4, 0.08, int(2 * FAULT_DURATION_S * second)) == "lost ground"
    detector.begin(0)
    assert detector.fault(0.3, 0.001, 0) == ""
    assert detector.fault(0.3, 0.001, int(FAULT_DURATION_S * second)) == "closed on nothing"


def run_episode(
    env: RobosuiteEnv, operator: ScriptedOperator, action: np.ndarray
) -> tuple[bool, list[ControlState]]:
    """Run an episode with a constant policy action; returns success and the control state of each step."""
    takeover = Takeover(np.array([dim.kind == "gripper" for dim in env.action_spec]))
    assert operator.begin(0) == Readiness()
    states = []
    for tick in range(env.task.horizon):
        now = tick * TICK
        user = operator.read(now)
        states.append(takeover.step(user.cue, now))
        *_, info = env.step(takeover.action(action, user.action, now))
        if info["success"]:
            return True, states
    return False, states


def test_the_scripted_operator_takes_over_from_an_idle_policy(can: RobosuiteEnv) -> None:
    can.reset(seed=3)
    still = np.array([0, 0, 0, 0, 0, 0, -1], np.float32)
    success, states = run_episode(can, ScriptedOperator("PickPlaceCan", lambda: can.sim, 1.0, 0), still)
    assert success
    first = states.index(ControlState.HUMAN)
    assert first == STALLED_S * 20
    assert ControlState.RETURN in states, "it hands back once the can is grasped"


def test_an_operator_with_fraction_zero_never_takes_over(can: RobosuiteEnv) -> None:
    can.reset(seed=3)
    still = np.array([0, 0, 0, 0, 0, 0, -1], np.float32)
    success, states = run_episode(can, ScriptedOperator("PickPlaceCan", lambda: can.sim, 0.0, 0), still)
    assert not success
    assert set(states) == {ControlState.POLICY}


def test_a_task_without_an_object_to_move_is_rejected() -> None:
    door = make_robosuite_env("door")
    try:
        with pytest.raises(ValueError, match="scripted does not support Door"):
            ScriptedOperator("Door", lambda: door.sim, 1.0, 0)
    finally:
        door.close()


# ---- mirror -----------------------------------------------------------------------------------------------


def measured(env: RobosuiteEnv, t: int) -> State:
    """The state that a robot with this arm would report."""
    # Sampled now: robosuite's own observations are up to a control step old.
    sim, raw = env.sim, env.sense()
    fingers = sim.sim.data.qpos[sim.robots[0]._ref_gripper_joint_pos_indexes["right"]]
    keys = [key for key in env.task.state_keys if not key.startswith("robot0")]
    return State(
        src="test",
        seq=t + 1,
        tm=t,
        t_sample=t,
        q=tuple(sim.sim.data.qpos[sim.robots[0]._ref_joint_pos_indexes]),
        dq=(0.0,) * 7,
        position=(0.0,) * 3,
        quaternion=(0.0, 0.0, 0.0, 1.0),
        mode="policy",  # type: ignore[arg-type]
        gripper=Gripped(opening=float(np.abs(fingers).sum() / 0.08), t=t, goal=0.0),
        sensors={key: tuple(map(float, raw[key])) for key in keys},
    )


@pytest.mark.parametrize("name", ["can", "lift"])
def test_the_mirror_follows_the_scene(name: str, request: pytest.FixtureRequest) -> None:
    env: RobosuiteEnv = request.getfixturevalue(name)
    twin = make_robosuite_env(name)
    try:
        now = [0]
        mirror = Mirror(twin, lambda: measured(env, now[0]))
        operator = ScriptedOperator(env.task.env, lambda: env.sim, 1.0, 0)
        mirrored = ScriptedOperator(env.task.env, mirror.update, 1.0, 0)
        env.reset(seed=5)
        operator.begin(0)
        mirrored.begin(0)
        operator._episode_expert.reset(env.sim)
        for tick in range(60):
            now[0] = tick * TICK
            env.step(operator._episode_expert.act(env.sim))
            sim = mirror.update()
            np.testing.assert_allclose(hand(sim).pos, hand(env.sim).pos, atol=2e-3)
            np.testing.assert_allclose(mirrored._state(sim), operator._state(env.sim), atol=5e-3)
        assert operator._episode_expert.holds(env.sim) == mirrored._episode_expert.holds(mirror.update())
    finally:
        twin.close()


def test_the_scene_that_a_served_task_tells_is_mirrored_without_the_poses_of_objects() -> None:
    task = load_group("task", "lift_image", TaskConfig)
    env = make_robosuite_env(without_cameras(task))
    scene, expert = SceneState(env), make_expert("Lift", noise=0, skill=1, rng=np.random.default_rng(0))
    tells = SimpleNamespace(
        spec=SimpleNamespace(sensors={SCENE: scene.size}),
        state=lambda timeout: SimpleNamespace(sensors={SCENE: tuple(scene.read())}),
    )
    robot: Any = tells
    with ExitStack() as resources:
        resources.callback(env.close)
        update = mirror(task, robot, resources)
        env.reset(seed=7)
        expert.reset(env.sim)
        seen = []
        for _ in range(80):
            env.step(expert.act(env.sim))
            sim = update()
            np.testing.assert_array_equal(sim.sim.data.qpos, env.sim.sim.data.qpos)
            # robosuite's own positions in space are those of a substep ago.
            np.testing.assert_allclose(hand(sim).pos, hand(env.sim).pos, atol=2e-3)
            seen.append((bool(sim._check_success()), env.succeeds()))
        assert sim is not env.sim
        assert (True, True) in seen
        assert sum(mirrored != real for mirrored, real in seen) <= 1


@pytest.mark.parametrize(
    ("done", "outcome", "revoked"),
    [(False, "success", True), (True, "success", False), (False, "failure", False)],
)
def test_a_success_that_was_none_is_taken_back(
    can: RobosuiteEnv, done: bool, outcome: Any, revoked: bool
) -> None:
    can.reset(seed=3)
    truth = [done]
    operator = ScriptedOperator("PickPlaceCan", lambda: can.sim, 0.0, 0, lambda: truth[0])
    operator.begin(0)
    operator.read(0)
    # What was done in the episode counts, also if the object has fallen since.
    truth[0] = False
    operator.end(outcome)
    operator.begin(1)
    assert operator.revoked() is revoked
    without = ScriptedOperator("PickPlaceCan", lambda: can.sim, 0.0, 0)
    without.begin(0)
    without.read(0)
    without.end(outcome)
    assert not without.revoked()


@pytest.mark.parametrize(("code", "stops"), [(Code.NO_LEASE, True), (Code.ROLE, True), (Code.MODE, False)])
def test_an_arm_that_may_not_be_disarmed_is_stopped_unless_it_is_disarmed_already(
    code: Code, stops: bool
) -> None:
    stopped: list[str] = []

    def refuse() -> None:
        raise RequestRefused(code, "refused")

    env: Any = SimpleNamespace(action_spec=())
    stopper: Any = SimpleNamespace(disarm=refuse, stop=stopped.append)
    SharedRobot(env, stopper, stopper, SteppedClock()).disarm()
    assert stopped == ["the operator disarms"] * stops


def test_only_a_fault_that_the_operator_was_told_of_is_acknowledged() -> None:
    """A button that was pressed before a fault says nothing about it."""
    acknowledged: list[str] = []
    state = SimpleNamespace(mode=Mode.FAULT, fault="first")
    client: Any = SimpleNamespace(sample=lambda: state, acknowledge=acknowledged.append)
    env: Any = SimpleNamespace(action_spec=())
    shared = SharedRobot(env, client, client, SteppedClock())
    shared.acknowledge()
    assert acknowledged == []
    assert "in fault (first)" in shared.blocked()
    state.fault = "second"
    shared.acknowledge()
    assert acknowledged == []
    assert "in fault (second)" in shared.blocked()
    shared.acknowledge()
    assert acknowledged == ["acknowledged by the operator: second"]
