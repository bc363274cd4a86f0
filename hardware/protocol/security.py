"""CURVE keys of the server and its clients, stored as files, with the role of each client.

    keys/server.json           the server's key pair; never leaves its machine
    keys/allowed/<name>.json   public key and role of each client: the allow-list
    keys/clients/<name>.json   keys for client <name>; move it to the client's machine

All files are 0600 in directories 0700; a file that others can read is refused.
"""

import os
import stat
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Final, TypeVar, get_args

import msgspec
import zmq

from robot_rl.files.durable import sync
from robot_rl.hardware.protocol.endpoints import Address, make_private
from robot_rl.hardware.protocol.messages import Role

Key = Annotated[str, msgspec.Meta(pattern=r"^[0-9a-zA-Z.\-:+=^!/*?&<>()\[\]{}@%$#]{40}\Z")]
ClientName = Annotated[str, msgspec.Meta(pattern=r"^[A-Za-z0-9_-]{1,64}\Z")]

_RANK: Final[Mapping[Role, int]] = {role: rank for rank, role in enumerate(get_args(Role))}
_MAX_FILE = 4096


class Allowed(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A client in the allow-list."""

    name: ClientName
    role: Role
    public: Key


class _ServerFile(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    public: Key
    secret: Key


class _ClientFile(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    name: ClientName
    role: Role
    public: Key
    secret: Key
    server: Key


@dataclass(frozen=True)
class ServerKeys:
    """The server's key pair and its allow-list."""

    public: bytes
    secret: bytes = field(repr=False)
    allowed: Mapping[bytes, Allowed]
    """Clients by public key (Z85)."""


@dataclass(frozen=True)
class ClientKeys:
    """A client's key pair and the server's public key."""

    public: bytes
    secret: bytes = field(repr=False)
    server: bytes
    role: Role
    """The highest role that the key allows."""


def may(has: Role, wants: Role) -> bool:
    """Whether a key with role `has` may act as `wants`: an operator may act as any role."""
    return _RANK[has] >= _RANK[wants]


def check_keys(address: Address, keys: ServerKeys | ClientKeys | None, insecure: bool) -> None:
    """Check that a server on a network has keys, unless `insecure`.

    Raises:
        ValueError: if other machines can reach the address and there are no keys.
    """
    if keys is None and not address.is_loopback and not insecure:
        raise ValueError(
            f"{address} can be reached by other machines and there are no keys: make some with "
            "`robot-rl robot keys`, use an ipc:// or 127.0.0.1 address, or set insecure=true"
        )


def make_server_keys(directory: Path) -> ServerKeys:
    """Load the server's key pair from `directory`, or create it.

    Raises:
        ValueError: if existing files cannot be used.
    """
    make_private(directory)
    if not (directory / "server.json").exists():
        public, secret = zmq.curve_keypair()
        _write(directory / "server.json", _ServerFile(public=public.decode(), secret=secret.decode()))
    return load_server_keys(directory)


def make_client_keys(directory: Path, name: str, role: Role) -> Path:
    """Create a key pair for a new client and add it to the server's allow-list.

    A running server has to be restarted to know it.

    Returns:
        The file for the client's machine.

    Raises:
        ValueError: if the name is taken or invalid, or there is no such role.
    """
    server = make_server_keys(directory)
    public, secret = zmq.curve_keypair()
    entry = {"name": name, "role": role, "public": public.decode()}
    try:
        allowed = msgspec.convert(entry, Allowed)
        client = msgspec.convert(
            entry | {"secret": secret.decode(), "server": server.public.decode()}, _ClientFile
        )
    except msgspec.ValidationError as error:
        raise ValueError(
            f"name={name!r} role={role!r}: {error}; names are letters, digits, - and _, "
            f"roles are {', '.join(_RANK)}"
        ) from None
    for part in ("allowed", "clients"):
        make_private(directory / part)
        if (directory / part / f"{name}.json").exists():
            raise ValueError(f"{directory / part / name}.json exists; remove it or choose another name")
    path = directory / "clients" / f"{name}.json"
    _write(path, client)
    _write(directory / "allowed" / f"{name}.json", allowed)
    return path


def list_clients(directory: Path) -> tuple[Allowed, ...]:
    """The allow-list, sorted by name. Deleting a client's file in `allowed/` removes the client.

    Raises:
        ValueError: if a file is not private, cannot be read or repeats a key.
    """
    folder = directory / "allowed"
    if not folder.is_dir():
        return ()
    make_private(folder)
    clients: dict[str, Allowed] = {}
    for path in sorted(folder.iterdir()):
        client = _read(path, Allowed)
        if path.name != f"{client.name}.json":
            raise ValueError(f"{path} is about {client.name}; rename or remove it")
        if client.public in clients:
            raise ValueError(f"{path} has the same key as {clients[client.public].name}; remove one of them")
        clients[client.public] = client
    return tuple(clients.values())


def load_server_keys(directory: Path) -> ServerKeys:
    """The server's pair and allow-list.

    Raises:
        ValueError: they are missing, others can read them, or they are damaged.
    """
    pair = _read(directory / "server.json", _ServerFile)
    _check_pair(directory / "server.json", pair.public, pair.secret)
    allowed = {client.public.encode(): client for client in list_clients(directory)}
    return ServerKeys(pair.public.encode(), pair.secret.encode(), allowed)


def load_own_keys(file: str | None) -> ClientKeys | None:
    """The keys that an option `keys=…` names, None without one; errors as in `load_client_keys`."""
    return load_client_keys(Path(file)) if file else None


def load_client_keys(path: Path) -> ClientKeys:
    """Load a file written by `make_client_keys`.

    Raises:
        ValueError: if it is missing, damaged or readable by others.
    """
    pair = _read(path, _ClientFile)
    _check_pair(path, pair.public, pair.secret)
    return ClientKeys(pair.public.encode(), pair.secret.encode(), pair.server.encode(), pair.role)


File = TypeVar("File", bound=msgspec.Struct)


def _write(path: Path, content: msgspec.Struct) -> None:
    """Write a new file that has mode 0600 from the start."""
    text = msgspec.json.format(msgspec.json.encode(content), indent=2) + b"\n"
    with os.fdopen(os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_NOFOLLOW, 0o600), "wb") as file:
        file.write(text)
    sync(path)
    sync(path.parent)


def _read(path: Path, kind: type[File]) -> File:
    try:
        file = os.fdopen(os.open(path, os.O_RDONLY | os.O_NOFOLLOW), "rb")
    except OSError as error:
        raise ValueError(
            f"{path} cannot be read ({error.strerror}); make keys with `robot-rl robot keys`"
        ) from None
    with file:
        mode = os.fstat(file.fileno())
        if (
            not stat.S_ISREG(mode.st_mode)
            or mode.st_uid != os.geteuid()
            or stat.S_IMODE(mode.st_mode) & 0o077
        ):
            raise ValueError(f"{path} must be your own file and readable only by you; run: chmod 600 {path}")
        text = file.read(_MAX_FILE + 1)
    try:
        return msgspec.json.decode(text, type=kind)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise ValueError(f"{path} is not a key file ({error}); make new keys") from None


def _check_pair(path: Path, public: str, secret: str) -> None:
    if zmq.curve_public(secret.encode()) != public.encode():
        raise ValueError(f"{path}: the public key does not match the secret one; make new keys")
