"""What the sockets promise: the newest, nothing old, nobody blocked, nothing too large."""

import itertools
import os
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import zmq

from robot_rl.hardware.protocol import sockets
from robot_rl.hardware.protocol.arrays import MAX_IMAGE, topic
from robot_rl.hardware.protocol.codec import MAX_CONTROL, ProtocolError, decode_client
from robot_rl.hardware.protocol.endpoints import CHANNELS, Address, Channel
from robot_rl.hardware.protocol.messages import Code
from robot_rl.hardware.protocol.security import (
    ClientKeys,
    ServerKeys,
    load_client_keys,
    load_server_keys,
    make_client_keys,
)
from robot_rl.hardware.protocol.sockets import ClientSockets, ServerSockets, reply
from tests.hardware.protocol.conftest import Join, Make
from tests.hardware.protocol.waiting import PATIENCE, eventually, newest, receive, send


class Recorded(zmq.Socket):
    """A real socket that remembers what was done to it."""

    def __init__(self, *args: object, **kwargs: object) -> None:
        self.__dict__["done"] = []
        super().__init__(*args, **kwargs)  # type: ignore[arg-type]

    def __setattr__(self, name: str, value: object) -> None:
        self.done.append(("set", name))
        super().__setattr__(name, value)

    def set(self, option: int, value: object) -> None:
        self.done.append(("set", option))
        super().set(option, value)  # type: ignore[arg-type]

    setsockopt = set

    def bind(self, endpoint: str) -> object:
        self.done.append(("open", endpoint))
        return super().bind(endpoint)

    def connect(self, endpoint: str) -> object:
        self.done.append(("open", endpoint))
        return super().connect(endpoint)


class RecordingContext(zmq.Context):
    _socket_class = Recorded


CLIENT_SOCKETS: dict[str, Callable[[ClientSockets], zmq.Socket]] = {
    "ctrl": lambda client: client.request("ctrl"),
    "cmd": lambda client: client.request("cmd"),
    "estop": lambda client: client.request("estop"),
    "newest state": lambda client: client.state(),
    "every state": lambda client: client.state(every=True),
    "newest image": lambda client: client.image("wrist"),
    "every image": lambda client: client.image("wrist", every=True),
    "event": lambda client: client.event(),
    "command": lambda client: client.command(),
}


@pytest.fixture
def recording() -> Iterator[RecordingContext]:
    with RecordingContext() as context:
        yield context
        context.destroy(linger=0)


@pytest.fixture
def keys(tmp_path: Path) -> tuple[ServerKeys, ClientKeys]:
    path = make_client_keys(tmp_path / "keys", "carl", "operator")
    return load_server_keys(tmp_path / "keys"), load_client_keys(path)


def _check_common(socket: zmq.Socket, endpoint: str) -> None:
    opened = socket.done.index(("open", endpoint))
    assert opened == len(socket.done) - 1, f"set too late: {socket.done[opened + 1 :]}"
    options = {option for _, option in socket.done[:opened]}
    assert options >= {
        zmq.LINGER,
        zmq.MAXMSGSIZE,
        zmq.HEARTBEAT_IVL,
        zmq.HEARTBEAT_TIMEOUT,
        zmq.HANDSHAKE_IVL,
    }
    assert socket.getsockopt(zmq.LINGER) == 0
    assert socket.getsockopt(zmq.SNDTIMEO) == socket.getsockopt(zmq.RCVTIMEO) == 0
    assert 0 < socket.getsockopt(zmq.MAXMSGSIZE) <= MAX_IMAGE + MAX_CONTROL
    assert 0 < socket.getsockopt(zmq.HEARTBEAT_IVL) < socket.getsockopt(zmq.HEARTBEAT_TIMEOUT)
    assert socket.getsockopt(zmq.SNDHWM) > 0, "an endless queue"
    assert socket.getsockopt(zmq.RCVHWM) > 0, "an endless queue"


@pytest.mark.parametrize("channel", CHANNELS)
def test_a_server_sets_every_option_before_it_binds(
    recording: RecordingContext, address: Address, keys: tuple[ServerKeys, ClientKeys], channel: Channel
) -> None:
    server = ServerSockets(recording, address, keys[0])
    socket = server.bind(channel)
    _check_common(socket, address.endpoint(channel))
    assert {option for _, option in socket.done} >= {zmq.CURVE_SERVER, zmq.ZAP_DOMAIN, zmq.ZAP_ENFORCE_DOMAIN}
    assert socket.getsockopt(zmq.MECHANISM) == zmq.CURVE
    if socket.type == zmq.ROUTER:
        assert ("set", zmq.ROUTER_MANDATORY) in socket.done
    server.close()


@pytest.mark.parametrize("kind", CLIENT_SOCKETS)
def test_a_client_sets_every_option_before_it_connects(
    recording: RecordingContext, address: Address, keys: tuple[ServerKeys, ClientKeys], kind: str
) -> None:
    socket = CLIENT_SOCKETS[kind](ClientSockets(recording, address, keys[1]))
    _check_common(socket, address.endpoint(kind.split()[-1]))  # type: ignore[arg-type]
    assert socket.getsockopt(zmq.MECHANISM) == zmq.CURVE
    assert (("set", zmq.CONFLATE) in socket.done) == kind.startswith("newest")
    if socket.type == zmq.DEALER:
        assert socket.getsockopt(zmq.IMMEDIATE) == 1


def test_an_option_that_comes_after_connect_is_found() -> None:
    with RecordingContext() as context, context.socket(zmq.SUB) as socket:
        socket.connect("tcp://127.0.0.1:1")
        socket.setsockopt(zmq.LINGER, 0)
        with pytest.raises(AssertionError, match="set too late"):
            _check_common(socket, "tcp://127.0.0.1:1")


def _subscribed(publisher: zmq.Socket, prefix: bytes, subscribers: list[zmq.Socket]) -> None:
    """Publish until all have heard the same: then nothing else is on its way."""
    for number in itertools.count():
        message = prefix + b"try %d" % number
        publisher.send(message)
        if all(_hears(subscriber, message) for subscriber in subscribers):
            return
        assert number < 10 * PATIENCE, "they never subscribed"


def _hears(subscriber: zmq.Socket, message: bytes) -> bool:
    while subscriber.poll(100):
        if newest(subscriber) == message:
            return True
    return False


def _published(publisher: zmq.Socket, messages: list[bytes], recorder: zmq.Socket) -> None:
    """Each is sent once the recorder has the one before."""
    for message in messages:
        publisher.send(message)
        assert receive(recorder) == message


def _read(subscriber: zmq.Socket, publisher: zmq.Socket, last: bytes) -> list[bytes]:
    """All messages of a subscriber until the last, which is said again if it was lost in a full queue."""
    got: list[bytes] = []
    while not got or got[-1] != last:
        if not subscriber.poll(1000):
            publisher.send(last)
        got.append(receive(subscriber))
    return got


def test_who_asks_for_the_newest_state_gets_no_other(serve: Make, join: Join, address: Address) -> None:
    publisher = serve(address).bind("state")
    client = join(address)
    slow, recorder = client.state(), client.state(every=True)
    _subscribed(publisher, b"", [slow, recorder])
    states = [b"%d" % number for number in range(900)]
    _published(publisher, states, recorder)
    # The recorder has had all of them; had `slow` been given a queue, all would be there now.
    assert len(_read(slow, publisher, states[-1])) < 50
    assert newest(slow) in (None, states[-1])


def test_who_asks_for_the_newest_image_gets_no_other(serve: Make, join: Join, address: Address) -> None:
    publisher = serve(address).bind("image")
    client = join(address)
    slow, recorder = client.image("wrist"), client.image("wrist", every=True)
    _subscribed(publisher, topic("wrist"), [slow, recorder])
    # More than the buffers of a connection hold.
    images = [topic("wrist") + b"%d" % number + bytes(600_000) for number in range(100)]
    _published(publisher, images, recorder)
    assert len(_read(slow, publisher, images[-1])) < 10
    assert newest(slow) in (None, images[-1])


def test_a_camera_is_not_another_whose_name_it_begins(serve: Make, join: Join, ipc: Address) -> None:
    publisher = serve(ipc).bind("image")
    left, plain = join(ipc).image("wrist_left", every=True), join(ipc).image("wrist", every=True)
    _subscribed(publisher, topic("wrist"), [plain])
    _subscribed(publisher, topic("wrist_left"), [left])
    publisher.send(topic("wrist_left") + b"1")
    publisher.send(topic("wrist") + b"2")
    assert receive(plain) == topic("wrist") + b"2"
    assert receive(left) == topic("wrist_left") + b"1"


def test_newest_of_a_queue_is_the_last_and_none_of_an_empty_one(
    serve: Make, join: Join, ipc: Address
) -> None:
    publisher = serve(ipc).bind("state")
    recorder = join(ipc).state(every=True)
    assert newest(recorder) is None
    _subscribed(publisher, b"", [recorder])
    for number in range(50):
        publisher.send(b"%d" % number)
    eventually(lambda: newest(recorder) == b"49")


def test_a_command_without_a_server_is_not_kept_for_later(serve: Make, join: Join, address: Address) -> None:
    command = join(address).request("cmd")
    for _ in range(5):
        with pytest.raises(zmq.Again):
            command.send(b"old")
    server = serve(address)
    router = server.bind("cmd")
    send(command, b"new")
    assert router.poll(PATIENCE * 1e3)
    first = server.receive(router)
    assert first is not None
    assert first.frame == b"new"
    assert server.receive(router) is None


def test_a_request_is_answered_to_who_asked(serve: Make, join: Join, address: Address) -> None:
    server = serve(address)
    router = server.bind("ctrl")
    clients = [join(address).request("ctrl") for _ in range(3)]
    for number, client in enumerate(clients):
        send(client, b"question %d" % number)
    for _ in clients:
        question = eventually(lambda: server.receive(router))
        assert question.caller is None
        assert reply(router, question.route, bytes(question.frame).replace(b"question", b"answer"))
    for number, client in enumerate(clients):
        assert receive(client) == b"answer %d" % number


def test_a_server_is_not_held_up_by_clients_that_went_or_do_not_read(
    serve: Make, join: Join, ipc: Address
) -> None:
    server = serve(ipc)
    router = server.bind("ctrl")
    gone, deaf = join(ipc).request("ctrl"), join(ipc).request("ctrl")
    send(gone, b"gone")
    left = eventually(lambda: server.receive(router))
    gone.close()
    eventually(lambda: not reply(router, left.route, b"answer"))
    send(deaf, b"deaf")
    there = eventually(lambda: server.receive(router))
    sent = 0
    while reply(router, there.route, bytes(MAX_CONTROL)):
        sent += 1
        assert sent < 10_000, "an endless queue"
    assert sent > 0


def test_what_is_too_large_does_not_reach_the_server_and_others_do(
    serve: Make, join: Join, address: Address
) -> None:
    server = serve(address)
    router = server.bind("ctrl")
    rude, polite = join(address).request("ctrl"), join(address).request("ctrl")
    events = rude.get_monitor_socket(zmq.EVENT_DISCONNECTED)
    send(rude, bytes(MAX_CONTROL + 1))
    assert events.poll(PATIENCE * 1e3), "it was not thrown out"
    send(polite, bytes(MAX_CONTROL))
    assert len(eventually(lambda: server.receive(router)).frame) == MAX_CONTROL
    assert server.receive(router) is None
    rude.disable_monitor()


def test_a_message_of_several_parts_is_malformed(serve: Make, join: Join, ipc: Address) -> None:
    server = serve(ipc)
    router = server.bind("ctrl")
    client = join(ipc).request("ctrl")
    assert client.poll(PATIENCE * 1e3, zmq.POLLOUT)
    client.send_multipart([b"", b"as REQ does"])
    incoming = eventually(lambda: server.receive(router))
    with pytest.raises(ProtocolError) as caught:
        decode_client(incoming.frame)
    assert caught.value.code == Code.MALFORMED


@pytest.mark.parametrize("channel", ["ctrl", "state"])
def test_a_socket_that_was_refused_can_be_connected_anew(
    serve: Make, join: Join, tcp: Address, channel: Channel
) -> None:
    host, port = tcp.endpoint(channel).removeprefix("tcp://").split(":")
    client = join(tcp)
    with socket.create_server((host, int(port))) as other:
        mine = client.state() if channel == "state" else client.request(channel)
        connection, _ = other.accept()
        with connection:
            connection.settimeout(PATIENCE)
            # The greeting of a peer that wants a password.
            connection.sendall(b"\xff" + bytes(8) + b"\x7f\3\1" + b"PLAIN".ljust(52, b"\0"))
            while connection.recv(1000):
                pass
    server = serve(tcp)
    theirs = server.bind(channel)

    def passes() -> bool:
        if channel == "state":
            theirs.send(b"x")
            return bool(mine.poll(10))
        return bool(mine.poll(10, zmq.POLLOUT))

    # ZMQ has given up, which is why there is `reconnect`.
    assert not any(passes() for _ in range(50))
    client.reconnect(mine)
    eventually(passes)
    client.reconnect(mine)
    eventually(passes)


def test_what_is_sent_after_connecting_anew_arrives(
    serve: Make, join: Join, address: Address, monkeypatch: pytest.MonkeyPatch
) -> None:
    """ZMQ would take it for the connection that is about to end, and lose it in there."""
    # Where the machine is busy, ZMQ's thread takes longer to end it than a client would wait.
    monkeypatch.setattr(sockets, "_ENDS_MS", 60_000)
    server, client = serve(address), join(address)
    router, mine = server.bind("estop"), client.request("estop")
    send(mine, b"first")
    before = eventually(lambda: server.receive(router)).route
    for number in range(30):
        client.reconnect(mine)
        send(mine, b"stop %d" % number)
        arrived = eventually(lambda: server.receive(router))
        assert arrived.frame == b"stop %d" % number
        assert arrived.route != before
        before = arrived.route


def test_two_servers_cannot_have_one_address(serve: Make, address: Address) -> None:
    first = serve(address)
    first.bind("ctrl")
    with pytest.raises(ValueError, match="choose another address"):
        serve(address).bind("ctrl")
    first.close()
    first.close()

    def free() -> bool:
        """ZMQ closes in its own thread."""
        try:
            return bool(serve(address).bind("ctrl"))
        except ValueError:
            return False

    eventually(free)


def test_a_killed_server_leaves_its_address_to_the_next(
    serve: Make, join: Join, address: Address, tmp_path: Path
) -> None:
    code = (
        "import sys, zmq\n"
        "from robot_rl.hardware.protocol.endpoints import parse\n"
        "from robot_rl.hardware.protocol.sockets import ServerSockets\n"
        "server = ServerSockets(zmq.Context(), parse(sys.argv[1]))\n"
        "server.bind('ctrl')\n"
        "print('ready', flush=True)\n"
        "sys.stdin.read()\n"
    )
    command = [sys.executable, "-c", code, str(address)]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=dict(os.environ)
    ) as server:
        assert server.stdout is not None
        assert server.stdout.readline() == b"ready\n"
        with pytest.raises(ValueError, match="choose another address"):
            serve(address).bind("ctrl")
        server.kill()
    next_server = serve(address)
    router = next_server.bind("ctrl")
    send(join(address).request("ctrl"), b"hello")
    assert eventually(lambda: next_server.receive(router)).frame == b"hello"


def test_a_newest_image_that_nobody_reads_takes_no_memory(serve: Make, join: Join, ipc: Address) -> None:
    def resident() -> int:
        return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGESIZE")

    publisher = serve(ipc).bind("image")
    client = join(ipc)
    forgotten, recorder = client.image("wrist"), client.image("wrist", every=True)
    _subscribed(publisher, topic("wrist"), [forgotten, recorder])
    images = [topic("wrist") + bytes(1_000_000)] * 100
    _published(publisher, images[:10], recorder)
    before = resident()
    _published(publisher, images, recorder)
    assert resident() - before < 50_000_000
