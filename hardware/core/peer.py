"""Who asks."""

from dataclasses import dataclass

from hardware.protocol.messages import Role


@dataclass(frozen=True)
class Peer:
    """A client, as the server knows it from its key and its greeting."""

    name: str
    role: Role
    src: str
    """The sending process: a lease belongs to one."""
