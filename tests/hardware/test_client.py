"""What a client can do with a real server, and what it is told when something is not possible."""

import math
import signal
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import zmq

from robot_rl.hardware.client import (
    CommandRefused,
    NoAnswer,
    RequestRefused,
    RobotClient,
    ServerChanged,
    StaleState,
)
from robot_rl.hardware.protocol.clock_sync import ClockSync
from robot_rl.hardware.protocol.codec import Stamper, decode_server, encode
from robot_rl.hardware.protocol.endpoints import parse
from robot_rl.hardware.protocol.messages import Code, Command, Event, Mode, Refused, State
from robot_rl.hardware.protocol.security import load_client_keys, make_client_keys
from robot_rl.hardware.protocol.sockets import ClientSockets
from tests.hardware.ports import free_address
from tests.hardware.processes import Server, await_event, eventually, serving


@pytest.fixture
def robot(server: Server) -> Iterator[RobotClient]:
    """An operator's client of an arm that nobody commands, in `idle`."""
    with server.client("operator", "operator") as robot:
        _calm(robot)
        yield robot
        _calm(robot)


def _calm(robot: RobotClient) -> None:
    mode = robot.sample().mode
    if mode is Mode.FAULT:
        robot.acknowledge("between two tests")
    elif mode is not Mode.IDLE:
        robot.disarm()


def test_a_client_arms_commands_and_sees_the_arm_move(robot: RobotClient) -> None:
    robot.arm()
    start = robot.state(math.inf).q
    goal = [*start]
    with robot.lease("script"):
        assert robot.state(math.inf).lease_holder in ("", "operator")
        for _ in range(20):
            goal[0] += 0.005
            ack = robot.command("joint_position", goal, ttl_ms=1000)
            assert ack.applied == pytest.approx(goal)
            assert ack.clipped == ()
        followed = eventually(
            lambda: abs((state := robot.state(math.inf)).q[0] - goal[0]) < 0.01 and state, "the arm is there"
        )
        assert followed.mode in (Mode.SCRIPT, Mode.HOLD)
    assert abs(goal[0] - start[0]) > 0.09
    assert eventually(lambda: robot.sample().mode is not Mode.SCRIPT, "the lease is given back")


def test_a_goal_beyond_a_limit_is_acknowledged_with_what_was_applied(robot: RobotClient) -> None:
    robot.arm()
    with robot.lease("script"):
        here = robot.state(math.inf)
        upper = robot.spec.limits.joint_upper[-1]
        robot.command("joint_position", here.q, ttl_ms=1000)
        ack = robot.command("joint_position", [*here.q[:-1], upper + 0.5], ttl_ms=1000)
        assert ack.applied[-1] == pytest.approx(upper)
        assert "joint_upper" in ack.clipped


def test_a_refused_command_raises_its_code_and_its_reason(robot: RobotClient) -> None:
    here = robot.state(math.inf).q
    with pytest.raises(CommandRefused, match="send Arm first") as idle:
        robot.command("joint_position", here)
    assert idle.value.code is Code.MODE
    robot.arm()
    with pytest.raises(CommandRefused) as without:
        robot.command("joint_position", here)
    assert without.value.code is Code.NO_LEASE
    with robot.lease("script"):
        with pytest.raises(CommandRefused) as far:
            robot.command("joint_position", [here[0] + 0.5, *here[1:]], ttl_ms=1000)
        assert far.value.code is Code.JUMP
        with pytest.raises(CommandRefused) as short:
            robot.command("joint_position", here[1:])
        assert short.value.code is Code.SHAPE
    codes = {event.code for event in robot.events() if event.what == "refused"}
    assert {"mode", "no_lease", "jump", "shape"} <= codes


def test_a_command_that_waits_for_its_connection_is_dated_from_before(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = Path(parse(server.address).endpoint("cmd").removeprefix("ipc://"))
    hidden, shown = place.with_name("hidden"), []
    place.rename(hidden)
    with server.client("waiting", "operator") as late:
        _calm(late)
        late.arm()
        here = late.state(math.inf).q

        def show() -> None:
            shown.append(late.server_time())
            hidden.rename(place)

        sent, exchange = [], late._connection.exchange

        def send(socket: Any, request: Any, answer: Any, deadline: int) -> Any:
            sent.append(request)
            return exchange(socket, request, answer, deadline)

        with late.lease("script"):
            monkeypatch.setattr(late._connection, "exchange", send)
            timer = threading.Timer(0.3, show)
            timer.start()
            late.command("joint_position", here)
            timer.join()
        (command,) = (request for request in sent if isinstance(request, Command))
        assert command.t_sent < shown[0]
        _calm(late)


@pytest.mark.parametrize("commands", [True, False])
def test_a_clock_probe_measures_its_round_trip_and_not_how_often_the_client_calls(
    server: Server, commands: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of a client that commands, and of one that only listens."""
    round_trips: list[int] = []
    add = ClockSync.add

    def noted(sync: ClockSync, t0: int, t1: int, t2: int, t3: int) -> None:
        round_trips.append(t3 - t0)
        add(sync, t0, t1, t2, t3)

    with server.client("me", "operator") as client:
        monkeypatch.setattr(ClockSync, "add", noted)
        _calm(client)

        def exact() -> bool:
            time.sleep(0.1)
            if commands:
                # Refused without a lease, which is an answer as well.
                with pytest.raises(CommandRefused):
                    client.command("joint_position", [0.0] * 7, ttl_ms=1000)
            else:
                client.keep_time()
            return len(round_trips) > 3 and min(round_trips) < 50e6

        eventually(exact, "the time of an answer is that of its arrival")


def test_an_arm_that_is_set_up_for_another_robot_is_not_armed(robot: RobotClient) -> None:
    with pytest.raises(RequestRefused) as refused:
        robot.arm("0" * 64)
    assert refused.value.code is Code.SPEC
    assert robot.sample().mode is Mode.IDLE


@pytest.mark.full  # in real time: on a machine without time to spare it takes minutes
def test_home_brings_the_arm_to_rest_there(robot: RobotClient) -> None:
    robot.arm()
    with robot.lease("script"):
        here = robot.state(math.inf).q
        robot.command("joint_position", here, ttl_ms=1000)
        robot.command("joint_position", [here[0] + 0.2, *here[1:]], ttl_ms=1000)
        state = robot.home(timeout=60)
    assert state.q == pytest.approx(robot.spec.home, abs=0.01)
    assert max(map(abs, state.dq)) < 0.01


def test_the_gripper_goes_where_a_command_says(robot: RobotClient) -> None:
    robot.arm()
    with robot.lease("script"):
        robot.command("joint_position", robot.state(math.inf).q, 0.5, ttl_ms=1000)

        def half() -> bool:
            gripper = robot.sample().gripper
            return gripper is not None and abs(gripper.opening - 0.5) < 0.05

        eventually(half, "the gripper is half open")


def test_an_operator_takes_the_lease_from_a_policy_in_one_step(server: Server, robot: RobotClient) -> None:
    robot.arm()
    with server.client("policy", "policy") as policy, policy.lease("policy"):
        here = policy.state(math.inf).q
        policy.command("joint_position", here, ttl_ms=1000)
        with pytest.raises(RequestRefused) as busy:
            robot.acquire("human")
        assert busy.value.code is Code.BUSY
        with robot.lease("human", preempt=True):
            with pytest.raises(CommandRefused) as muted:
                policy.command("joint_position", here, ttl_ms=1000)
            assert muted.value.code is Code.NO_LEASE
            with pytest.raises(CommandRefused) as jump:
                robot.command("joint_position", [here[0] + 0.3, *here[1:]], ttl_ms=1000)
            assert jump.value.code is Code.JUMP
            robot.command("joint_position", here, ttl_ms=1000)
            with pytest.raises(RequestRefused) as forbidden:
                policy.acquire("policy", preempt=True)
            assert forbidden.value.code is Code.ROLE
    taken = await_event(robot, "taken from lease")
    assert "operator" in taken.text
    assert "policy" in taken.text


def test_a_state_is_new_or_refused_with_its_age(server: Server) -> None:
    with server.client("looker") as robot:
        robot.state(30.0)
        server.process.send(signal.SIGSTOP)
        try:
            time.sleep(0.5)
            with pytest.raises(StaleState, match="ms old, 100 ms were allowed") as stale:
                robot.state(0.1)
            assert stale.value.age > 0.4
            assert robot.state(math.inf).mode is Mode.IDLE
        finally:
            server.process.send(signal.SIGCONT)
        eventually(lambda: _answers(robot), "the server goes on")


def _answers(robot: RobotClient) -> bool:
    try:
        return bool(robot.sample().q)
    except NoAnswer:
        # ZMQ takes a server that was stopped for more than a second for dead, and connects again.
        return False


def test_a_server_that_hangs_costs_no_more_than_the_time_limit(server: Server) -> None:
    with server.client("waiter") as robot:

        def is_late() -> bool:
            """The late answer is dropped; the next request gets its own."""
            # Less than the silence after which a connection is made again, and late answers are lost with it.
            robot._connection._timeout = 0.2
            server.process.send(signal.SIGSTOP)
            try:
                begun = time.monotonic()
                with pytest.raises(NoAnswer, match="sample_now: no answer from ipc://"):
                    robot.sample()
                with pytest.raises(NoAnswer, match="command"):
                    robot.command("joint_position", [0.0] * 7, timeout=0.2)
                assert time.monotonic() - begun >= 0.4
                assert time.monotonic() - begun < 30
            finally:
                server.process.send(signal.SIGCONT)
            robot._connection._timeout = 5.0
            return _answers(robot) and robot.late >= 1

        eventually(is_late, "an answer comes late")


def test_on_one_machine_there_is_one_clock(robot: RobotClient) -> None:
    assert robot.clock_offset()[:2] == (0, 0)


def test_without_a_server_there_is_a_named_error_in_time(tmp_path: Path) -> None:
    begun = time.monotonic()
    with (
        pytest.raises(NoAnswer, match="hello: no connection"),
        RobotClient(f"ipc://{tmp_path / 'r'}", "nobody", timeout=0.3),
    ):
        pass
    assert 0.3 <= time.monotonic() - begun < 30


def test_events_are_numbered_published_and_asked_for_later(server: Server, robot: RobotClient) -> None:
    with zmq.Context() as context:
        socket = ClientSockets(context, parse(server.address)).event()

        def hear() -> Event | None:
            _toggle(robot)
            return decode_server(socket.recv()) if socket.poll(100) else None  # type: ignore[return-value]

        first = eventually(hear, "an event is published")
        assert isinstance(first, Event)
        socket.close()
    events = robot.events()
    assert [event.seq for event in events] == list(range(1, len(events) + 1))
    assert first in events
    assert robot.events(since=events[-3].seq)[:2] == events[-2:]


def _toggle(robot: RobotClient) -> None:
    robot.arm()
    robot.disarm()


def test_keys_give_a_client_its_name_and_no_more_than_its_role(tmp_path: Path) -> None:
    folder = tmp_path / "keys"
    policy = load_client_keys(make_client_keys(folder, "pi", "policy"))
    looker = load_client_keys(make_client_keys(folder, "eye", "observer"))
    with serving(tmp_path, keys=folder, address=free_address()) as server:
        with server.client("anything", "policy", keys=policy) as robot:
            robot.arm()
            with robot.lease("policy"):
                robot.command("joint_position", robot.state(math.inf).q, ttl_ms=1000)
            assert {event.who for event in robot.events() if event.what == "lease"} == {"pi"}
        with pytest.raises(RequestRefused) as more, server.client("eye", "operator", keys=looker):
            pass
        assert more.value.code is Code.ROLE
        with pytest.raises(NoAnswer), server.client("nobody", timeout=1.0):
            pass
        with server.client("eye", keys=looker) as robot:
            assert robot.stop("looks bad").mode is Mode.FAULT
            assert "eye: looks bad" in await_event(robot, "looks bad").text


def test_whoever_has_not_said_hello_is_refused(server: Server) -> None:
    from robot_rl.hardware.clock import MonotonicClock
    from robot_rl.hardware.protocol.messages import Arm

    with zmq.Context() as context:
        socket = ClientSockets(context, parse(server.address)).request("ctrl")
        request = Stamper("stranger", MonotonicClock()).request(Arm, spec_sha256="")
        assert socket.poll(30_000, zmq.POLLOUT)
        socket.send(encode(request))
        assert socket.poll(30_000)
        answer = decode_server(socket.recv())
        socket.close()
    assert isinstance(answer, Refused)
    assert answer.id == request.id
    assert answer.code is Code.ROLE
    assert "hello" in answer.reason


def test_a_server_that_was_started_anew_is_noticed(tmp_path: Path) -> None:
    with serving(tmp_path) as first, first.client("me") as robot:
        robot.state(30.0)
        first.process.kill()
        with serving(tmp_path):

            def notice() -> bool:
                with pytest.raises((ServerChanged, NoAnswer, StaleState)) as error:
                    robot.sample()
                return error.type is ServerChanged

            eventually(notice, "the client learns of the new server")


def test_every_tick_publishes_one_state(server: Server) -> None:
    with zmq.Context() as context:
        socket = ClientSockets(context, parse(server.address)).state(every=True)
        states = []
        while len(states) < 50:
            assert socket.poll(30_000)
            states.append(decode_server(socket.recv()))
        socket.close()
    assert all(isinstance(state, State) for state in states)
    numbers = [state.seq for state in states]
    assert numbers == list(range(numbers[0], numbers[0] + 50))
