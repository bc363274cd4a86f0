"""What a device says becomes an action; what the scripted operator sees, and what it mends."""

import threading
import time
from collections.abc import Iterator
from functools import partial
from types import TracebackType
from typing import Self

import numpy as np
import pytest

from robot_rl.envs.experts.base import hand
from robot_rl.envs.robosuite_env import RobosuiteEnv
from robot_rl.factory import make_env
from robot_rl.hardware.clock import MS, SteppedClock
from robot_rl.hardware.connection import NoAnswer
from robot_rl.hardware.protocol.messages import Gripped, State
from robot_rl.hardware.teleop.device import DeviceError, Mark, Sample
from robot_rl.hardware.teleop.motion import Speed
from robot_rl.hardware.teleop.operator_display import OperatorDisplay
from robot_rl.hil.mirror import Mirror
from robot_rl.hil.operators.operator import Consent
from robot_rl.hil.operators.person import Person
from robot_rl.hil.operators.scripted import LASTS_S, STALLED_S, ScriptedOperator, Watch
from robot_rl.hil.takeover import Cue, Driver, Takeover
from robot_rl.robot.deploy.terminal import Stopped
from tests.hardware.processes import eventually

TICK = 50 * MS


@pytest.fixture(scope="module")
def can() -> Iterator[RobosuiteEnv]:
    env = make_env("can")
    yield env
    env.close()


@pytest.fixture(scope="module")
def lift() -> Iterator[RobosuiteEnv]:
    env = make_env("lift")
    yield env
    env.close()


# ---- a person ---------------------------------------------------------------------------------------------


class Stick:
    """A device of a test."""

    name = "stick"
    controls = ()

    def __init__(self, clock: SteppedClock) -> None:
        self._clock = clock
        self.sample: Sample | None = None
        self.gone = False

    def say(
        self,
        enable: bool,
        motion: tuple[float, ...] = (0.0,) * 6,
        gripper: float | None = None,
        marks: tuple[Mark, ...] = (),
    ) -> None:
        self.sample = Sample(t=self._clock.now(), enable=enable, motion=motion, gripper=gripper, marks=marks)

    def read(self) -> Sample | None:
        if self.gone:
            raise DeviceError("unplugged")
        return self.sample

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        pass


@pytest.fixture
def clock() -> SteppedClock:
    return SteppedClock()


@pytest.fixture
def stick(clock: SteppedClock) -> Stick:
    return Stick(clock)


@pytest.fixture
def display() -> OperatorDisplay:
    return OperatorDisplay("")


@pytest.fixture
def person(stick: Stick, display: OperatorDisplay, clock: SteppedClock, lift: RobosuiteEnv) -> Person:
    made = Person(stick, display, lift.action_spec, 20, Speed(linear=0.25, angular=1.0), clock)
    stick.say(False)
    assert made.begin(0) == Consent()
    # The clutch has to be seen open before a press counts.
    assert made.look(clock.now()).cue is Cue.OPEN
    return made


def test_a_pressed_clutch_drives_at_the_speed_that_was_asked_for(
    person: Person, stick: Stick, clock: SteppedClock
) -> None:
    stick.say(True, (1.0, 0, 0, 0, 0, -1.0))
    hand = person.look(clock.now())
    assert hand.cue is Cue.DRIVING
    assert hand.action is not None
    # 0.25 m/s are 12.5 mm in a step of 50 ms, of 50 mm that an action of 1 asks for; 1 rad/s of 0.5 rad.
    np.testing.assert_allclose(hand.action[:6], [0.25, 0, 0, 0, 0, -0.1], atol=1e-6)
    assert np.isnan(hand.action[6])


def test_the_gripper_follows_once_a_person_has_changed_it(
    person: Person, stick: Stick, clock: SteppedClock
) -> None:
    said = []
    for opening in (1.0, 1.0, 0.0, 0.0, 1.0):
        stick.say(True, gripper=opening)
        action = person.look(clock.now()).action
        assert action is not None
        said.append(action[6])
        clock.advance(TICK)
    np.testing.assert_array_equal(said, [np.nan, np.nan, 1, 1, -1])


def test_a_device_that_is_moved_with_an_open_clutch_is_seen(
    person: Person, stick: Stick, clock: SteppedClock
) -> None:
    stick.say(False, (0.0, 0.2, 0, 0, 0, 0))
    assert person.look(clock.now()).cue is Cue.MOVED
    stick.say(False, (0.0, 0.01, 0, 0, 0, 0))
    assert person.look(clock.now()).cue is Cue.OPEN


def test_a_device_goes_late_then_silent(person: Person, stick: Stick, clock: SteppedClock) -> None:
    stick.say(True)
    seen = []
    for _ in range(12):
        seen.append(person.look(clock.now()).cue)
        clock.advance(TICK)
    assert seen == [Cue.DRIVING] * 4 + [Cue.LATE] * 7 + [Cue.SILENT]
    assert "nothing is heard of the stick" in person.begin(1).why_not


def test_a_device_that_is_gone_is_silent_and_no_episode_begins(
    person: Person, stick: Stick, clock: SteppedClock
) -> None:
    stick.gone = True
    assert person.look(clock.now()).cue is Cue.SILENT
    with pytest.raises(DeviceError):
        person.begin(1)


def test_the_verdict_is_kept_until_the_next_episode(
    person: Person, stick: Stick, clock: SteppedClock
) -> None:
    stick.say(False, marks=("success",))
    assert person.look(clock.now()).verdict == "success"
    stick.say(False)
    assert person.look(clock.now()).verdict == "success"
    assert person.succeeded
    person.begin(1)
    assert person.look(clock.now()).verdict == ""
    assert not person.succeeded


def test_disarming_ends_the_episode_and_nothing_begins_until_it_is_armed(
    person: Person, stick: Stick, clock: SteppedClock
) -> None:
    stick.say(False, marks=("disarm",))
    assert person.look(clock.now()).verdict == "discard"
    stick.say(False)
    for _ in range(2):
        assert "disarmed" in person.begin(1).why_not
    stick.say(False, marks=("arm",))
    assert person.begin(1) == Consent(asks="arm")
    stick.say(False)
    assert person.begin(1) == Consent()


def test_the_stop_between_two_episodes_is_heard(person: Person, stick: Stick) -> None:
    stick.say(False, marks=("stop",))
    assert person.begin(1).asks == "stop"


def test_the_stop_is_heard_while_the_scene_is_prepared(person: Person, stick: Stick) -> None:
    stopped = threading.Event()
    with person.elsewhere(stopped.set):
        assert not stopped.wait(0.1)
        stick.say(False, marks=("stop",))
        assert stopped.wait(10)
    stopped.clear()
    assert not stopped.wait(0.1)


def test_a_stop_that_the_robot_did_not_answer_is_asked_for_again(person: Person, stick: Stick) -> None:
    asked, once = [], threading.Event()

    def stop() -> None:
        asked.append("stop")
        if once.wait(60) and len(asked) < 3:
            raise NoAnswer("nothing came")

    with person.elsewhere(stop):
        stick.say(False, marks=("stop",))
        eventually(lambda: asked, "a stop")
        stick.say(False)
        once.set()
        eventually(lambda: len(asked) == 3, "an answer")
        time.sleep(0.1)
    assert len(asked) == 3


def test_a_stop_that_nobody_has_answered_yet_is_not_forgotten(
    person: Person, stick: Stick, clock: SteppedClock
) -> None:
    asked = threading.Event()

    def stop() -> None:
        asked.set()
        raise NoAnswer("nothing came")

    for heard in (lambda: person.look(clock.now()).verdict, lambda: person.begin(1).asks):
        person.begin(1)
        asked.clear()
        with person.elsewhere(stop):
            stick.say(False, marks=("stop",))
            assert asked.wait(60)
            stick.say(False)
        assert heard() == "stop"
        # Whoever asked stops the arm.
        assert person.begin(1).asks == ""


def test_what_was_disarmed_while_the_scene_was_prepared_does_not_begin(
    person: Person, stick: Stick, clock: SteppedClock
) -> None:
    with person.elsewhere(lambda: None):
        stick.say(False, marks=("disarm",))
        eventually(lambda: person._disarmed, "disarmed")
        stick.say(False)
    assert person.look(clock.now()).verdict == "discard"
    assert "disarmed" in person.begin(1).why_not


def test_an_operator_says_when_the_scene_is_prepared(person: Person, stick: Stick) -> None:
    leave, told = threading.Event(), []
    wait_until_ready = person.ready(leave.is_set, told.append)
    with person.elsewhere(lambda: None):
        threading.Timer(0.2, stick.say, (False,), {"marks": ("begin",)}).start()
        wait_until_ready(3)
        stick.say(False)
        assert told == ["episode 3: prepare the scene, then press b (begin)"]
        for end in (leave.set, partial(stick.say, False, marks=("disarm",))):
            end()
            with pytest.raises(Stopped):
                wait_until_ready(4)
            leave.clear()


def test_a_screen_shows_the_episode_and_how_the_last_ones_ended(
    person: Person, display: OperatorDisplay, clock: SteppedClock
) -> None:
    clock.advance(20 * TICK)
    person.look(clock.now())
    shown = display.program
    assert (shown.task, shown.episode, shown.running, shown.seconds) == ("training", 0, True, 1.0)
    person.ended("failure")
    person.begin(1)
    assert (display.program.episode, display.program.running) == (1, False)
    person.look(clock.now())
    assert display.program.seconds == 0
    for _ in range(20):
        person.ended("success")
    assert display.program.outcomes == ("success",) * 8


# ---- the scripted one -------------------------------------------------------------------------------------


def test_the_watch_sees_what_goes_wrong_and_nothing_else() -> None:
    watch, second = Watch(), 1_000_000_000
    watch.begin(0)
    assert watch.fault(0.5, 0.08, 0) == ""
    assert watch.fault(0.4, 0.08, int(STALLED_S * second)) == ""
    assert watch.fault(0.39, 0.08, int(2 * STALLED_S * second)) == "stalled"
    watch.begin(0)
    assert watch.fault(0.3, 0.08, 0) == ""
    assert watch.fault(0.35, 0.08, TICK) == ""
    assert watch.fault(0.4, 0.08, 2 * TICK) == ""
    assert watch.fault(0.35, 0.08, int(LASTS_S * second)) == ""
    assert watch.fault(0.4, 0.08, int(1.9 * LASTS_S * second)) == ""
    assert watch.fault(0.4, 0.08, int(2 * LASTS_S * second)) == "lost ground"
    watch.begin(0)
    assert watch.fault(0.3, 0.001, 0) == ""
    assert watch.fault(0.3, 0.001, int(LASTS_S * second)) == "closed on nothing"


def mend(env: RobosuiteEnv, operator: ScriptedOperator, action: np.ndarray) -> tuple[bool, list[Driver]]:
    """An episode in which the policy does one and the same; whether it succeeded, and who drove."""
    takeover = Takeover(np.array([dim.kind == "gripper" for dim in env.action_spec]))
    assert operator.begin(0) == Consent()
    drivers = []
    for tick in range(env.task.horizon):
        now = tick * TICK
        hand = operator.look(now)
        drivers.append(takeover.step(hand.cue, now))
        *_, info = env.step(takeover.action(action, hand.action, now))
        if info["success"]:
            return True, drivers
    return False, drivers


def test_it_takes_over_from_a_policy_that_does_nothing(can: RobosuiteEnv) -> None:
    can.reset(seed=3)
    still = np.array([0, 0, 0, 0, 0, 0, -1], np.float32)
    success, drivers = mend(can, ScriptedOperator("PickPlaceCan", lambda: can.sim, 1.0, 0), still)
    assert success
    first = drivers.index(Driver.HUMAN)
    assert first == STALLED_S * 20
    assert Driver.RETURN in drivers, "it handed back once the can was in the hand"


def test_an_episode_may_be_the_policys_alone(can: RobosuiteEnv) -> None:
    can.reset(seed=3)
    still = np.array([0, 0, 0, 0, 0, 0, -1], np.float32)
    success, drivers = mend(can, ScriptedOperator("PickPlaceCan", lambda: can.sim, 0.0, 0), still)
    assert not success
    assert set(drivers) == {Driver.POLICY}


def test_a_task_without_a_way_is_refused() -> None:
    door = make_env("door")
    try:
        with pytest.raises(ValueError, match="scripted cannot watch Door"):
            ScriptedOperator("Door", lambda: door.sim, 1.0, 0)
    finally:
        door.close()


# ---- the mirror -------------------------------------------------------------------------------------------


def measured(env: RobosuiteEnv, t: int) -> State:
    """What a robot with this arm would say."""
    # Of this very moment: robosuite's own observations are up to a control step older.
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
def test_the_mirror_is_where_the_scene_is(name: str, request: pytest.FixtureRequest) -> None:
    env: RobosuiteEnv = request.getfixturevalue(name)
    twin = make_env(name)
    try:
        now = [0]
        mirror = Mirror(twin, lambda: measured(env, now[0]))
        operator = ScriptedOperator(env.task.env, lambda: env.sim, 1.0, 0)
        there = ScriptedOperator(env.task.env, mirror.now, 1.0, 0)
        env.reset(seed=5)
        operator.begin(0)
        there.begin(0)
        operator._hand.reset(env.sim)
        for tick in range(60):
            now[0] = tick * TICK
            env.step(operator._hand.act(env.sim))
            seen = mirror.now()
            np.testing.assert_allclose(hand(seen).pos, hand(env.sim).pos, atol=2e-3)
            np.testing.assert_allclose(there._state(seen), operator._state(env.sim), atol=5e-3)
        assert operator._hand.holds(env.sim) == there._hand.holds(mirror.now())
    finally:
        twin.close()
