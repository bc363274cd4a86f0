"""Server addresses: seven socket endpoints derived from one address, and the exclusive claim on it."""

import fcntl
import ipaddress
import os
import re
import stat
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal, get_args

Channel = Literal["ctrl", "cmd", "state", "image", "event", "estop", "command"]
CHANNELS: Final[tuple[Channel, ...]] = get_args(Channel)

_MAX_PATH = 107
"""Maximum length of a Unix socket's path on Linux, bytes."""
_MAX_PORT = 65535
_HELP = "write ipc:///run/user/1000/robot, or tcp://192.168.1.2:5550 (seven ports from 5550)"


@dataclass(frozen=True)
class Address:
    """Address of a server: `ipc:///directory` or `tcp://host:port`."""

    directory: Path | None = None
    host: str = ""
    port: int = 0

    def __str__(self) -> str:
        if self.directory is not None:
            return f"ipc://{self.directory}"
        return f"tcp://{self.host}:{self.port}"

    def endpoint(self, channel: Channel) -> str:
        """ZMQ endpoint of a channel."""
        if self.directory is not None:
            return f"ipc://{self.directory / channel}"
        return f"tcp://{self.host}:{self.port + CHANNELS.index(channel)}"

    @property
    def is_loopback(self) -> bool:
        """Whether no other machine can reach it. Host names are not trusted to be loopback."""
        if self.directory is not None:
            return True
        try:
            return ipaddress.ip_address(self.host.strip("[]")).is_loopback
        except ValueError:
            return False

    @property
    def is_ipv6(self) -> bool:
        return self.host.startswith("[")


def default_address() -> str:
    """Default address of a robot used only from this machine."""
    runtime = os.environ.get("XDG_RUNTIME_DIR", "")
    return f"ipc://{runtime}/robot" if runtime else f"ipc:///tmp/robot-{os.getuid()}"


def parse(text: str) -> Address:
    """Parse an address given by the user.

    Raises:
        ValueError: if it is invalid; the message gives examples.
    """
    if text.startswith("ipc://"):
        return _parse_ipc(text)
    match = re.fullmatch(r"tcp://(?P<host>\[[0-9a-fA-F:.]+\]|[^\s:/\[\]]+):(?P<port>[0-9]{1,5})", text)
    if not match:
        raise ValueError(f"{text!r} is not a robot's address; {_HELP}")
    port, last = int(match["port"]), int(match["port"]) + len(CHANNELS) - 1
    first = _MAX_PORT - len(CHANNELS) + 1
    if port == 0 or last > _MAX_PORT:
        raise ValueError(f"{text} needs the ports {port} to {last}; choose from 1 to {first}")
    # ZMQ cannot bind to host names; localhost is this machine, independent of the resolver.
    host = "127.0.0.1" if match["host"] == "localhost" else match["host"]
    return Address(host=host, port=port)


def _parse_ipc(text: str) -> Address:
    directory = Path(text.removeprefix("ipc://"))
    if not directory.is_absolute() or directory == Path("/"):
        raise ValueError(f"{text!r} does not name an absolute directory; {_HELP}")
    longest = max(len(os.fsencode(directory / channel)) for channel in CHANNELS)
    if longest > _MAX_PATH:
        raise ValueError(
            f"{text} is too long for a socket by {longest - _MAX_PATH} bytes; choose a shorter path"
        )
    return Address(directory=directory)


def make_private(directory: Path) -> None:
    """Create a directory that only this user can access, or check an existing one.

    Raises:
        ValueError: if it is not private; the message says what to do.
    """
    try:
        directory.mkdir(mode=0o700)
    except FileExistsError:
        pass
    except FileNotFoundError:
        raise ValueError(f"{directory.parent} does not exist; make it, or choose another directory") from None
    found = directory.lstat()
    if not stat.S_ISDIR(found.st_mode):
        raise ValueError(f"{directory} is not a directory; choose another one")
    if found.st_uid != os.geteuid():
        raise ValueError(f"{directory} belongs to another user; choose one that is yours")
    if stat.S_IMODE(found.st_mode) & 0o077:
        raise ValueError(f"others may enter {directory}; run: chmod 700 {directory}")


class Claim:
    """Exclusive lock on an address, until `close`.

    ZMQ silently takes over the socket files of a running server, so two servers could drive one arm.
    """

    def __init__(self, address: Address) -> None:
        """Create and lock the directory of an ipc address; a tcp port is claimed by binding.

        Raises:
            ValueError: if another server has it, or other users can access the directory.
        """
        self.address = address
        self._lock: int | None = None
        if address.directory is None:
            return
        make_private(address.directory)
        lock = os.open(
            address.directory / "lock", os.O_CREAT | os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600
        )
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(lock)
            raise ValueError(f"another server is at {address}; stop it or choose another address") from None
        self._lock = lock

    def close(self) -> None:
        """Release the lock. Safe to call twice."""
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None
