"""Measure the cost of recording: three 640×480 cameras at 30 Hz, states at 500 Hz, and a commander.

The lateness of the control loop is measured with and without the recorder in the same run. Other load on the
machine changes the figures.
"""

import json
import tempfile
from dataclasses import dataclass
from pathlib import Path

from robot_rl.bench.record import measure_record
from robot_rl.errors import UserError
from robot_rl.hardware.connection import RobotError
from robot_rl.hardware.recording.recorder import RecorderError
from robot_rl.machine import describe_machine


@dataclass
class Config:
    seconds: float = 60.0
    """Duration of recording in s; the command takes twice as long."""
    encoding: str = "jpeg"
    """Encoding of the images: `jpeg`, or `raw` with 83 MB per second."""
    disk: str | None = None
    """Folder on the disk to record to; null for the system's temporary folder. Recordings are removed."""
    json: bool = False
    """End with one line of JSON."""

    def __post_init__(self) -> None:
        if self.encoding not in ("jpeg", "raw"):
            raise ValueError(f"encoding={self.encoding}: choose jpeg or raw")


def run(config: Config) -> None:
    if config.disk is not None and not Path(config.disk).is_dir():
        raise UserError(f"disk={config.disk}: there is no such folder")
    with tempfile.TemporaryDirectory() as folder, tempfile.TemporaryDirectory(dir=config.disk) as disk:
        try:
            figures = measure_record(config.seconds, Path(folder), Path(disk), config.encoding)
        except (RobotError, RecorderError) as error:
            raise UserError(f"bench record: {error}") from error
    machine = describe_machine()
    print(f"{machine['cpu']}, {machine['cores']} cores; images as {config.encoding}\n")
    for name, value in figures.plain().items():
        if isinstance(value, dict):
            value = ", ".join(f"{number} {stream}" for stream, number in value.items())
        print(f"{name:<34}{value if isinstance(value, str) else f'{value:.4g}'}")
    if config.json:
        print(json.dumps(figures.plain()), flush=True)
