"""The core under random requests, silences, stalls and faults: what must hold whatever happens.

What a setpoint may be, the arm itself asserts at each one (`SmallArm`). Here is when it may move at all and
what is refused. What is expected follows from the answers that clients got, not from the inside of the core.
"""

import math
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass

import numpy as np
import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    precondition,
    rule,
    run_state_machine_as_test,
)

from robot_rl.hardware.clock import MS
from robot_rl.hardware.core.lease import Peer
from robot_rl.hardware.core.modes import COMMANDED, TRANSITIONS, Cause
from robot_rl.hardware.drivers.driver import Array, DriverError, Pose
from robot_rl.hardware.protocol import messages as m
from robot_rl.hardware.protocol.messages import Code, Mode
from robot_rl.hardware.spec import CommandMode, Space
from tests.hardware.core.small_arm import BRAKING, OBSERVER, OPERATOR, OTHER, POLICY, STARTS, Bench

CLIENTS = (POLICY, OTHER, OPERATOR)
LEASE = 100 * MS
# Within 250 ms of a fault the arm rests: it coasts with a lag of 30 ms.
AT_REST = 25
KINDS = ("policy", "human", "script")
MODES = ("joint_position", "cartesian_pose", "cartesian_delta")
SOMEBODY = st.sampled_from((*CLIENTS, None, None, None, None))
"""None is whoever has the lease."""
WISH = st.lists(st.floats(-0.3, 0.3), min_size=6, max_size=6)


def same(a: Array | Pose, b: Array | Pose) -> bool:
    if isinstance(a, Pose) and isinstance(b, Pose):
        return bool((a.position == b.position).all() and (a.quaternion == b.quaternion).all())
    return bool(np.all(a == b))


@dataclass
class Sent:
    at: int
    ttl: int
    target: int


class Promises(RuleBasedStateMachine):
    space: Space = "joint"
    seen: Counter[str]
    """What has happened in all examples: a test in which nothing happens proves nothing."""

    @initialize(commanded=st.sampled_from((True, True, True, False)))
    def begin(self, commanded: bool) -> None:
        self.bench = Bench(self.space)
        self.arm, self.core = self.bench.arm, self.bench.core
        self.owner: Peer | None = None
        """Of the lease, by the answers; it may have lost it since."""
        self.leases = {peer.name: 1 for peer in CLIENTS}
        """The last that each was given."""
        self.fed_until = -1
        """Until when the last accepted command authorises motion."""
        self.unfed_ticks = BRAKING
        self.fault_ticks = 0
        self.mode = self.core.mode
        self.acknowledging = False
        self.seq = 0
        self.sent: dict[int, Sent] = {}
        self.taken: set[tuple[object, int]] = set()
        self.queued: list[tuple[Peer, dict[str, object]]] = []
        self.core.open()
        self.tick()
        if commanded:
            self.begin_to_command(POLICY)

    # ---- requests -----------------------------------------------------------------------------------

    def ask(self, peer: Peer, kind: type[m.Message], /, **fields: object) -> m.ServerMessage:
        before = self.core.events.newest
        answer = self.bench.ask(peer, kind, **fields)
        if isinstance(answer, m.Refused):
            self.seen[answer.code.value] += 1
            assert any(
                event.what == "refused" and event.code == answer.code and answer.reason in event.text
                for event in self.core.events.since(before)
            ), f"refused without an event: {answer}"
        self.watch()
        return answer

    def who(self, peer: Peer | None) -> Peer:
        return peer or self.owner or POLICY

    @rule()
    def arm_it(self) -> None:
        self.ask(OPERATOR, m.Arm, spec_sha256=self.arm.spec.sha256)

    @rule(peer=st.sampled_from((*CLIENTS, OBSERVER)), start=st.integers(0, STARTS), disarmed=st.booleans())
    def reset_scene(self, peer: Peer, start: int, disarmed: bool) -> None:
        """The arm itself asserts that it is not enabled."""
        if disarmed:
            self.change(OPERATOR, m.Disarm)
        before = self.core.mode
        answer = self.ask(peer, m.ResetScene, start=start)
        if isinstance(answer, m.Done):
            self.seen["scene begun"] += 1
            assert (before, answer.mode, self.core.mode) == (Mode.IDLE,) * 3
            assert (peer is not OBSERVER, start < STARTS) == (True, True)

    @rule(peer=st.sampled_from(CLIENTS), kind=st.sampled_from(KINDS), preempt=st.booleans())
    def acquire(self, peer: Peer, kind: m.Kind, preempt: bool) -> None:
        self.ask(peer, m.GetSpec)  # by now a lease that has run out has ended
        holder = self.core.handle(peer, m.SampleNow(src=peer.src, seq=1, tm=0)).lease_holder  # type: ignore[union-attr]
        answer = self.ask(peer, m.AcquireLease, kind=kind, preempt=preempt)
        if isinstance(answer, m.Done):
            if holder not in ("", peer.name):
                assert preempt
                assert peer is OPERATOR
                self.seen["pre-emption"] += 1
            self.owner, self.fed_until = peer, -1
            self.leases[peer.name] = answer.lease

    @rule(peer=SOMEBODY)
    def release(self, peer: Peer | None) -> None:
        peer = self.who(peer)
        if isinstance(self.ask(peer, m.ReleaseLease, lease=self.leases[peer.name]), m.Done):
            assert self.owner is peer
            self.owner, self.fed_until = None, -1

    @rule(peer=SOMEBODY, kind=st.sampled_from((m.Pause, m.Resume, m.Disarm)))
    def change(self, peer: Peer | None, kind: type[m.Message]) -> None:
        peer = self.who(peer)
        if isinstance(self.ask(peer, kind), m.Done):
            assert peer in (OPERATOR, self.owner) or kind is m.Disarm
            self.fed_until = -1
            self.owner = None if kind is m.Disarm else self.owner

    @rule(peer=st.sampled_from((*CLIENTS, OBSERVER)), from_thread=st.booleans())
    def stop(self, peer: Peer, from_thread: bool) -> None:
        if from_thread:
            self.core.stop_queue.put(peer.name, "pressed")
            with suppress(DriverError):
                self.arm.stop()
            self.ask(peer, m.GetSpec)
        else:
            assert isinstance(self.ask(peer, m.Stop), m.Done)
        assert self.core.mode is Mode.FAULT

    @rule(peer=st.sampled_from((OPERATOR, OPERATOR, POLICY, OBSERVER)))
    def acknowledge(self, peer: Peer) -> None:
        self.acknowledging = peer is OPERATOR
        answer = self.ask(peer, m.AcknowledgeFault, reason="it looks well")
        assert peer is OPERATOR or isinstance(answer, m.Refused)
        self.acknowledging = False

    @rule(peer=st.sampled_from(CLIENTS))
    def begin_to_command(self, peer: Peer) -> None:
        """All that it takes, in the right order; else few examples would ever move."""
        self.repair()
        self.acknowledge(OPERATOR)
        self.arm_it()
        self.change(OPERATOR, m.Resume)
        self.acquire(OPERATOR, "script", True)
        self.release(OPERATOR)
        self.acquire(peer, "policy", False)
        self.tick()
        mode: CommandMode = "joint_position" if self.space == "joint" else "cartesian_pose"
        answer = self.send(peer, self.command_of(peer, mode, [0.0] * 6, 100, 0, 1))
        assert isinstance(answer, m.Ack), answer
        self.tick()

    # ---- commands -----------------------------------------------------------------------------------

    @rule(wish=WISH, repeats=st.integers(5, 30), begin=st.sampled_from((True, True, False)))
    def follow(self, wish: list[float], repeats: int, begin: bool) -> None:
        """A client as it should be."""
        if begin and self.core.mode not in COMMANDED:
            self.begin_to_command(POLICY)
        self.command(None, "cartesian_delta", wish, 1.0, 100, 0, 1, 0, repeats)

    @rule(wish=WISH, ticks=st.integers(20, 40))
    def collide(self, wish: list[float], ticks: int) -> None:
        """The arm stands against something while it is commanded on, and then comes free."""
        if self.core.mode not in COMMANDED:
            self.begin_to_command(POLICY)
        self.arm.blocked = True
        self.command(None, "cartesian_delta", wish, 1.0, 100, 0, 1, 0, ticks)
        self.arm.blocked = False
        self.command(None, "cartesian_delta", [0.0] * 6, 1.0, 100, 0, 1, 0, 5)

    @rule(wish=WISH, ahead_ms=st.integers(5, 200), repeats=st.integers(5, 15), spacing=st.integers(1, 8))
    def chunks(self, wish: list[float], ahead_ms: int, repeats: int, spacing: int) -> None:
        """Commands with times to come, of which every few ticks a part is replaced."""
        if self.core.mode not in COMMANDED:
            self.begin_to_command(OPERATOR)
        for number in range(repeats):
            for ahead in (ahead_ms, ahead_ms + 20, ahead_ms + 40):
                self.send(
                    self.who(None), self.command_of(self.who(None), "cartesian_delta", wish, 10, ahead, 1)
                )
            for _ in range(spacing if number else 1):
                self.tick()

    @rule(
        peer=SOMEBODY,
        mode=st.sampled_from(MODES),
        wish=WISH,
        size=st.sampled_from((0.01, 0.1, 1.0)),
        ttl_ms=st.sampled_from((5, 50, 100, 1000)),
        ahead_ms=st.sampled_from((0, 0, 0, 30, 300, 3000)),
        step=st.sampled_from((1, 1, 1, 1, 0, -3)),
        late_ms=st.sampled_from((0, 0, 0, 4, 60)),
        repeats=st.integers(1, 12),
    )
    def command(
        self,
        peer: Peer | None,
        mode: CommandMode,
        wish: list[float],
        size: float,
        ttl_ms: int,
        ahead_ms: int,
        step: int,
        late_ms: int,
        repeats: int,
    ) -> None:
        """A stream of commands at every tick, each as late as the others."""
        peer = self.who(peer)
        for _ in range(repeats):
            fields = self.command_of(peer, mode, [size * value for value in wish], ttl_ms, ahead_ms, step)
            self.bench.clock.advance(late_ms * MS)
            self.send(peer, fields)
            self.tick()

    @rule(peer=SOMEBODY, bad=st.sampled_from((math.nan, math.inf, -math.inf, 1e308)), at=st.integers(0, 5))
    def nonsense(self, peer: Peer | None, bad: float, at: int) -> None:
        peer = self.who(peer)
        fields = self.command_of(peer, "cartesian_delta", [0.0] * 6, 100, 0, 1)
        data = list(fields["data"])  # type: ignore[call-overload]
        data[at] = bad
        answer = self.send(peer, {**fields, "data": tuple(data)})
        if not math.isfinite(bad):
            assert isinstance(answer, m.Refused)
            assert answer.code is Code.NAN
        self.tick()

    @rule(wish=WISH, ttl_ms=st.integers(1, 60), more_ms=st.integers(1, 30))
    def late_under_a_living_lease(self, wish: list[float], ttl_ms: int, more_ms: int) -> None:
        if self.core.mode not in COMMANDED:
            self.begin_to_command(OTHER)
        fields = self.command_of(self.who(None), "cartesian_delta", wish, ttl_ms, 0, 1)
        self.bench.clock.advance((ttl_ms + more_ms) * MS)
        assert isinstance(self.send(self.who(None), fields), m.Refused)
        self.tick()

    @rule(peer=SOMEBODY, ticks=st.integers(1, 25))
    def home(self, peer: Peer | None, ticks: int) -> None:
        peer = self.who(peer)
        for _ in range(ticks):
            if not isinstance(self.ask(peer, m.Home, lease=self.leases[peer.name]), m.Done):
                return
            assert self.owner is peer
            self.fed_until = self.bench.clock.now() + LEASE
            self.tick()

    @rule(peer=SOMEBODY, wish=WISH)
    def queue(self, peer: Peer | None, wish: list[float]) -> None:
        """A command that does not arrive yet: its sender or the network stands still."""
        peer = self.who(peer)
        self.queued.append((peer, self.command_of(peer, "cartesian_delta", wish, 100, 0, 1)))

    @precondition(lambda self: self.queued)
    @rule(gap_ms=st.integers(120, 900), tick_first=st.booleans())
    def burst(self, gap_ms: int, tick_first: bool) -> None:
        """All of them arrive at once, after a gap in which the server stood still too: nothing may move."""
        self.seen["burst"] += 1
        self.bench.clock.advance(gap_ms * MS)
        if tick_first:
            self.tick()
        for peer, fields in self.queued:
            assert isinstance(self.send(peer, fields), m.Refused)
        self.queued = []
        self.tick()
        for _ in range(3):
            before = self.arm.written[-1:]
            self.tick()
            assert not before or self.arm.blocked or same(before[0], self.arm.written[-1]), "it moved"

    def command_of(
        self, peer: Peer, mode: CommandMode, wish: list[float], ttl_ms: int, ahead_ms: int, step: int
    ) -> dict[str, object]:
        now = self.bench.clock.now()
        seq = max(1, self.seq + step)
        self.seq = max(seq, self.seq)
        return {
            "lease": self.leases[peer.name],
            "mode": mode,
            "data": self.target(mode, wish),
            "ttl_ms": ttl_ms,
            "t_sent": now,
            "t_target": now + ahead_ms * MS if ahead_ms else 0,
            "seq": seq,
        }

    def target(self, mode: CommandMode, wish: list[float]) -> tuple[float, ...]:
        """From the setpoint on: a small wish passes the jump guard."""
        if mode == "cartesian_delta":
            return (*wish[:3], *((0.0, 0.0, wish[3]) if self.space == "joint" else wish[3:]))
        assert self.bench.state is not None
        setpoint = self.bench.state.setpoint
        if mode == "joint_position":
            base = np.array(setpoint) if len(setpoint) == len(self.arm.q) else self.arm.q
            return tuple((base + wish[: len(base)]).tolist())
        if len(setpoint) == 7:
            return (*(np.array(setpoint[:3]) + wish[:3]).tolist(), *setpoint[3:])
        pose = self.arm.kinematics.forward(np.array(setpoint) if setpoint else self.arm.q)
        return (*(pose.position + wish[:3]).tolist(), *pose.quaternion.tolist())

    def send(self, peer: Peer, fields: dict[str, object]) -> m.ServerMessage:
        sent = Sent(fields["t_sent"], fields["ttl_ms"] * MS, fields["t_target"])  # type: ignore[arg-type,operator]
        data: tuple[float, ...] = fields["data"]  # type: ignore[assignment]
        now = self.bench.clock.now()
        answer = self.ask(peer, m.Command, **fields)
        if isinstance(answer, m.Ack):
            self.seen["ack"] += 1
            self.seen[f"clipped {bool(answer.clipped)}"] += 1
            assert now - sent.at <= sent.ttl, f"a command {(now - sent.at) / MS} ms old is taken"
            assert self.owner is peer, "a command of who has no lease is taken"
            assert (fields["lease"], answer.command) not in self.taken, "a command is taken twice"
            self.taken.add((fields["lease"], answer.command))
            assert all(map(math.isfinite, data))
            assert len(answer.applied) == len(data)
            assert answer.clipped or answer.applied == data
            self.sent[answer.command] = sent
            self.fed_until = now + LEASE
        elif answer.code in (Code.LIMIT, Code.UNREACHABLE) and self.owner is peer and now <= self.fed_until:  # type: ignore[union-attr]
            # Its sender lives: what it has commanded before goes on.
            self.fed_until = now + LEASE
        return answer

    # ---- time and faults ----------------------------------------------------------------------------

    @rule(ticks=st.sampled_from((1, 4, 12, 40, 70)))
    def silence(self, ticks: int) -> None:
        for _ in range(ticks):
            self.tick()

    @rule(what=st.sampled_from(("read", "write", "enable", "recover", "stop")), ticks=st.integers(0, 3))
    def break_driver(self, what: str, ticks: int) -> None:
        self.arm.failing.add(what)
        self.silence(ticks)

    @rule(what=st.sampled_from(("blocked", "frozen", "nan")), ticks=st.integers(0, 40))
    def break_arm(self, what: str, ticks: int) -> None:
        setattr(self.arm, what, True)
        self.silence(ticks)

    @rule()
    def repair(self) -> None:
        self.arm.failing.clear()
        self.arm.blocked = self.arm.frozen = self.arm.nan = False

    # ---- what must hold -----------------------------------------------------------------------------

    def tick(self) -> m.State:
        before = self.bench.state
        state, now = self.bench.tick(), self.bench.clock.now()
        self.watch()
        self.seen[state.mode.value] += 1
        self.unfed_ticks = 0 if now <= self.fed_until else self.unfed_ticks + 1
        written = self.arm.written
        if len(written) > 1 and self.arm.enabled:
            moved = not same(written[-1], written[-2])
            self.seen["moved"] += moved
            assert not moved or self.unfed_ticks <= BRAKING or self.arm.blocked, "it moves for nobody"
        if before and state.goal_seq not in (0, before.goal_seq):
            sent = self.sent[state.goal_seq]
            self.seen["timed"] += sent.target > 0
            assert now >= sent.target, "a command is acted on before its time"
            assert now - max(sent.at, sent.target) <= sent.ttl, "a command older than its ttl is acted on"
        self.fault_ticks = self.fault_ticks + 1 if state.mode is Mode.FAULT else 0
        if self.fault_ticks > AT_REST:
            self.arm.settle()
            assert np.abs(self.arm.dq).max() < 1e-2, "it is not at rest after a fault"
        return state

    def watch(self) -> None:
        mode = self.core.mode
        assert self.mode is not Mode.FAULT or mode is Mode.FAULT or self.acknowledging, "a fault has gone"
        if mode is Mode.FAULT:
            assert not self.arm.enabled
            assert self.core.fault
            self.owner, self.fed_until = None, -1
        self.mode = mode

    def teardown(self) -> None:
        if not hasattr(self, "bench"):
            return
        for event in self.core.events.since(0):
            self.seen["lead"] += "lead_" in event.text
            if event.what == "mode":
                old, _, new, _, cause = event.text.split()
                assert TRANSITIONS[Mode(old)][Cause(cause)] is Mode(new)
        # Whatever has happened: an operator can bring it back.
        self.begin_to_command(OPERATOR)
        self.home(OPERATOR, 5)
        assert self.core.mode is Mode.SCRIPT or self.core.mode is Mode.POLICY


@pytest.mark.parametrize("space", ["joint", "cartesian"])
def test_an_arm_keeps_its_promises_whatever_happens(space: Space) -> None:
    seen: Counter[str] = Counter()
    machine = type("Machine", (Promises,), {"space": space, "seen": seen})
    run_state_machine_as_test(
        machine,
        settings=settings(
            max_examples=60,
            # What fails is deterministic and short enough; making it shorter takes minutes.
            phases=[Phase.generate],
            stateful_step_count=30,
            derandomize=True,
            database=None,
            suppress_health_check=list(HealthCheck),
        ),
    )
    print(seen)
    # Nothing above holds because nothing has happened. Which rare refusals come up changes with every line of
    # the code, for hypothesis takes its constants from there; each has its own test in test_commands.
    often = {"ack": 200, "moved": 200, "fault": 200, "hold": 50, "timed": 20, "clipped True": 1, "lead": 1}
    for what, count in often.items():
        assert seen[what] >= count, (what, seen)
    codes = ("stale", "no_lease", "bad_seq", "nan", "jump", "mode", "fault", "role", "busy", "limit")
    assert sum(seen[code] > 0 for code in codes) >= 6, seen
