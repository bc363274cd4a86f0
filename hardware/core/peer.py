"""Identity of a client."""

from dataclasses import dataclass

from robot_rl.hardware.protocol.messages import Role


@dataclass(frozen=True)
class Peer:
    """A client, as the server knows it from its key and its greeting."""

    name: str
    role: Role
    src: str
    """The sending process. It is what the client says of itself."""
    key: str = ""
    """Name of the key that vouches for it, "" where the server has no keys."""

    @property
    def identity(self) -> tuple[str, str]:
        """Key and process. A lease belongs to both: knowing another client's `src` gives no right."""
        return self.key, self.src
