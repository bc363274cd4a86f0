"""Every command is told to those who record: as it was asked, and with what became of it."""

from robot_rl.hardware.protocol import messages as m
from robot_rl.hardware.protocol.codec import decode_server, encode
from robot_rl.hardware.protocol.messages import Code
from tests.hardware.core.small_arm import OBSERVER, POLICY, Bench


def test_a_command_is_told_with_what_was_asked_and_applied() -> None:
    bench = Bench()
    lease = bench.begin()
    goal = tuple(bench.tick().setpoint)
    answer = bench.command(
        POLICY, lease, "joint_position", goal, gripper=0.3, obs_seq=7, t_target=bench.clock.now() + 5
    )
    assert isinstance(answer, m.Ack)
    told = bench.core.commanded.pop()
    assert (told.who, told.kind, told.command, told.lease) == ("policy", "policy", bench.seq, lease)
    assert (told.mode, told.data, told.gripper, told.obs_seq) == ("joint_position", goal, 0.3, 7)
    assert (told.applied, told.clipped, told.t_applied) == (answer.applied, answer.clipped, answer.t_applied)
    assert told.t_target == told.t_applied
    assert told.code is None
    assert decode_server(encode(told)) == told


def test_what_limits_made_of_it_stands_beside_what_was_asked() -> None:
    bench = Bench()
    lease = bench.begin()
    x, y, _, *turned = bench.core.tick().position + bench.core.tick().quaternion
    far = (x, y, 3.0, *turned)
    answer = bench.command(POLICY, lease, "cartesian_pose", far)
    assert isinstance(answer, m.Ack)
    assert answer.clipped
    told = bench.core.commanded.pop()
    assert told.data == far
    assert told.applied == answer.applied != far
    assert told.clipped == answer.clipped


def test_a_refused_command_is_told_with_the_reason_and_nothing_applied() -> None:
    bench = Bench()
    lease = bench.begin()
    here = tuple(bench.tick().setpoint)
    for peer, fields, code, kind in (
        (POLICY, {"data": here[:2]}, Code.SHAPE, "policy"),
        (POLICY, {"t_sent": bench.clock.now() - 10**9}, Code.STALE, "policy"),
        (OBSERVER, {}, Code.ROLE, None),
    ):
        asked = {**bench.make(lease, "joint_position", here), **fields}
        assert isinstance(bench.ask(peer, m.Command, **asked), m.Refused)
        told = bench.core.commanded.pop()
        assert (told.who, told.kind, told.code) == (peer.name, kind, code)
        assert told.data == asked["data"]
        assert (told.applied, told.clipped, told.t_applied) == ((), (), 0)


def test_they_are_numbered_without_a_gap_and_other_requests_are_not_among_them() -> None:
    bench = Bench()
    lease = bench.begin()
    bench.core.commanded.clear()
    for _ in range(4):
        bench.command(POLICY, lease, "cartesian_delta", (0.0,) * 6)
        bench.ask(POLICY, m.SampleNow)
        bench.command(POLICY, lease + 1, "cartesian_delta", (0.0,) * 6)
    numbers = [told.seq for told in bench.core.commanded]
    assert numbers == list(range(numbers[0], numbers[0] + 8))
