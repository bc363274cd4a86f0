"""A scene begins again under an arm that is disarmed, and that time does not count as missed ticks."""

from collections.abc import Callable
from pathlib import Path

import pytest

from robot_rl.hardware.clock import SteppedClock
from robot_rl.hardware.core.core import CoreSettings, RobotCore
from robot_rl.hardware.drivers.sim import make
from robot_rl.hardware.protocol import messages as m
from robot_rl.hardware.protocol.messages import Code, Mode
from robot_rl.hardware.robot_file import load_robot
from tests.hardware.core.small_arm import OBSERVER, OPERATOR, POLICY, RESET, STARTS, Bench

ROBOT = Path("configs/robot/sim_panda.yaml")


@pytest.fixture
def bench() -> Bench:
    bench = Bench()
    bench.core.open()
    bench.tick()
    return bench


def refused(answer: m.ServerMessage) -> Code:
    assert isinstance(answer, m.Refused), answer
    return answer.code


def test_a_policy_may_say_where_an_episode_begins(bench: Bench) -> None:
    home = bench.tick().q
    began = bench.clock.now()
    assert bench.done(POLICY, m.ResetScene, start=2).mode is Mode.IDLE
    assert bench.clock.now() - began == RESET
    assert bench.tick().q == pytest.approx([value + 0.2 for value in home])
    event = bench.core.events.since(0)[-1]
    assert (event.what, event.who) == ("scene", POLICY.name)
    assert "start 2" in event.text


def test_who_looks_on_may_not(bench: Bench) -> None:
    assert refused(bench.ask(OBSERVER, m.ResetScene, start=0)) is Code.ROLE


def test_a_beginning_that_there_is_not_is_refused_with_the_reason(bench: Bench) -> None:
    home = bench.tick().q
    answer = bench.ask(POLICY, m.ResetScene, start=STARTS)
    assert refused(answer) is Code.SCENE
    assert f"there are {STARTS} beginnings" in answer.reason  # type: ignore[union-attr]
    assert bench.tick().q == home


def test_an_arm_without_a_scene_says_so() -> None:
    clock = SteppedClock()
    core = RobotCore(make(load_robot(ROBOT), clock), CoreSettings(), clock, "session")
    core.open()
    answer = core.handle(POLICY, m.ResetScene(src=POLICY.src, seq=1, tm=0, start=0))
    assert refused(answer) is Code.SCENE
    assert "has no simulated scene" in answer.reason  # type: ignore[union-attr]
    assert core.mode is Mode.IDLE


@pytest.mark.parametrize("then", ["arms", "ticks first"])
def test_a_long_reset_is_no_time_without_ticks(bench: Bench, then: str) -> None:
    bench.done(POLICY, m.ResetScene, start=1)
    if then == "ticks first":
        bench.tick()
    bench.done(POLICY, m.Arm, spec_sha256=bench.arm.spec.sha256)
    bench.begin(POLICY)
    bench.tick(5)
    assert bench.core.mode is Mode.POLICY
    assert not [event for event in bench.core.events.since(0) if event.what in ("overrun", "fault")]


@pytest.mark.parametrize("listen", [lambda bench: bench.tick(), lambda bench: bench.ask(POLICY, m.GetSpec)])
def test_a_stop_in_the_middle_of_it_is_a_fault_as_soon_as_it_is_over(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, listen: Callable[[Bench], object]
) -> None:
    reset = bench.arm.reset

    def pressed(start: int) -> None:
        bench.core.stop_queue.put("hand", "pressed")
        bench.arm.stop()
        reset(start)

    monkeypatch.setattr(bench.arm, "reset", pressed)
    bench.done(POLICY, m.ResetScene, start=0)
    listen(bench)
    assert bench.core.mode is Mode.FAULT
    assert bench.core.fault == "stop: hand: pressed"
    assert refused(bench.ask(OPERATOR, m.ResetScene, start=0)) is Code.FAULT


def test_a_scene_that_fails_is_a_fault(bench: Bench) -> None:
    bench.arm.failing.add("reset")
    assert refused(bench.ask(POLICY, m.ResetScene, start=0)) is Code.FAULT
    assert bench.core.fault.startswith("driver: reset fails")
