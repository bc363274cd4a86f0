"""Who is let in, and that every frame has an answer: without sockets, on a clock of the test's own."""

from robot_rl.hardware.clock import SteppedClock
from robot_rl.hardware.core.core import CoreSettings, RobotCore
from robot_rl.hardware.protocol import messages as m
from robot_rl.hardware.protocol.authenticator import AuthenticatedClient
from robot_rl.hardware.protocol.codec import Stamper, decode_server, encode
from robot_rl.hardware.protocol.messages import Code, Refused, Welcome
from robot_rl.hardware.protocol.sockets import Incoming
from robot_rl.hardware.request_router import MAX_PEERS, RequestRouter
from tests.hardware.core.small_arm import SmallArm


class Desk:
    """A core with its router."""

    def __init__(self) -> None:
        self.clock = SteppedClock()
        self.core = RobotCore(SmallArm(self.clock, "joint"), CoreSettings(), self.clock, "server")
        self.core.open()
        self.router = RequestRouter(self.core, Stamper("server", self.clock), self.clock)

    def send(self, frame: bytes, caller: AuthenticatedClient | None = None) -> m.ServerMessage:
        return decode_server(self.router.answer(Incoming(b"route", caller, memoryview(frame))))

    def ask(
        self, src: str, kind: type[m.Message], caller: AuthenticatedClient | None = None, /, **fields: object
    ):  # type: ignore[no-untyped-def]
        return self.send(encode(Stamper(src, self.clock).request(kind, **fields)), caller)

    def handshake(self, src: str, role: m.Role = "operator", caller: AuthenticatedClient | None = None):  # type: ignore[no-untyped-def]
        return self.ask(src, m.Hello, caller, protocol=m.PROTOCOL, name=f"name of {src}", role=role)


def test_a_client_greets_once_and_is_known_from_then_on() -> None:
    bench = Desk()
    refused = bench.ask("a", m.GetSpec)
    assert isinstance(refused, Refused)
    assert refused.code is Code.ROLE
    assert isinstance(bench.handshake("a"), Welcome)
    assert isinstance(bench.ask("a", m.GetSpec), Welcome)
    assert isinstance(bench.ask("b", m.GetSpec), Refused)


def test_a_greeting_under_one_key_is_nobody_elses() -> None:
    bench = Desk()
    mine, other = AuthenticatedClient("pi", "policy"), AuthenticatedClient("eye", "observer")
    assert isinstance(bench.handshake("a", "policy", mine), Welcome)
    assert isinstance(bench.ask("a", m.GetSpec, other), Refused)
    assert isinstance(bench.ask("a", m.GetSpec, mine), Welcome)
    above = bench.handshake("c", "operator", other)
    assert isinstance(above, Refused)
    assert above.code is Code.ROLE
    assert isinstance(bench.ask("c", m.GetSpec, other), Refused)


def test_another_major_version_is_refused_with_the_number_of_its_request() -> None:
    bench = Desk()
    frame = encode(
        Stamper("a", bench.clock)(m.Hello, id=7, protocol=(m.PROTOCOL[0] + 1, 0), name="a", role="observer")
    )
    answer = bench.send(frame)
    assert isinstance(answer, Refused)
    assert (answer.code, answer.id) == (Code.VERSION, 7)
    assert isinstance(bench.ask("a", m.GetSpec), Refused)


def test_a_request_that_cannot_be_read_is_refused_with_its_number_where_that_can_be() -> None:
    bench = Desk()
    bench.handshake("a")
    frame = encode(Stamper("a", bench.clock)(m.Arm, id=9, spec_sha256="x")).replace(
        b"spec_sha256", b"spec_sha257"
    )
    answer = bench.send(frame)
    assert isinstance(answer, Refused)
    assert (answer.code, answer.id) == (Code.MALFORMED, 9)


def test_whoever_was_silent_for_longest_is_forgotten_first() -> None:
    bench = Desk()
    bench.handshake("silent")
    bench.handshake("talks")
    for number in range(MAX_PEERS - 1):
        assert isinstance(bench.ask("talks", m.GetSpec), Welcome)
        bench.handshake(f"other {number}")
    assert isinstance(bench.ask("silent", m.GetSpec), Refused)
    assert isinstance(bench.ask("talks", m.GetSpec), Welcome)


def test_clients_of_one_key_displace_none_of_another() -> None:
    bench = Desk()
    mine, other = AuthenticatedClient("pi", "policy"), AuthenticatedClient("eye", "observer")
    bench.handshake("a", "policy", mine)
    for number in range(2 * MAX_PEERS):
        assert isinstance(bench.handshake(f"other {number}", "observer", other), Welcome)
    assert isinstance(bench.ask("a", m.GetSpec, mine), Welcome)


def test_a_lease_belongs_to_the_key_as_well_as_to_the_process() -> None:
    """Whoever knows the `src` of a lease's holder has neither its lease nor its right to pause."""
    bench = Desk()
    holder, thief = AuthenticatedClient("boss", "operator"), AuthenticatedClient("pi", "policy")
    bench.handshake("a", "operator", holder)
    bench.handshake("a", "policy", thief)
    spec = bench.core._driver.spec
    assert isinstance(bench.ask("a", m.Arm, holder, spec_sha256=spec.sha256), m.Done)
    lease = bench.ask("a", m.AcquireLease, holder, kind="human")
    assert isinstance(lease, m.Done)
    for kind, fields, code in (
        (m.AcquireLease, {"kind": "policy"}, Code.BUSY),
        (m.ReleaseLease, {"lease": lease.lease}, Code.NO_LEASE),
        (m.Home, {"lease": lease.lease}, Code.NO_LEASE),
        (m.Pause, {}, Code.NO_LEASE),
        (m.Disarm, {}, Code.NO_LEASE),
    ):
        answer = bench.ask("a", kind, thief, **fields)
        assert isinstance(answer, Refused), kind
        assert answer.code is code
    here = {"mode": "joint_position", "data": spec.home, "t_sent": bench.clock.now(), "lease": lease.lease}
    answer = bench.ask("a", m.Command, thief, **here)
    assert isinstance(answer, Refused)
    assert answer.code is Code.NO_LEASE


def test_anybody_may_stop_the_arm_without_a_greeting() -> None:
    bench = Desk()
    answer = bench.ask("stranger", m.Stop, reason="look out")
    assert isinstance(answer, m.Done)
    assert answer.mode is m.Mode.FAULT
    assert "look out" in bench.core.fault


def test_rubbish_does_not_push_everything_else_out_of_the_log() -> None:
    bench = Desk()
    before = bench.core.events.newest
    for _ in range(1000):
        assert isinstance(bench.send(b"\xc1"), Refused)
    assert bench.core.events.newest == before + 1
    bench.clock.advance(1_000_000_000)
    bench.send(b"\xc1")
    assert "(and 999 refusals before)" in bench.core.events.since(before + 1)[0].text
