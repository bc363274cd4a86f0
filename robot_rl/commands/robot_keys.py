"""Make the key of a robot's client, and the server's own where there is none yet."""

from dataclasses import dataclass
from pathlib import Path

from omegaconf import MISSING

from robot_rl.errors import mistakes
from robot_rl.hardware.protocol.security import make_client_keys


@dataclass
class Config:
    name: str = MISSING
    """Of the client: letters, digits, - and _."""
    role: str = "policy"
    """`observer` looks and stops, `policy` also commands, `operator` also pre-empts and clears faults."""
    keys: str = "keys"
    """Directory of the server's keys."""


def run(config: Config) -> None:
    with mistakes():
        path = make_client_keys(Path(config.keys), config.name, config.role)  # type: ignore[arg-type]
    print(f"{path}: move it to the client's machine; a running server knows it after its next start")
