"""Faults stop the arm at once and stay until a person has looked at it."""

import numpy as np
import pytest

from robot_rl.hardware.clock import MS
from robot_rl.hardware.drivers.driver import Array, DriverError, Measurement
from robot_rl.hardware.protocol import messages as m
from robot_rl.hardware.protocol.codec import decode_server, encode
from robot_rl.hardware.protocol.messages import Code, Mode
from tests.hardware.core.small_arm import OBSERVER, OPERATOR, OTHER, PERIOD, POLICY, Bench


def code(answer: m.ServerMessage) -> Code | None:
    return answer.code if isinstance(answer, m.Refused) else None


def acknowledge(bench: Bench) -> m.ServerMessage:
    return bench.ask(OPERATOR, m.AcknowledgeFault, reason="I have looked at it")


def broken(bench: Bench, what: str) -> None:
    if what in ("nan", "frozen"):
        setattr(bench.arm, what, True)
    else:
        bench.arm.failing.add(what)


@pytest.mark.parametrize(
    ("what", "fault"),
    [("read", "driver"), ("write", "driver"), ("nan", "measurement"), ("frozen", "measurement")],
)
def test_what_goes_wrong_in_the_arm_stops_it_and_stays(what: str, fault: str) -> None:
    bench = Bench()
    bench.begin()
    broken(bench, what)
    ticks = 0
    while bench.tick().mode is not Mode.FAULT:
        ticks += 1
    assert ticks <= 3
    assert bench.arm.calls == ["stop"]
    assert bench.state is not None
    assert bench.state.fault.startswith(f"{fault}: ")
    assert bench.state.lease_holder == ""
    assert bench.state.setpoint == ()
    # It is gone, and the fault stays; meanwhile the log is not flooded.
    count = bench.core.events.newest
    bench.tick(50)
    bench.arm.failing.clear()
    bench.arm.nan = bench.arm.frozen = False
    assert bench.tick(50).mode is Mode.FAULT
    assert bench.core.events.newest == count
    for peer in (POLICY, OTHER, OBSERVER):
        assert code(bench.ask(peer, m.AcknowledgeFault, reason="never mind")) is Code.ROLE
    assert code(bench.ask(OPERATOR, m.Arm, spec_sha256=bench.arm.spec.sha256)) is Code.FAULT
    assert isinstance(acknowledge(bench), m.Done)
    assert bench.arm.calls == ["stop", "recover"]
    assert bench.tick().mode is Mode.IDLE
    event = next(event for event in bench.core.events.since(0) if event.what == "acknowledged")
    assert "I have looked at it" in event.text
    assert fault in event.text
    assert event.who == OPERATOR.name


def test_a_fault_that_the_server_finds_in_itself_stops_the_arm_and_is_one_event() -> None:
    bench = Bench()
    bench.core.fail("descriptors", "nothing is connected yet")
    assert bench.core.fault == ""
    bench.begin()
    for _ in range(20):
        bench.core.fail("descriptors", "hardly any is left")
        state = bench.tick()
    assert (state.mode, state.fault) == (Mode.FAULT, "descriptors: hardly any is left")
    assert bench.arm.calls == ["stop"]
    told = [event for event in bench.core.events.since(0) if "hardly any" in event.text]
    assert [event.what for event in told] == ["fault"]
    assert isinstance(acknowledge(bench), m.Done)
    bench.core.fail("descriptors", "hardly any is left")
    assert bench.tick().mode is Mode.FAULT


@pytest.mark.parametrize("begun", [True, False])
def test_a_gripper_that_fails_is_a_fault_of_its_own_name_until_it_is_acknowledged(begun: bool) -> None:
    bench = Bench()
    if begun:
        bench.begin()
    else:
        bench.core.open()
        bench.tick()
    bench.fingers.fault = "read: unplugged"
    state = bench.tick()
    assert (state.mode, state.fault, state.lease_holder) == (Mode.FAULT, "gripper: read: unplugged", "")
    assert bench.arm.calls[-1] == "stop"
    assert bench.fingers.stops
    bench.tick(20)
    told = [event for event in bench.core.events.since(0) if "unplugged" in event.text]
    assert [event.what for event in told] == ["fault"]
    # A stop that comes on top is heard, and logged.
    bench.core.stop_queue.put("hand", "pressed")
    assert bench.tick().fault == "gripper: read: unplugged"
    assert bench.core.events.since(0)[-1].what == "stop"
    assert isinstance(acknowledge(bench), m.Done)
    assert bench.fingers.fault == ""
    assert bench.tick(5).mode is Mode.IDLE
    bench.fingers.fault = "read: unplugged"
    assert bench.tick().mode is Mode.FAULT, "it fails again"


def test_a_fault_that_persists_cannot_be_acknowledged_away() -> None:
    bench = Bench()
    bench.begin()
    bench.arm.failing.update({"read", "recover"})
    bench.tick()
    assert code(acknowledge(bench)) is Code.FAULT
    assert bench.core.mode is Mode.FAULT
    bench.arm.failing.discard("recover")
    acknowledge(bench)
    assert bench.tick().mode is Mode.FAULT


def test_a_measurement_from_the_future_is_none() -> None:
    bench = Bench()
    bench.begin()
    bench.arm.frozen, bench.arm._frozen_at = True, bench.clock.now() + 3600 * 1000 * MS
    assert bench.tick().mode is Mode.FAULT


def test_a_fault_of_several_lines_is_one_line_in_every_answer() -> None:
    bench = Bench()
    bench.begin()
    bench.arm.failing.add("read")
    bench.arm.failure = "joint 3:\n  too hot\x07" + "!" * 2000
    state = bench.tick()
    assert state.fault.startswith("driver: joint 3: too hot?!!")
    answer = bench.ask(POLICY, m.Home, lease=1)
    assert isinstance(answer, m.Refused)
    assert "joint 3: too hot?" in answer.reason
    assert answer.reason.isprintable()
    for message in (state, answer):
        assert decode_server(encode(message)) == message
    event = bench.core.events.since(0)[-1]
    assert answer.reason in event.text


def test_an_arm_is_not_at_fault_when_its_server_is_suspended_while_it_reads() -> None:
    bench = Bench()
    bench.begin()
    read = bench.arm.read

    def suspended() -> Measurement:
        bench.clock.advance(30 * PERIOD)
        measured = read()
        bench.clock.advance(30 * PERIOD)
        return measured

    bench.arm.read = suspended  # type: ignore[method-assign]
    bench.tick()
    bench.arm.read = read  # type: ignore[method-assign]
    assert bench.tick().mode is not Mode.FAULT


def test_a_fault_while_idle_is_a_fault_too() -> None:
    bench = Bench()
    bench.core.open()
    bench.tick()
    bench.arm.failing.add("read")
    assert bench.tick().mode is Mode.FAULT
    assert bench.state is not None
    assert len(bench.state.q) == 4, "the last measurement is still shown, with its time"
    assert bench.state.t_sample == bench.clock.now() - PERIOD


@pytest.mark.parametrize("when", ["arm", "read at arm", "disarm"])
def test_a_request_that_fails_in_the_arm_latches_the_fault(when: str) -> None:
    bench = Bench()
    if when == "disarm":
        bench.begin()
        bench.arm.failing.add("stop")
        answer = bench.ask(OPERATOR, m.Disarm)
    else:
        bench.core.open()
        bench.tick()
        bench.arm.failing.add("enable" if when == "arm" else "read")
        answer = bench.ask(OPERATOR, m.Arm, spec_sha256=bench.arm.spec.sha256)
    assert code(answer) is Code.FAULT
    assert bench.core.mode is Mode.FAULT
    assert not bench.arm.enabled


def test_an_arm_that_does_not_take_the_stop_is_named() -> None:
    bench = Bench()
    bench.begin()
    bench.arm.failing.add("stop")
    assert isinstance(bench.ask(OBSERVER, m.Stop, reason="smoke"), m.Done)
    assert bench.core.mode is Mode.FAULT
    assert "smoke" in bench.core.fault
    assert "did not accept the stop" in bench.core.fault


def test_another_robot_is_not_armed() -> None:
    bench = Bench()
    bench.core.open()
    bench.tick()
    answer = bench.ask(OPERATOR, m.Arm, spec_sha256=Bench("cartesian").arm.spec.sha256)
    assert code(answer) is Code.SPEC
    assert bench.core.mode is Mode.IDLE


# ---- stop -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("next_call", ["tick", "handle"])
def test_the_stop_of_another_thread_is_seen_by_the_next_call(next_call: str) -> None:
    bench = Bench()
    lease = bench.begin()
    mode, here = bench.here()
    bench.core.stop_queue.put("hand", "pressed")
    bench.arm.stop()
    if next_call == "tick":
        bench.tick()
    else:
        assert code(bench.command(POLICY, lease, mode, here)) is Code.FAULT
    assert bench.core.mode is Mode.FAULT
    assert bench.core.fault == "stop: hand: pressed"
    event = next(event for event in bench.core.events.since(0) if event.what == "stop")
    assert event.who == "hand"


def test_a_stop_between_enabling_and_arming_is_not_lost() -> None:
    bench = Bench()
    bench.core.open()
    bench.tick()
    enable = bench.arm.enable

    def pressed_just_before() -> None:
        bench.core.stop_queue.put("hand", "pressed")
        bench.arm.stop()
        enable()

    bench.arm.enable = pressed_just_before  # type: ignore[method-assign]
    assert code(bench.ask(OPERATOR, m.Arm, spec_sha256=bench.arm.spec.sha256)) is Code.FAULT
    assert not bench.arm.enabled
    assert bench.core.mode is Mode.FAULT


def test_a_stop_while_nothing_is_connected_is_in_the_log() -> None:
    bench = Bench()
    assert bench.done(OBSERVER, m.Stop).mode is Mode.DISCONNECTED
    assert bench.core.events.since(0)[-1].what == "stop"
    assert bench.arm.calls == []


# ---- time -----------------------------------------------------------------------------------------------


def test_after_a_time_without_ticks_the_setpoint_does_not_go_on_with_its_old_speed() -> None:
    bench = Bench()
    lease = bench.begin()
    bench.follow(lease, "cartesian_delta", (-0.08, -0.08, 0, 0, 0, 0), 25)
    fast = np.abs(np.subtract(*bench.arm.written[-2:])).max()  # type: ignore[call-overload]
    bench.clock.advance(60 * MS)
    bench.tick()
    last: list[Array] = bench.arm.written[-2:]  # type: ignore[assignment]
    assert bench.core.mode is Mode.POLICY
    assert np.abs(last[1] - last[0]).max() < 0.05 * fast
    assert "overrun" in [event.what for event in bench.core.events.since(0)]


# ---- what it tells --------------------------------------------------------------------------------------


def test_a_client_is_greeted_in_the_role_that_it_may_have() -> None:
    bench = Bench()
    hello = {"protocol": m.PROTOCOL, "name": "somebody"}
    for peer, role, allowed in (
        (POLICY, "policy", True),
        (POLICY, "observer", True),
        (POLICY, "operator", False),
        (OBSERVER, "policy", False),
        (OPERATOR, "operator", True),
    ):
        answer = bench.ask(peer, m.Hello, role=role, **hello)
        assert (code(answer) is None) == allowed
        if isinstance(answer, m.Welcome):
            assert answer.role == role
            assert answer.spec == bench.arm.spec
            assert answer.spec_sha256 == bench.arm.spec.sha256
            assert answer.lease_ms == 100
    answer = bench.ask(POLICY, m.Hello, role="policy", protocol=(2, 0), name="somebody")
    assert code(answer) is Code.VERSION


def test_requests_and_answers_belong_together() -> None:
    bench = Bench()
    bench.armed()
    for kind, fields in (
        (m.GetSpec, {}),
        (m.TimeSync, {}),
        (m.SampleNow, {}),
        (m.EventsSince, {"after": 0}),
        (m.AcquireLease, {"kind": "policy"}),
        (m.Home, {"lease": 99}),
        (m.Stop, {}),
    ):
        assert bench.ask(POLICY, kind, id=4711, **fields).id == 4711


def test_the_time_is_the_servers() -> None:
    bench = Bench()
    reply = bench.ask(POLICY, m.TimeSync)
    assert isinstance(reply, m.TimeSyncReply)
    assert reply.t0 == reply.t1 == reply.tm == bench.clock.now()


def test_a_sample_is_of_now_and_the_loop_is_told() -> None:
    bench = Bench()
    assert bench.tick().q == ()
    bench.armed()
    bench.clock.advance(3 * MS)
    bench.core.loop = m.Loop(late_us_p50=1.0, late_us_p99=2.0, overruns=3, ticks=4)
    state = bench.ask(OBSERVER, m.SampleNow)
    assert isinstance(state, m.State)
    assert state.t_sample == bench.clock.now()
    assert state.loop == bench.core.loop


def test_the_published_states_are_numbered_without_gaps_whoever_asks_for_samples() -> None:
    bench = Bench()
    first = bench.tick().seq
    bench.ask(OBSERVER, m.SampleNow)
    assert bench.tick().seq == first + 1


def test_closing_stops_the_arm_and_can_be_done_twice() -> None:
    bench = Bench()
    bench.begin()
    bench.core.close()
    assert bench.arm.calls == ["stop"]
    assert not bench.arm.is_open
    assert bench.core.mode is Mode.DISCONNECTED
    bench.core.close()
    assert bench.tick().mode is Mode.DISCONNECTED


def test_an_arm_that_cannot_be_opened_says_so() -> None:
    bench = Bench()
    bench.arm.failing.add("open")
    with pytest.raises(DriverError, match="open fails"):
        bench.core.open()
    assert bench.core.mode is Mode.DISCONNECTED
