"""Write a run's report: one self-contained HTML page with curves, the side-by-side table and videos.

Of a run that was trained or deployed on a robot and not evaluated in simulation, it shows its episodes there;
of a classifier, its error rates.
"""

from dataclasses import dataclass
from pathlib import Path

from robot_rl.errors import UserError, as_user_errors
from robot_rl.evaluation.videos import shown_episode, write_videos
from robot_rl.report import write_report
from robot_rl.report.inputs import is_evaluated
from robot_rl.runs import check_is_run


@dataclass
class Config:
    run: str = "???"
    """Directory of a run that was evaluated, or trained or deployed on a robot, or of a classifier."""
    videos: bool = True
    """Render the two videos if there are none of the newest evaluation."""


def run(config: Config) -> None:
    directory = Path(config.run)
    with as_user_errors():
        check_is_run(directory)
        evaluated = is_evaluated(directory)
        if evaluated and not (directory / "eval" / "episodes.csv").is_file():
            raise UserError(f"{directory} is not evaluated: run `robot-rl eval policy={directory}` first")
        if evaluated and config.videos and shown_episode(directory) is None:
            write_videos(directory)
        page = write_report(directory)
    print(f"report: {page}")
