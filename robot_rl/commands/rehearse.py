"""Rehearse a day at the robot, from its check to judged episodes of a tuned policy, without a person.

The other commands run as a person would type them, on a simulated task that is served as a real robot:
without its true success and without resets of its scene. A script demonstrates, takes over, and prepares the
scene. Server, a camera and the learner are killed once. The same command goes on after an interruption.
"""

from dataclasses import asdict, dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from robot_rl.cli.compose import compose
from robot_rl.cli.main import load_command
from robot_rl.cli.signals import interrupted_by_signal
from robot_rl.envs.task import TaskConfig
from robot_rl.errors import UserError, as_user_errors
from robot_rl.rehearsal.day import Day, Plan
from robot_rl.rehearsal.event_log import EventLog
from robot_rl.rehearsal.report import make_report, write_report
from robot_rl.rehearsal.workplace import ServedRobot
from robot_rl.runs import check_run, open_run


@dataclass
class Config(Plan):
    name: str = "rehearsal"
    """Name of the rehearsal's directory."""
    runs_dir: str = "runs"
    """Folder of that directory."""


def run(config: Config) -> None:
    home = Path(config.runs_dir) / config.name
    with as_user_errors():
        task = _task(config.task)
        content = asdict(config)
        check_run(home, content)
    open_run(home, content)
    # However it is ended, commands and server end first.
    with interrupted_by_signal(), TemporaryDirectory(prefix="rehearsal-") as folder:
        events = EventLog(home / "events.jsonl")
        address = f"ipc://{folder}/robot"
        arguments = [*config.task, *config.robot, f"surroundings={home / 'room'}"]
        robot = ServedRobot(arguments, address, home / "server.log", events)
        try:
            Day(config, task, home, address, robot, _say).run()
        finally:
            robot.close()
    report = make_report(home, task.control_freq)
    write_report(home, report)
    _summarise(home, report)


def _task(options: list[str]) -> TaskConfig:
    """The task that `robot-rl robot` serves with these options."""
    task = compose(load_command("robot"), options).task
    if not isinstance(task, TaskConfig):
        raise UserError(f"task={options}: the first option is task=…, a simulated task")
    if not task.cameras:
        raise UserError(f"task={options}: the task has no camera, and a policy of this day sees")
    return task


def _summarise(home: Path, report: dict[str, Any]) -> None:
    for policy in ("base", "tuned"):
        figures = report[policy]
        low, high = figures["interval"]
        print(f"{policy}: success {figures['success']:.3f}  95 % [{low:.3f}, {high:.3f}]")
    print(f"robot minutes {report['robot_minutes']:.1f}, lost episodes {report['lost_episodes']}")
    print(f"look at {home / 'report.html'}")


def _say(line: str) -> None:
    print(line, flush=True)
