"""Who commands, for how long, and what happens when nobody does."""

import numpy as np
import pytest

from robot_rl.hardware.clock import MS
from robot_rl.hardware.core.core import CoreSettings
from robot_rl.hardware.core.lease import Peer
from robot_rl.hardware.protocol import messages as m
from robot_rl.hardware.protocol.messages import Code, Mode
from robot_rl.hardware.spec import Space
from tests.hardware.core.small_arm import BRAKING, OPERATOR, OTHER, POLICY, Bench

SPACES: tuple[Space, ...] = ("joint", "cartesian")


def code(answer: m.ServerMessage) -> Code | None:
    return answer.code if isinstance(answer, m.Refused) else None


def texts(bench: Bench, what: str) -> list[str]:
    return [event.text for event in bench.core.events.since(0) if event.what == what]


def moving(space: Space) -> tuple[Bench, int]:
    """At full speed."""
    bench = Bench(space)
    lease = bench.begin()
    bench.follow(lease, "cartesian_delta", (-0.08, -0.08, 0.0, 0.0, 0.0, 0.0), 25)
    return bench, lease


def speed(bench: Bench) -> float:
    a, b = bench.arm.written[-2:]
    if bench.arm.spec.space == "joint":
        return float(np.abs(np.subtract(b, a)).max()) * 100  # type: ignore[arg-type]
    return float(np.linalg.norm(b.position - a.position)) * 100  # type: ignore[union-attr]


@pytest.mark.parametrize("space", SPACES)
def test_silence_brakes_the_arm_within_its_limits_and_then_stops_it(space: Space) -> None:
    bench, _ = moving(space)
    assert speed(bench) > 0.1
    begun = bench.clock.now()
    while bench.tick().mode is Mode.POLICY:
        assert bench.clock.now() - begun <= 110 * MS
    assert bench.core.mode is Mode.HOLD
    assert bench.arm.enabled
    speeds = []
    while bench.core.mode is Mode.HOLD:
        speeds.append(speed(bench))
        bench.tick()
    assert np.diff(speeds).max() <= 0.05 + 1e-6
    assert speeds[BRAKING:] == [0.0] * len(speeds[BRAKING:])
    assert len(speeds) == pytest.approx(51, abs=1)
    assert bench.core.mode is Mode.FAULT
    assert bench.core.fault.startswith("lease_lost")
    assert bench.arm.calls == ["stop"]
    assert not bench.arm.enabled


@pytest.mark.parametrize("space", SPACES)
def test_commands_alone_keep_a_lease_that_has_begun(space: Space) -> None:
    bench = Bench(space)
    lease = bench.begin()
    mode, here = bench.here()
    for _ in range(100):
        bench.command(POLICY, lease, mode, here)
        assert bench.tick().mode is Mode.POLICY
    # A heartbeat of anything else keeps nothing.
    for _ in range(12):
        bench.ask(POLICY, m.SampleNow)
        bench.ask(POLICY, m.TimeSync)
        bench.ask(POLICY, m.EventsSince, after=0)
        bench.command(POLICY, lease, mode, here, t_sent=0)
        bench.tick()
    assert bench.core.mode is Mode.HOLD


def test_a_new_lease_within_the_hold_ends_it_without_a_fault() -> None:
    bench, lease = moving("joint")
    bench.tick(14)
    assert bench.core.mode is Mode.HOLD
    new = bench.lease(OTHER)
    assert bench.core.mode is Mode.ARMED
    assert code(bench.command(POLICY, lease, *bench.here())) is Code.NO_LEASE
    # It is still braking, and stands in the end.
    bench.tick(BRAKING)
    assert isinstance(bench.command(OTHER, new, *bench.here()), m.Ack)
    assert bench.core.mode is Mode.POLICY
    assert bench.core.fault == ""


def test_the_first_command_has_two_seconds() -> None:
    bench = Bench()
    bench.armed()
    lease = bench.lease()
    bench.tick(199)
    assert isinstance(bench.command(POLICY, lease, *bench.here()), m.Ack)
    bench = Bench()
    bench.armed()
    lease = bench.lease()
    bench.tick(201)
    assert code(bench.command(POLICY, lease, *bench.here())) is Code.NO_LEASE
    assert bench.core.mode is Mode.ARMED
    assert bench.core.fault == ""
    assert "expired unused" in texts(bench, "lease")[-1]
    assert bench.lease(OTHER) > lease


def test_only_one_holds_the_lease() -> None:
    bench = Bench()
    lease = bench.begin()
    mode, here = bench.here()
    answer = bench.ask(OTHER, m.AcquireLease, kind="policy")
    assert code(answer) is Code.BUSY
    assert isinstance(answer, m.Refused)
    assert POLICY.name in answer.reason
    assert code(bench.ask(OTHER, m.AcquireLease, kind="policy", preempt=True)) is Code.ROLE
    assert code(bench.ask(OPERATOR, m.AcquireLease, kind="human")) is Code.BUSY
    # Whoever knows the number does not have the lease.
    assert code(bench.command(OTHER, lease, mode, here)) is Code.NO_LEASE
    assert code(bench.ask(OTHER, m.ReleaseLease, lease=lease)) is Code.NO_LEASE
    assert isinstance(bench.command(POLICY, lease, mode, here), m.Ack)


@pytest.mark.parametrize("space", SPACES)
def test_an_operator_takes_over_at_once(space: Space) -> None:
    bench, lease = moving(space)
    new = bench.lease(OPERATOR, "human", preempt=True)
    text = texts(bench, "lease")[-1]
    assert OPERATOR.name in text
    assert POLICY.name in text
    assert bench.core.mode is Mode.ARMED
    assert bench.tick().lease_holder == OPERATOR.name
    mode, here = bench.here()
    assert code(bench.command(POLICY, lease, mode, here)) is Code.NO_LEASE
    assert code(bench.command(OPERATOR, new, "cartesian_delta", (0.1, 0, 0, 0, 0, 0))) is Code.JUMP
    bench.tick(BRAKING)
    mode, here = bench.here()
    assert isinstance(bench.command(OPERATOR, new, mode, here), m.Ack)
    assert bench.core.mode is Mode.HUMAN


def test_a_released_lease_leaves_a_held_arm_and_no_fault() -> None:
    bench, lease = moving("joint")
    bench.done(POLICY, m.ReleaseLease, lease=lease)
    bench.tick(BRAKING)
    setpoint = bench.tick().setpoint
    state = bench.tick(300)
    assert state.setpoint == setpoint
    assert (state.mode, state.lease_holder, state.fault) == (Mode.ARMED, "", "")
    assert code(bench.command(POLICY, lease, *bench.here())) is Code.NO_LEASE


def test_a_pause_brakes_and_keeps_the_lease() -> None:
    bench, lease = moving("joint")
    assert code(bench.ask(OTHER, m.Pause)) is Code.NO_LEASE
    bench.done(OPERATOR, m.Pause)
    bench.tick(BRAKING)
    setpoint = bench.tick().setpoint
    state = bench.tick(400)
    assert state.setpoint == setpoint
    assert (state.mode, state.lease_holder) == (Mode.PAUSED, POLICY.name)
    assert code(bench.command(POLICY, lease, *bench.here())) is Code.MODE
    assert code(bench.ask(OTHER, m.Resume)) is Code.NO_LEASE
    bench.done(POLICY, m.Resume)
    assert code(bench.command(POLICY, lease, "cartesian_delta", (0.1, 0, 0, 0, 0, 0))) is Code.JUMP
    assert isinstance(bench.command(POLICY, lease, *bench.here()), m.Ack)
    # A holder that has died during the pause loses the lease after the grace.
    bench.done(OPERATOR, m.Pause)
    bench.done(OPERATOR, m.Resume)
    bench.tick(201)
    assert bench.state is not None
    assert (bench.state.mode, bench.state.lease_holder) == (Mode.ARMED, "")


def test_a_holder_or_an_operator_disarms() -> None:
    bench = Bench()
    bench.begin()
    assert code(bench.ask(OTHER, m.Disarm)) is Code.NO_LEASE
    bench.done(POLICY, m.Disarm)
    assert not bench.arm.enabled
    assert bench.core.mode is Mode.IDLE
    bench.done(OTHER, m.Arm, spec_sha256=bench.arm.spec.sha256)
    bench.done(OTHER, m.Disarm)


def test_leases_are_as_long_as_the_settings_say() -> None:
    for length in (5, 5000):
        with pytest.raises(ValueError, match="lease_ms"):
            CoreSettings(lease_ms=length)


@pytest.mark.parametrize("space", SPACES)
@pytest.mark.parametrize("gap_ms", [101, 400, 3000])
@pytest.mark.parametrize("server_stood_too", [True, False])
def test_a_stopped_client_that_goes_on_moves_nothing(
    space: Space, gap_ms: int, server_stood_too: bool
) -> None:
    bench, lease = moving(space)
    late = [bench.make(lease, "cartesian_delta", (0.05, 0.05, 0, 0, 0, 0), seq=10_000 + k) for k in range(20)]
    if server_stood_too:
        bench.clock.advance(gap_ms * MS)
    else:
        bench.tick(gap_ms // 10 + 1)
    answers = [bench.ask(POLICY, m.Command, **fields) for fields in late]
    assert {code(answer) for answer in answers} <= {Code.MODE, Code.FAULT}
    written = len(bench.arm.written)
    before = bench.arm.written[-1]
    bench.tick(3)
    if server_stood_too:
        for setpoint in bench.arm.written[written:]:
            assert np.array_equal(
                getattr(setpoint, "position", setpoint), getattr(before, "position", before)
            )
    # With a new lease the old commands are no better.
    if bench.core.mode is Mode.HOLD:
        bench.lease()
        answers = [bench.ask(POLICY, m.Command, **fields) for fields in late]
        assert {code(answer) for answer in answers} == {Code.NO_LEASE}


@pytest.mark.parametrize("space", SPACES)
def test_once_the_server_shuts_down_nobody_is_followed(space: Space) -> None:
    """Neither the holder of the lease nor an operator who pre-empts, nor whoever claims to be the server."""
    bench, lease = moving(space)
    bench.core.begin_shutdown()
    server = Peer("server", "operator", bench.core._stamp.src)
    command = bench.make(lease, "cartesian_delta", (0.05, 0.0, 0.0, 0.0, 0.0, 0.0))
    speeds = []
    while not speeds or speeds[-1] > 0:
        for peer in (POLICY, OPERATOR, server):
            assert code(bench.ask(peer, m.AcquireLease, kind="human", preempt=True)) is Code.MODE
            assert code(bench.ask(peer, m.Command, **command)) is Code.MODE
            assert code(bench.ask(peer, m.Home, lease=lease)) is Code.MODE
        bench.tick()
        speeds.append(speed(bench))
    assert np.diff(speeds).max(initial=0.0) <= 0.05 + 1e-6
    assert len(speeds) <= BRAKING + 1
    assert bench.core.mode is Mode.ARMED
    assert code(bench.ask(OPERATOR, m.Arm, spec_sha256=bench.arm.spec.sha256)) is Code.MODE
    assert isinstance(bench.ask(POLICY, m.SampleNow), m.State)
    assert isinstance(bench.ask(POLICY, m.Stop, reason="now"), m.Done)
    assert bench.core.mode is Mode.FAULT
    assert code(bench.ask(OPERATOR, m.AcknowledgeFault, reason="seen")) is Code.MODE
