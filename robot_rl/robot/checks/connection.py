"""Checks the connection to a robot's server and diagnoses why it fails."""

import errno
import socket
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path

import zmq
from zmq.utils.monitor import recv_monitor_message

from robot_rl.hardware.clock import MS, MonotonicClock
from robot_rl.hardware.connection import Connection, NoAnswer, RequestRefused
from robot_rl.hardware.protocol.endpoint_gate import closed_path
from robot_rl.hardware.protocol.endpoints import Address
from robot_rl.hardware.protocol.messages import PROTOCOL, Code, Role
from robot_rl.hardware.protocol.security import ClientKeys
from robot_rl.hardware.protocol.sockets import ClientSockets
from robot_rl.robot.checks.installation import Check

TIMEOUT = 2.0
"""Timeout of an answer, s."""
_HANDSHAKE = 3.0
"""How long ZMQ's connection events are observed, s."""
_NAME = "doctor"


@dataclass(frozen=True)
class ServerTarget:
    """Address of a server, and the keys and role of this client."""

    address: Address
    keys: ClientKeys | None = None
    insecure: bool = False
    role: Role = "observer"


class _Unreachable(Exception):
    def __init__(self, check: Check) -> None:
        super().__init__(check.detail)
        self.check = check


def connect(target: ServerTarget) -> tuple[list[Check], Connection | None]:
    """Connect to a server. Returns the checks, and the connection (the caller closes it) or None.

    Raises:
        ValueError: if a network is used without keys, or other users can access the socket's directory.
    """
    refused = None
    try:
        _check_directory(target.address)
        line = _connect_as(target, target.role)
    except NoAnswer:
        return [_test_address(target.address) or _handshake(target)], None
    except _Unreachable as unreachable:
        return [unreachable.check], None
    except RequestRefused as refusal:
        if refusal.code is Code.VERSION:
            fix = "install the same version of robot-rl here and at the robot"
            return [Check("protocol", False, refusal.reason, fix)], None
        if refusal.code is not Code.ROLE:
            raise
        line, refused = _connect_as(target, "observer"), refusal.reason
    welcome = line.welcome
    theirs, ours = (f"{major}.{minor}" for major, minor in (welcome.protocol, PROTOCOL))
    fix = f"at the robot: robot-rl robot keys name=… role={target.role}; then restart its server"
    return [
        Check("server", True, f"{welcome.spec.name} at {target.address}, session {welcome.session[:8]}"),
        Check("protocol", True, f"{theirs}, here {ours}"),
        Check("role", refused is None, refused or welcome.role, fix),
    ], line


def _connect_as(target: ServerTarget, role: Role) -> Connection:
    line = Connection(target.address, target.keys, target.insecure, TIMEOUT, MonotonicClock())
    try:
        line.handshake(_NAME, role)
    except BaseException:
        line.close()
        raise
    return line


def _check_directory(address: Address) -> None:
    """Check the socket's directory before connecting, which would create it."""
    if address.directory is None:
        return
    start = f"start it: robot-rl robot driver=… address={address}"
    try:
        there = _socket_file(address.directory).exists()
    except PermissionError:
        fix = "run as the server's user, or serve tcp://… with keys"
        raise _Unreachable(_no_server(f"{address.directory} belongs to another user", fix)) from None
    if not there:
        raise _Unreachable(_no_server(f"no server at {address}", start))


def _test_address(address: Address) -> Check | None:
    """Test the address with a plain socket. None if it accepts connections."""
    start = f"start it: robot-rl robot driver=… address={address}"
    try:
        if address.directory is not None:
            with socket.socket(socket.AF_UNIX) as probe:
                probe.settimeout(TIMEOUT)
                file = _socket_file(address.directory)
                probe.connect(str(file))
                if file == closed_path(address.directory / "ctrl"):
                    return _no_server(
                        f"the server at {address} has reached its connection limit",
                        "close unneeded clients, and check its events",
                    )
        else:
            socket.create_connection((address.host.strip("[]"), address.port), TIMEOUT).close()
    except ConnectionRefusedError:
        left = "its server was killed" if address.directory else "the machine is up, but no server runs"
        return _no_server(f"nothing listens at {address}: {left}", start)
    except socket.gaierror as error:
        return _no_server(f"no machine is named {address.host} ({error.strerror})", "check the address")
    except OSError as error:
        if isinstance(error, BlockingIOError) or error.errno == errno.EAGAIN:
            # The accept queue is full: the server does not accept connections.
            return None
        reason = error.strerror or "no answer in time"
        fix = f"check cable, address and firewall: ping {address.host}"
        return _no_server(f"{address.host} cannot be reached ({reason.lower()})", fix)
    return None


def _socket_file(directory: Path) -> Path:
    """Socket file of the control channel, also while the server refuses new connections."""
    file = directory / "ctrl"
    return closed_path(file) if closed_path(file).exists() else file


def _handshake(target: ServerTarget) -> Check:
    events = _events(target)
    if zmq.Event.HANDSHAKE_SUCCEEDED in events:
        return _no_server(
            "it is connected but does not answer: its control thread hangs",
            "press the arm's own stop, check the server's output and restart it",
        )
    if zmq.Event.HANDSHAKE_FAILED_AUTH in events:
        fix = "robot-rl robot keys name=… on the server's machine; then restart the server"
        return _no_server("the server does not know this client's key", fix)
    other = zmq.Event.HANDSHAKE_FAILED_PROTOCOL in events
    hung_up = events.get(zmq.Event.HANDSHAKE_FAILED_NO_DETAIL, errno.EAGAIN) != errno.EAGAIN
    if target.keys is None and (other or hung_up):
        fix = "keys=<file>, made by `robot-rl robot keys` on the server's machine"
        return _no_server("the server requires keys, or is not a robot's server", fix)
    if other or hung_up:
        # Which side closes first is random, and so is the reported event: try without keys.
        without = replace(target, keys=None, insecure=True)
        if zmq.Event.HANDSHAKE_SUCCEEDED in _events(without):
            return _no_server("the server has no keys", "omit keys")
        fix = "use the file that `robot-rl robot keys` made next to this server's own keys"
        return _no_server("the keys belong to another server", fix)
    return _no_server(
        "something listens there but does not answer: a suspended server, or another program",
        "press the arm's own stop; kill -CONT the server, or restart it",
    )


def _events(target: ServerTarget) -> dict[int, int]:
    """ZMQ's events of a new connection attempt, until its outcome is known."""
    events: dict[int, int] = {}
    poll = zmq.Poller()
    with zmq.Context() as context:
        sockets = ClientSockets(context, target.address, target.keys, insecure=target.insecure)
        with closing(sockets.request("ctrl")) as request:
            monitor = request.get_monitor_socket()
            poll.register(monitor, zmq.POLLIN)
            # Reconnect, so that all events are observed.
            sockets.reconnect(request)
            deadline = MonotonicClock().now() + round(_HANDSHAKE * 1e9)
            while (left := deadline - MonotonicClock().now()) > 0 and not events.keys() & _FINAL_EVENTS:
                if poll.poll(-(-left // MS)):
                    event = recv_monitor_message(monitor)
                    events[event["event"]] = event["value"]
            request.disable_monitor()
    return events


_FINAL_EVENTS = {
    zmq.Event.HANDSHAKE_SUCCEEDED,
    zmq.Event.HANDSHAKE_FAILED_AUTH,
    zmq.Event.HANDSHAKE_FAILED_PROTOCOL,
}


def _no_server(detail: str, fix: str) -> Check:
    return Check("server", False, detail, fix)
