"""Connections to a server that nobody closes: `python flood.py ADDRESS KIND COUNT [CHANNEL]`.

KIND is `raw` (connections that say nothing) or `clients` (sockets of clients, which never greet). Prints
`flooding` when it has tried COUNT of them, and keeps what it got until it is killed.
"""

import resource
import socket
import sys
import threading

import zmq

from robot_rl.hardware.protocol.endpoints import CHANNELS, Address, parse
from robot_rl.hardware.protocol.sockets import ClientSockets


def connect(address: Address, number: int) -> socket.socket | None:
    """None where it is refused."""
    channel = CHANNELS[number % len(CHANNELS)]
    try:
        if address.directory is None:
            return socket.create_connection((address.host, address.port + CHANNELS.index(channel)), 0.2)
        raw = socket.socket(socket.AF_UNIX)
        raw.connect(str(address.directory / channel))
    except OSError:
        return None
    return raw


def main() -> None:
    address, kind, count = parse(sys.argv[1]), sys.argv[2], int(sys.argv[3])
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    if kind == "raw":
        held = [connect(address, number) for number in range(count)]
        got = sum(connection is not None for connection in held)
    else:
        context = zmq.Context()
        sockets = ClientSockets(context, address)
        clients = [(sockets.request("ctrl"), sockets.request("estop"), sockets.state()) for _ in range(count)]
        got = len(clients)
    print(f"flooding: {got} of {count}", flush=True)
    threading.Event().wait()


if __name__ == "__main__":
    main()
