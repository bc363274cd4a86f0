"""Whether a robot's server is there and lets this client in; and if not, which likely cause."""

import errno
import socket
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path

import zmq
from zmq.utils.monitor import recv_monitor_message

from robot_rl.hardware.clock import MS, MonotonicClock
from robot_rl.hardware.connection import Connection, NoAnswer, RequestRefused
from robot_rl.hardware.protocol.endpoints import Address
from robot_rl.hardware.protocol.gate import closed_path
from robot_rl.hardware.protocol.messages import PROTOCOL, Code, Role
from robot_rl.hardware.protocol.security import ClientKeys
from robot_rl.hardware.protocol.sockets import ClientSockets
from robot_rl.robot.checks.installation import Check

TIMEOUT = 2.0
"""Longest time for an answer, s."""
_HANDSHAKE = 3.0
"""How long is listened to what ZMQ says of its attempts, s."""
_NAME = "doctor"


@dataclass(frozen=True)
class ServerTarget:
    """A server, and what this client is to it."""

    address: Address
    keys: ClientKeys | None = None
    insecure: bool = False
    role: Role = "observer"


class _Unreachable(Exception):
    def __init__(self, check: Check) -> None:
        super().__init__(check.detail)
        self.check = check


def connect(target: ServerTarget) -> tuple[list[Check], Connection | None]:
    """What a first contact shows, and the connection, the caller's to close; None where there is none.

    Raises:
        ValueError: a network without keys, or others may enter the directory.
    """
    refused = None
    try:
        _check_directory(target.address)
        line = _greeted(target, target.role)
    except NoAnswer:
        return [_knock(target.address) or _handshake(target)], None
    except _Unreachable as unreachable:
        return [unreachable.check], None
    except RequestRefused as refusal:
        if refusal.code is Code.VERSION:
            fix = "install the same version of robot-rl here and at the robot"
            return [Check("protocol", False, refusal.reason, fix)], None
        if refusal.code is not Code.ROLE:
            raise
        line, refused = _greeted(target, "observer"), refusal.reason
    welcome = line.welcome
    theirs, ours = (f"{major}.{minor}" for major, minor in (welcome.protocol, PROTOCOL))
    fix = f"at the robot: robot-rl robot keys name=… role={target.role}; then start its server anew"
    return [
        Check("server", True, f"{welcome.spec.name} at {target.address}, session {welcome.session[:8]}"),
        Check("protocol", True, f"{theirs}, here {ours}"),
        Check("role", refused is None, refused or welcome.role, fix),
    ], line


def _greeted(target: ServerTarget, role: Role) -> Connection:
    line = Connection(target.address, target.keys, target.insecure, TIMEOUT, MonotonicClock())
    try:
        line.handshake(_NAME, role)
    except BaseException:
        line.close()
        raise
    return line


def _check_directory(address: Address) -> None:
    """Before anything is made there by asking."""
    if address.directory is None:
        return
    start = f"start it: robot-rl robot driver=… address={address}"
    try:
        there = _socket_file(address.directory).exists()
    except PermissionError:
        fix = "run as the user of the server, or let it serve tcp://… with keys"
        raise _Unreachable(_no_server(f"{address.directory} is another user's", fix)) from None
    if not there:
        raise _Unreachable(_no_server(f"nobody serves at {address}", start))


def _knock(address: Address) -> Check | None:
    """None where something takes connections."""
    start = f"start it: robot-rl robot driver=… address={address}"
    try:
        if address.directory is not None:
            with socket.socket(socket.AF_UNIX) as knock:
                knock.settimeout(TIMEOUT)
                file = _socket_file(address.directory)
                knock.connect(str(file))
                if file == closed_path(address.directory / "ctrl"):
                    return _no_server(
                        f"the server at {address} has as many connections as it takes",
                        "end clients that nobody needs, and see its events",
                    )
        else:
            socket.create_connection((address.host.strip("[]"), address.port), TIMEOUT).close()
    except ConnectionRefusedError:
        left = "its server was killed" if address.directory else "the machine is there, and nobody serves"
        return _no_server(f"nobody listens at {address}: {left}", start)
    except socket.gaierror as error:
        return _no_server(f"no machine is named {address.host} ({error.strerror})", "see the address")
    except OSError as error:
        if isinstance(error, BlockingIOError) or error.errno == errno.EAGAIN:
            # A queue of connections that nobody takes.
            return None
        reason = error.strerror or "no answer in time"
        fix = f"see cable, address and firewall: ping {address.host}"
        return _no_server(f"{address.host} cannot be reached ({reason.lower()})", fix)
    return None


def _socket_file(directory: Path) -> Path:
    """Of the channel that is greeted on, also where the server takes no new connections."""
    file = directory / "ctrl"
    return closed_path(file) if closed_path(file).exists() else file


def _handshake(target: ServerTarget) -> Check:
    happened = _events(target)
    if zmq.Event.HANDSHAKE_SUCCEEDED in happened:
        return _no_server(
            "it is connected and does not answer: its control thread hangs",
            "press the arm's own stop, see the server's output, end it and start it anew",
        )
    if zmq.Event.HANDSHAKE_FAILED_AUTH in happened:
        fix = "robot-rl robot keys name=… on the server's machine; then start the server anew"
        return _no_server("the server does not know this client's key", fix)
    other = zmq.Event.HANDSHAKE_FAILED_PROTOCOL in happened
    hung_up = happened.get(zmq.Event.HANDSHAKE_FAILED_NO_DETAIL, errno.EAGAIN) != errno.EAGAIN
    if target.keys is None and (other or hung_up):
        fix = "keys=<file>, which `robot-rl robot keys` has made on the server's machine"
        return _no_server("the server wants keys, or is no robot's", fix)
    if other or hung_up:
        # Who hangs up first is chance, and so is what the other side is told: ask without keys.
        without = replace(target, keys=None, insecure=True)
        if zmq.Event.HANDSHAKE_SUCCEEDED in _events(without):
            return _no_server("the server has no keys", "leave keys away")
        fix = "take the file that `robot-rl robot keys` has made beside this server's own keys"
        return _no_server("the keys are another server's", fix)
    return _no_server(
        "something listens there and says nothing: a server that is suspended, or another program",
        "press the arm's own stop; kill -CONT the server, or end it and start it anew",
    )


def _events(target: ServerTarget) -> dict[int, int]:
    """What ZMQ says of a new connection, until it is decided."""
    happened: dict[int, int] = {}
    poll = zmq.Poller()
    with zmq.Context() as context:
        sockets = ClientSockets(context, target.address, target.keys, insecure=target.insecure)
        with closing(sockets.request("ctrl")) as request:
            monitor = request.get_monitor_socket()
            poll.register(monitor, zmq.POLLIN)
            # From its beginning on.
            sockets.reconnect(request)
            deadline = MonotonicClock().now() + round(_HANDSHAKE * 1e9)
            while (left := deadline - MonotonicClock().now()) > 0 and not happened.keys() & _DECISIVE:
                if poll.poll(-(-left // MS)):
                    event = recv_monitor_message(monitor)
                    happened[event["event"]] = event["value"]
            request.disable_monitor()
    return happened


_DECISIVE = {
    zmq.Event.HANDSHAKE_SUCCEEDED,
    zmq.Event.HANDSHAKE_FAILED_AUTH,
    zmq.Event.HANDSHAKE_FAILED_PROTOCOL,
}


def _no_server(detail: str, fix: str) -> Check:
    return Check("server", False, detail, fix)
