"""Make the key of a robot's client, and the server's key if it does not exist."""

from dataclasses import dataclass
from pathlib import Path

from omegaconf import MISSING

from robot_rl.errors import as_user_errors
from robot_rl.hardware.protocol.security import make_client_keys


@dataclass
class Config:
    name: str = MISSING
    """Name of the client: letters, digits, - and _."""
    role: str = "policy"
    """`observer` may observe and stop, `policy` also command, `operator` also preempt and clear faults."""
    keys: str = "keys"
    """Directory of the server's keys."""


def run(config: Config) -> None:
    with as_user_errors():
        path = make_client_keys(Path(config.keys), config.name, config.role)  # type: ignore[arg-type]
    print(f"{path}: move it to the client's machine; a running server accepts it after a restart")
