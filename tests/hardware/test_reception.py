"""Who is let in, and that every frame has an answer: without sockets, on a clock of the test's own."""

from robot_rl.hardware.clock import SteppedClock
from robot_rl.hardware.core.core import CoreSettings, RobotCore
from robot_rl.hardware.protocol import messages as m
from robot_rl.hardware.protocol.codec import Stamper, decode_server, encode
from robot_rl.hardware.protocol.doorkeeper import Caller
from robot_rl.hardware.protocol.messages import Code, Refused, Welcome
from robot_rl.hardware.protocol.sockets import Incoming
from robot_rl.hardware.reception import MOST_PEERS, Reception
from tests.hardware.core.small_arm import SmallArm


class Desk:
    """A core with its reception."""

    def __init__(self) -> None:
        self.clock = SteppedClock()
        self.core = RobotCore(SmallArm(self.clock, "joint"), CoreSettings(), self.clock, "server")
        self.core.open()
        self.reception = Reception(self.core, Stamper("server", self.clock), self.clock)

    def send(self, frame: bytes, caller: Caller | None = None) -> m.ServerMessage:
        return decode_server(self.reception.answer(Incoming(b"route", caller, memoryview(frame))))

    def ask(self, src: str, kind: type[m.Message], caller: Caller | None = None, /, **fields: object):  # type: ignore[no-untyped-def]
        return self.send(encode(Stamper(src, self.clock).request(kind, **fields)), caller)

    def greet(self, src: str, role: m.Role = "operator", caller: Caller | None = None):  # type: ignore[no-untyped-def]
        return self.ask(src, m.Hello, caller, protocol=m.PROTOCOL, name=f"name of {src}", role=role)


def test_a_client_greets_once_and_is_known_from_then_on() -> None:
    desk = Desk()
    refused = desk.ask("a", m.GetSpec)
    assert isinstance(refused, Refused)
    assert refused.code is Code.ROLE
    assert isinstance(desk.greet("a"), Welcome)
    assert isinstance(desk.ask("a", m.GetSpec), Welcome)
    assert isinstance(desk.ask("b", m.GetSpec), Refused)


def test_a_greeting_under_one_key_is_nobody_elses() -> None:
    desk = Desk()
    mine, other = Caller("pi", "policy"), Caller("eye", "observer")
    assert isinstance(desk.greet("a", "policy", mine), Welcome)
    assert isinstance(desk.ask("a", m.GetSpec, other), Refused)
    assert isinstance(desk.ask("a", m.GetSpec, mine), Welcome)
    above = desk.greet("c", "operator", other)
    assert isinstance(above, Refused)
    assert above.code is Code.ROLE
    assert isinstance(desk.ask("c", m.GetSpec, other), Refused)


def test_another_major_version_is_refused_with_the_number_of_its_request() -> None:
    desk = Desk()
    frame = encode(
        Stamper("a", desk.clock)(m.Hello, id=7, protocol=(m.PROTOCOL[0] + 1, 0), name="a", role="observer")
    )
    answer = desk.send(frame)
    assert isinstance(answer, Refused)
    assert (answer.code, answer.id) == (Code.VERSION, 7)
    assert isinstance(desk.ask("a", m.GetSpec), Refused)


def test_a_request_that_cannot_be_read_is_refused_with_its_number_where_that_can_be() -> None:
    desk = Desk()
    desk.greet("a")
    frame = encode(Stamper("a", desk.clock)(m.Arm, id=9, spec_sha256="x")).replace(
        b"spec_sha256", b"spec_sha257"
    )
    answer = desk.send(frame)
    assert isinstance(answer, Refused)
    assert (answer.code, answer.id) == (Code.MALFORMED, 9)


def test_whoever_was_silent_for_longest_is_forgotten_first() -> None:
    desk = Desk()
    desk.greet("silent")
    desk.greet("talks")
    for number in range(MOST_PEERS - 1):
        assert isinstance(desk.ask("talks", m.GetSpec), Welcome)
        desk.greet(f"other {number}")
    assert isinstance(desk.ask("silent", m.GetSpec), Refused)
    assert isinstance(desk.ask("talks", m.GetSpec), Welcome)


def test_clients_of_one_key_displace_none_of_another() -> None:
    desk = Desk()
    mine, other = Caller("pi", "policy"), Caller("eye", "observer")
    desk.greet("a", "policy", mine)
    for number in range(2 * MOST_PEERS):
        assert isinstance(desk.greet(f"other {number}", "observer", other), Welcome)
    assert isinstance(desk.ask("a", m.GetSpec, mine), Welcome)


def test_a_lease_belongs_to_the_key_as_well_as_to_the_process() -> None:
    """Whoever knows the `src` of a lease's holder has neither its lease nor its right to pause."""
    desk = Desk()
    holder, thief = Caller("boss", "operator"), Caller("pi", "policy")
    desk.greet("a", "operator", holder)
    desk.greet("a", "policy", thief)
    spec = desk.core._driver.spec
    assert isinstance(desk.ask("a", m.Arm, holder, spec_sha256=spec.sha256), m.Done)
    lease = desk.ask("a", m.AcquireLease, holder, kind="human")
    assert isinstance(lease, m.Done)
    for kind, fields, code in (
        (m.AcquireLease, {"kind": "policy"}, Code.BUSY),
        (m.ReleaseLease, {"lease": lease.lease}, Code.NO_LEASE),
        (m.Home, {"lease": lease.lease}, Code.NO_LEASE),
        (m.Pause, {}, Code.NO_LEASE),
        (m.Disarm, {}, Code.NO_LEASE),
    ):
        answer = desk.ask("a", kind, thief, **fields)
        assert isinstance(answer, Refused), kind
        assert answer.code is code
    here = {"mode": "joint_position", "data": spec.home, "t_sent": desk.clock.now(), "lease": lease.lease}
    answer = desk.ask("a", m.Command, thief, **here)
    assert isinstance(answer, Refused)
    assert answer.code is Code.NO_LEASE


def test_anybody_may_stop_the_arm_without_a_greeting() -> None:
    desk = Desk()
    answer = desk.ask("stranger", m.Stop, reason="look out")
    assert isinstance(answer, m.Done)
    assert answer.mode is m.Mode.FAULT
    assert "look out" in desk.core.fault


def test_rubbish_does_not_push_everything_else_out_of_the_log() -> None:
    desk = Desk()
    before = desk.core.events.newest
    for _ in range(1000):
        assert isinstance(desk.send(b"\xc1"), Refused)
    assert desk.core.events.newest == before + 1
    desk.clock.advance(1_000_000_000)
    desk.send(b"\xc1")
    assert "(and 999 refusals before)" in desk.core.events.since(before + 1)[0].text
