"""Keys are kept safe; without the right one nobody gets in; with it, its role comes along."""

import json
import os
import socket
import stat
from pathlib import Path

import pytest
import zmq
from zmq.utils import z85
from zmq.utils.monitor import recv_monitor_message

from robot_rl.hardware.protocol import authenticator, security
from robot_rl.hardware.protocol.endpoints import Address, parse
from robot_rl.hardware.protocol.messages import Role
from robot_rl.hardware.protocol.security import (
    ClientKeys,
    ServerKeys,
    check_keys,
    list_clients,
    load_client_keys,
    load_server_keys,
    make_client_keys,
    make_server_keys,
    may,
)
from robot_rl.hardware.protocol.sockets import ClientSockets, reply
from tests.hardware.protocol.conftest import Join, Make
from tests.hardware.protocol.waiting import PATIENCE, eventually, newest, receive, send

LAN = parse("tcp://192.168.1.2:5550")


@pytest.fixture
def home(tmp_path: Path) -> Path:
    return tmp_path / "keys"


def _client(home: Path, name: str, role: Role) -> ClientKeys:
    return load_client_keys(make_client_keys(home, name, role))


def _stranger(server: bytes) -> ClientKeys:
    """Somebody with a good pair and the server's public key, whom nobody has allowed."""
    public, secret = zmq.curve_keypair()
    return ClientKeys(public, secret, server, "operator")


def _connect_monitored(sockets: ClientSockets, events: int) -> tuple[zmq.Socket, zmq.Socket]:
    """A client's control socket, and its monitor, which sees all of a connection."""
    client = sockets.request("ctrl")
    monitor = client.get_monitor_socket(events)
    # The first connection may have failed before the monitor was there.
    sockets.reconnect(client)
    return client, monitor


# ---- keys as files ----------------------------------------------------------------------------------


def test_keys_are_files_for_their_owner_alone_whatever_the_umask(home: Path) -> None:
    old = os.umask(0)
    try:
        make_client_keys(home, "carl", "policy")
    finally:
        os.umask(old)
    found = sorted(path.relative_to(home).as_posix() for path in home.rglob("*"))
    assert found == ["allowed", "allowed/carl.json", "clients", "clients/carl.json", "server.json"]
    for path in (home, *home.rglob("*")):
        assert stat.S_IMODE(path.stat().st_mode) == (0o700 if path.is_dir() else 0o600), path


def test_clients_are_listed_with_their_roles(home: Path) -> None:
    assert list_clients(home) == ()
    _client(home, "zoe", "operator")
    _client(home, "carl", "observer")
    assert [(client.name, client.role) for client in list_clients(home)] == [
        ("carl", "observer"),
        ("zoe", "operator"),
    ]


def test_the_servers_pair_stays_and_clients_know_it(home: Path) -> None:
    server = make_server_keys(home)
    first, second = _client(home, "a", "policy"), _client(home, "b", "policy")
    again = make_server_keys(home)
    assert (again.public, again.secret) == (server.public, server.secret)
    assert first.server == second.server == server.public
    assert first.secret != second.secret
    assert set(again.allowed) == {first.public, second.public}


def test_a_name_is_given_once(home: Path) -> None:
    _client(home, "carl", "policy")
    with pytest.raises(ValueError, match="choose another name"):
        make_client_keys(home, "carl", "operator")
    # Also after its file was moved to the client's machine.
    (home / "clients" / "carl.json").unlink()
    with pytest.raises(ValueError, match="choose another name"):
        make_client_keys(home, "carl", "operator")
    assert [client.role for client in list_clients(home)] == ["policy"]


@pytest.mark.parametrize("name", ["", "../carl", "a/b", "carl\n", "a:b", ".", "x" * 65, "ä"])
def test_a_name_is_never_a_path(home: Path, name: str) -> None:
    with pytest.raises(ValueError, match="names are letters"):
        make_client_keys(home, name, "policy")
    assert list_clients(home) == ()


def test_there_are_three_roles(home: Path) -> None:
    with pytest.raises(ValueError, match="roles are observer, policy, operator"):
        make_client_keys(home, "carl", "admin")  # type: ignore[arg-type]
    allowed = [[may(has, wants) for wants in ("observer", "policy", "operator")] for has in security._RANK]
    assert allowed == [[True, False, False], [True, True, False], [True, True, True]]


@pytest.mark.parametrize("mode", [0o604, 0o640, 0o644, 0o666])
def test_keys_that_others_can_read_are_refused(home: Path, mode: int) -> None:
    path = make_client_keys(home, "carl", "policy")
    for file, load in (
        (path, lambda: load_client_keys(path)),
        (home / "server.json", lambda: load_server_keys(home)),
        (home / "allowed" / "carl.json", lambda: load_server_keys(home)),
    ):
        file.chmod(mode)
        with pytest.raises(ValueError, match=f"chmod 600 {file}"):
            load()
        file.chmod(0o600)
        load()
    (home / "allowed").chmod(0o755)
    with pytest.raises(ValueError, match="chmod 700"):
        load_server_keys(home)


@pytest.mark.parametrize(
    "changes",
    [
        {"secret": "short"},
        {"secret": "~" * 40},
        {"public": "0" * 40},
        {"server": None},
        {"role": "admin"},
        {"name": "../x"},
        {"more": 1},
    ],
)
def test_a_file_of_keys_that_was_changed_is_refused(home: Path, changes: dict) -> None:
    path = make_client_keys(home, "carl", "policy")
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))
    with pytest.raises(ValueError, match="make new keys") as caught:
        load_client_keys(path)
    assert "\n" not in str(caught.value)


def test_files_that_are_not_keys_are_refused(home: Path) -> None:
    path = make_client_keys(home, "carl", "policy")
    for text in (b"", b"\xff\xfe", b"[]", b"{" * 5000, b" " * 10_000):
        path.write_bytes(text)
        with pytest.raises(ValueError, match="make new keys"):
            load_client_keys(path)
    path.unlink()
    with pytest.raises(ValueError, match="robot-rl robot keys"):
        load_client_keys(path)
    path.symlink_to(home / "server.json")
    with pytest.raises(ValueError, match="cannot be read"):
        load_client_keys(path)


def test_an_allow_list_says_who_is_who(home: Path) -> None:
    _client(home, "carl", "observer")
    entry = home / "allowed" / "carl.json"
    other = home / "allowed" / "eve.json"
    other.write_bytes(entry.read_bytes())
    other.chmod(0o600)
    with pytest.raises(ValueError, match="is about carl"):
        load_server_keys(home)
    other.write_text(json.dumps(json.loads(entry.read_text()) | {"name": "eve", "role": "operator"}))
    with pytest.raises(ValueError, match="same key as carl"):
        load_server_keys(home)
    other.unlink()
    entry.unlink()
    assert load_server_keys(home).allowed == {}


def test_no_secret_is_shown(home: Path) -> None:
    client = _client(home, "carl", "policy")
    server = load_server_keys(home)
    for keys in (client, server):
        assert keys.secret.decode() not in repr(keys)
        assert keys.public.decode() in repr(keys)


# ---- who may serve and join -------------------------------------------------------------------------


@pytest.mark.parametrize(
    "text", ["tcp://192.168.1.2:5550", "tcp://*:5550", "tcp://robot:5550", "tcp://[::]:5550"]
)
def test_a_network_needs_keys_unless_told_otherwise(serve: Make, join: Join, text: str) -> None:
    address = parse(text)
    for start in (serve, join):
        with pytest.raises(ValueError, match="robot-rl robot keys") as caught:
            start(address)
        assert "\n" not in str(caught.value)
    check_keys(address, None, insecure=True)
    check_keys(address, ServerKeys(b"", b"", {}), insecure=False)
    join(address, insecure=True)


def test_the_machine_itself_needs_none(serve: Make, join: Join, address: Address) -> None:
    assert address.is_loopback
    router = serve(address).bind("ctrl")
    send(join(address).request("ctrl"), b"hello")
    assert router.poll(PATIENCE * 1e3)


@pytest.mark.parametrize("role", ["observer", "policy", "operator"])
def test_a_key_brings_its_name_and_role(
    serve: Make, join: Join, address: Address, home: Path, role: Role
) -> None:
    _client(home, "other", "operator")
    keys = _client(home, "carl", role)
    server = serve(address, load_server_keys(home))
    for channel in ("ctrl", "cmd", "estop"):
        router = server.bind(channel)
        client = join(address, keys).request(channel)
        send(client, b"hello")
        incoming = eventually(lambda router=router: server.receive(router))
        assert incoming.caller == authenticator.AuthenticatedClient("carl", role)
        assert incoming.frame == b"hello"
        assert reply(router, incoming.route, b"welcome")
        assert receive(client) == b"welcome"
    assert server.rejected == []


def test_an_unknown_key_gets_neither_in_nor_anything_out(
    serve: Make, join: Join, address: Address, home: Path
) -> None:
    keys = _client(home, "carl", "policy")
    server_keys = load_server_keys(home)
    stranger_keys = _stranger(server_keys.public)
    server = serve(address, server_keys)
    router, publisher = server.bind("ctrl"), server.bind("state")
    strange = join(address, stranger_keys)
    asking, looking = strange.request("ctrl"), strange.state()
    known = join(address, keys)
    hearing = known.state()
    send(known.request("ctrl"), b"known")

    def published() -> bool:
        publisher.send(b"state")
        return newest(hearing) == b"state"

    eventually(published)
    refused = []
    # It was at the doors of both sockets.
    while len(refused) < 2:
        refused += eventually(lambda: server.rejected)
        publisher.send(b"state")
    assert {refusal.public for refusal in refused} == {stranger_keys.public.decode()}
    assert eventually(lambda: server.receive(router)).frame == b"known"
    assert not asking.poll(0, zmq.POLLOUT)
    with pytest.raises(zmq.Again):
        asking.send(b"let me in")
    assert server.receive(router) is None
    assert newest(looking) is None


def test_who_shows_no_key_at_all_is_refused(serve: Make, join: Join, address: Address, home: Path) -> None:
    keys = _client(home, "carl", "policy")
    server = serve(address, load_server_keys(home))
    router = server.bind("ctrl")
    plain, events = _connect_monitored(
        join(address), zmq.EVENT_DISCONNECTED | zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL
    )
    assert events.poll(PATIENCE * 1e3), "the handshake did not end"
    assert not plain.poll(0, zmq.POLLOUT)
    send(join(address, keys).request("ctrl"), b"known")
    assert eventually(lambda: server.receive(router)).frame == b"known"
    assert server.receive(router) is None
    plain.disable_monitor()


def test_a_client_does_not_speak_to_an_impostor(
    serve: Make, join: Join, address: Address, home: Path, tmp_path: Path
) -> None:
    """It knows the client's key and lets it in, but has not the server's secret."""
    keys = _client(home, "carl", "operator")
    real = load_server_keys(home)
    other = make_server_keys(tmp_path / "other")
    impostor = serve(address, ServerKeys(other.public, other.secret, real.allowed))
    router = impostor.bind("ctrl")
    client, events = _connect_monitored(join(address, keys), zmq.EVENT_ALL)
    failed = {zmq.EVENT_DISCONNECTED, zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL}
    seen: list[int] = []
    while zmq.EVENT_CONNECTED not in seen or not failed & set(seen[seen.index(zmq.EVENT_CONNECTED) :]):
        assert events.poll(PATIENCE * 1e3)
        seen.append(recv_monitor_message(events)["event"])
    assert zmq.EVENT_HANDSHAKE_SUCCEEDED not in seen
    assert not client.poll(0, zmq.POLLOUT)
    assert impostor.receive(router) is None
    client.disable_monitor()


def test_a_client_with_keys_does_not_speak_to_a_server_without(
    serve: Make, join: Join, address: Address, home: Path
) -> None:
    server = serve(address)
    router = server.bind("ctrl")
    failures = zmq.EVENT_DISCONNECTED | zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL
    client, events = _connect_monitored(join(address, _client(home, "carl", "policy")), failures)
    assert events.poll(PATIENCE * 1e3)
    assert not client.poll(0, zmq.POLLOUT)
    assert server.receive(router) is None
    client.disable_monitor()


def test_a_web_page_cannot_post_to_a_server_without_keys(serve: Make, join: Join, tcp: Address) -> None:
    """What a browser sends looks to ZMQ like a peer of its first version: a name, then messages."""
    router = serve(tcp).bind("cmd")
    head = b"POST / HTTP/1.1\r\nHost: robot\r\nContent-Type: text/plain\r\nContent-Length: 4000\r\n\r\n"
    length, host = head[0], tcp.endpoint("cmd").removeprefix("tcp://").split(":")
    # The page chooses the length of the head so that the name ends with it.
    post = head.replace(b"/ ", b"/" + b"x" * (length + 1 - len(head)) + b" ", 1)
    assert len(post) == 1 + length
    post += b"\x05\0stop" * 400

    def received(socket_: zmq.Socket, port: int) -> bool:
        with socket.create_connection((host[0], port)) as browser:
            browser.sendall(post)
            browser.settimeout(PATIENCE)
            while True:
                if socket_.poll(10):
                    return True
                try:
                    browser.settimeout(0.01)
                    if not browser.recv(1000):
                        return False
                except TimeoutError:
                    continue
                except ConnectionError:
                    return False

    with zmq.Context() as context, context.socket(zmq.ROUTER) as plain:
        port = plain.bind_to_random_port("tcp://127.0.0.1")
        assert received(plain, port), "this is no attack"
    assert not received(router, int(host[1]))
    send(join(tcp).request("cmd"), b"known")
    assert router.poll(PATIENCE * 1e3)
    assert router.recv_multipart()[1:] == [b"known"]


def test_who_was_removed_does_not_come_back(serve: Make, join: Join, ipc: Address, home: Path) -> None:
    keys = _client(home, "carl", "operator")
    (home / "allowed" / "carl.json").unlink()
    server = serve(ipc, load_server_keys(home))
    router = server.bind("ctrl")
    client = join(ipc, keys).request("ctrl")
    assert eventually(lambda: server.rejected)[0].public == keys.public.decode()
    assert not client.poll(0, zmq.POLLOUT)
    assert server.receive(router) is None


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
@pytest.mark.parametrize("how", ["closed", "broken"])
def test_without_an_authenticator_nobody_gets_in(
    serve: Make, join: Join, address: Address, home: Path, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    keys = _client(home, "carl", "operator")
    server = serve(address, load_server_keys(home))
    router = server.bind("ctrl")
    if how == "closed":
        server._authenticator.close()
    else:

        def fail(*_: object) -> None:
            raise RuntimeError("broken")

        monkeypatch.setattr(server._authenticator, "_reply", fail)
    failures = zmq.EVENT_DISCONNECTED | zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL
    client, events = _connect_monitored(join(address, keys), failures)
    assert events.poll(PATIENCE * 1e3), "the handshake did not end"
    assert not client.poll(0, zmq.POLLOUT)
    assert server.receive(router) is None
    client.disable_monitor()


def test_without_keys_an_authenticator_lets_in_who_has_none(context: zmq.Context) -> None:
    zap = authenticator.ZapAuthenticator(context, None)
    try:
        assert zap._reply([b"1.0", b"7", authenticator.DOMAIN, b"", b"", b"NULL"])[2:5] == [
            b"200",
            b"OK",
            b"",
        ]
        assert zap._reply([b"1.0", b"7", b"other", b"", b"", b"NULL"])[2] == b"400"
        assert zap._reply([b"1.0", b"7", authenticator.DOMAIN, b"", b"", b"CURVE", bytes(32)])[2] == b"400"
    finally:
        zap.close()


def test_an_authenticator_serves_its_own_domain_and_curve_alone(context: zmq.Context, home: Path) -> None:
    keys = _client(home, "carl", "operator")
    zap = authenticator.ZapAuthenticator(context, load_server_keys(home))
    try:
        raw = z85.decode(keys.public)
        request = [b"1.0", b"7", authenticator.DOMAIN, b"10.0.0.9", b"", b"CURVE", raw]
        assert zap._reply(request)[:3] == [b"1.0", b"7", b"200"]
        assert zap._reply(request)[4] == b"operator:carl"
        for place, value in ((2, b""), (2, b"global"), (5, b"NULL"), (5, b"PLAIN"), (6, bytes(32))):
            answer = zap._reply([*request[:place], value, *request[place + 1 :]])
            assert answer[2] == b"400"
            assert answer[4] == b""
        assert [refusal.address for refusal in zap.rejected] == ["10.0.0.9"] * 5
    finally:
        zap.close()
