"""Recover the episodes of killed recorders, up to the last whole record.

They are labelled `recovered`. Nothing is removed.
"""

import sys
from dataclasses import dataclass
from pathlib import Path

from omegaconf import MISSING

from robot_rl.errors import as_user_errors
from robot_rl.hardware.recording.raw import RawDataset, RawWriter


@dataclass
class Config:
    raw: str = MISSING
    """Folder of the recordings."""


def run(config: Config) -> None:
    with as_user_errors():
        raw = RawDataset(Path(config.raw))
        with RawWriter(Path(config.raw)) as writer:
            repaired, left = writer.repair()
    for number, episode in repaired.items():
        footer = episode.footer
        assert footer is not None
        seconds = (footer.t - episode.header.t) / 1e9
        torn = episode.torn()
        print(
            f"episode {number}: {footer.outcome}, {seconds:.1f} s"
            + (f", {torn} bytes of incomplete records" if torn else "")
        )
    for folder, reason in left.items():
        print(f"{folder} cannot be repaired and is left as it is: {reason}", file=sys.stderr)
    for folder in raw.headless:
        print(f"{folder} has no complete header and is left as it is")
    print(f"{config.raw}: {len(repaired)} repaired")
