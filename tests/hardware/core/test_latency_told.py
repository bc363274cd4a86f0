"""A client is told how late the robot is, if it knows what that means; the robot is the same one."""

import datetime

from robot_rl.hardware.clock import SteppedClock
from robot_rl.hardware.core.core import CoreSettings, RobotCore
from robot_rl.hardware.core.lease import Peer
from robot_rl.hardware.protocol.codec import Stamper, decode_server, encode
from robot_rl.hardware.protocol.messages import Hello, Welcome
from robot_rl.hardware.spec import Delay, Latency
from tests.hardware.core.small_arm import SmallArm

LATENCY = Latency(action=Delay(ms=62.0, spread_ms=2.0, measured=datetime.date(2026, 11, 21)))


def welcome(protocol: tuple[int, int], latency: Latency | None) -> Welcome:
    clock = SteppedClock()
    core = RobotCore(SmallArm(clock, "joint"), CoreSettings(latency=latency), clock, "session")
    hello = Stamper("me", clock).request(Hello, protocol=protocol, name="me", role="observer")
    answer = decode_server(encode(core.handle(Peer("me", "observer", "me"), hello)))
    assert isinstance(answer, Welcome)
    return answer


def test_who_knows_latencies_is_told() -> None:
    assert welcome((1, 1), LATENCY).latency == LATENCY
    assert welcome((1, 2), LATENCY).latency == LATENCY
    assert welcome((1, 1), None).latency is None


def test_who_does_not_know_them_could_not_read_it() -> None:
    assert welcome((1, 0), LATENCY).latency is None


def test_a_latency_makes_no_other_robot() -> None:
    assert welcome((1, 1), LATENCY).spec_sha256 == welcome((1, 1), None).spec_sha256
