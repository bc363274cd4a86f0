"""Identity of a client."""

from dataclasses import dataclass

from robot_rl.hardware.protocol.messages import Role


@dataclass(frozen=True)
class Peer:
    """A client as known from its key and its `Hello`."""

    name: str
    role: Role
    src: str
    """Id of the client's process, as the client reports it."""
    key: str = ""
    """Name of the key that authenticated it, "" if the server has no keys."""

    @property
    def identity(self) -> tuple[str, str]:
        """Key and process. A lease is bound to both, so another client's `src` alone gives no rights."""
        return self.key, self.src
