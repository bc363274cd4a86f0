import itertools
from collections.abc import Callable

import pytest

from robot_rl.hardware.core import modes
from robot_rl.hardware.core.events import Refusal
from robot_rl.hardware.core.modes import COMMAND_OF, COMMANDED, ENABLED, TRANSITIONS, Cause
from robot_rl.hardware.protocol import messages as m
from robot_rl.hardware.protocol.messages import Code, Kind, Mode
from tests.hardware.core.small_arm import OPERATOR, Bench

KINDS: tuple[Kind, ...] = ("policy", "human", "script")


def bench_in(mode: Mode) -> tuple[Bench, int]:
    """A bench in this mode, with the lease that the operator has or had there."""
    bench, lease = Bench(), 0
    if mode is Mode.DISCONNECTED:
        return bench, lease
    bench.core.open()
    bench.tick()
    if mode is Mode.IDLE:
        return bench, lease
    if mode is Mode.FAULT:
        bench.done(OPERATOR, m.Stop)
        return bench, lease
    bench.done(OPERATOR, m.Arm, spec_sha256=bench.arm.spec.sha256)
    lease = bench.lease(OPERATOR, mode.value if mode in COMMANDED else "policy")  # type: ignore[arg-type]
    if mode is Mode.PAUSED:
        bench.done(OPERATOR, m.Pause)
    elif mode is not Mode.ARMED:
        where, data = bench.here()
        assert isinstance(bench.command(OPERATOR, lease, where, data), m.Ack)
        if mode is Mode.HOLD:
            bench.tick(11)
    assert bench.core.mode is mode
    return bench, lease


def command_as(kind: Kind) -> Callable[[Bench, int], m.ServerMessage | None]:
    """A command under a lease of this kind, where one can be had."""

    def act(bench: Bench, lease: int) -> m.ServerMessage:
        if bench.core.mode is Mode.ARMED:
            lease = bench.lease(OPERATOR, kind)
        data = bench.arm.q if bench.state is None else bench.state.setpoint or bench.arm.q
        return bench.command(OPERATOR, lease, "joint_position", data)

    return act


def tell(kind: type[m.Message], /, **fields: object) -> Callable[[Bench, int], m.ServerMessage | None]:
    return lambda bench, lease: bench.ask(OPERATOR, kind, **fields)


def after_ticks(count: int) -> Callable[[Bench, int], m.ServerMessage | None]:
    return lambda bench, lease: bench.tick(count)


def broken(bench: Bench, lease: int) -> None:
    bench.arm.failing.add("read")
    bench.tick()


REQUESTED: dict[Cause, Callable[[Bench, int], m.ServerMessage | None]] = {
    Cause.ARM: lambda bench, lease: bench.ask(OPERATOR, m.Arm, spec_sha256=bench.arm.spec.sha256),
    Cause.DISARM: tell(m.Disarm),
    Cause.RESET_SCENE: tell(m.ResetScene, start=0),
    Cause.LEASE_TAKEN: tell(m.AcquireLease, kind="policy", preempt=True),
    Cause.LEASE_RELEASED: lambda bench, lease: bench.ask(OPERATOR, m.ReleaseLease, lease=lease),
    Cause.PAUSE: tell(m.Pause),
    Cause.RESUME: tell(m.Resume),
    Cause.STOP: tell(m.Stop),
    Cause.ACKNOWLEDGE: tell(m.AcknowledgeFault, reason="looked at it"),
    **{COMMAND_OF[kind]: command_as(kind) for kind in KINDS},
}
HAPPENING: dict[Cause, Callable[[Bench, int], m.ServerMessage | None]] = {
    Cause.OPENED: lambda bench, lease: bench.core.open(),
    Cause.CLOSED: lambda bench, lease: bench.core.close(),
    Cause.FAULT: broken,
    Cause.LEASE_LAPSED: after_ticks(201),
    Cause.LEASE_LOST: after_ticks(11),
    Cause.HOLD_OVER: after_ticks(51),
}
ROWS = [(mode, cause, following) for mode, row in TRANSITIONS.items() for cause, following in row.items()]
# The kind of a command is that of its lease, and another lease goes through ARMED: it cannot be asked for.
NO_REQUEST = [(mode, COMMAND_OF[kind]) for mode in COMMANDED for kind in KINDS]
MISSING = [(mode, cause) for mode, cause in itertools.product(Mode, Cause) if cause not in TRANSITIONS[mode]]


@pytest.mark.parametrize(("mode", "cause", "following"), ROWS)
def test_each_row_of_the_table_happens(mode: Mode, cause: Cause, following: Mode) -> None:
    bench, lease = bench_in(mode)
    answer = {**REQUESTED, **HAPPENING}[cause](bench, lease)
    assert not isinstance(answer, m.Refused), answer
    assert bench.core.mode is following
    assert bench.arm.enabled == (following in ENABLED)


@pytest.mark.parametrize(
    ("mode", "cause"), [row for row in MISSING if row[1] in REQUESTED and row not in NO_REQUEST]
)
def test_what_the_table_does_not_have_is_refused_and_changes_nothing(mode: Mode, cause: Cause) -> None:
    bench, lease = bench_in(mode)
    stops = len(bench.arm.calls)
    answer = REQUESTED[cause](bench, lease)
    assert isinstance(answer, m.Refused)
    assert answer.code is (Code.FAULT if mode is Mode.FAULT else Code.MODE)
    assert mode.value in answer.reason
    assert bench.core.mode is mode
    assert len(bench.arm.calls) == stops
    event = bench.core.events.since(0)[-1]
    assert (event.what, event.code, event.who) == ("refused", answer.code, OPERATOR.name)
    assert answer.reason in event.text


@pytest.mark.parametrize(("mode", "cause"), MISSING)
def test_the_table_is_all_there_is(mode: Mode, cause: Cause) -> None:
    with pytest.raises(Refusal, match=mode.value if mode is not Mode.FAULT else "operator"):
        modes.next_mode(mode, cause, "stop")
