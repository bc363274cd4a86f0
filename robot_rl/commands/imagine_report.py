"""Write a page about a run's world model: errors, uncertainty, gate, and videos of what it imagines."""

from dataclasses import dataclass
from pathlib import Path

from robot_rl.errors import as_user_errors
from robot_rl.report.imagination_page import write_imagination_report


@dataclass
class Config:
    run: str = "???"
    """Directory of a run with imagination."""
    videos: bool = True
    """Whether to draw a real and an imagined episode side by side, where the task's state allows it."""


def run(config: Config) -> None:
    with as_user_errors():
        page = write_imagination_report(Path(config.run), videos=config.videos)
    print(f"report: {page}")
