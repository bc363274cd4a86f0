"""Write a run's report: one self-contained HTML page with curves, the side-by-side table and videos."""

from dataclasses import dataclass
from pathlib import Path

from robot_rl.errors import UserError, mistakes
from robot_rl.evaluation.videos import write_videos
from robot_rl.report import write_report
from robot_rl.runs import check_is_run


@dataclass
class Config:
    run: str = "???"
    """Directory of an evaluated run."""
    videos: bool = True
    """Render the two videos if they do not exist."""


def run(config: Config) -> None:
    directory = Path(config.run)
    with mistakes():
        check_is_run(directory)
        if not (directory / "eval" / "episodes.csv").is_file():
            raise UserError(f"{directory} is not evaluated: run `robot-rl eval policy={directory}` first")
        if config.videos and not (directory / "videos" / "base.mp4").is_file():
            write_videos(directory)
        page = write_report(directory)
    print(f"report: {page}")
