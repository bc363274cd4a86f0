"""Check this machine, or a robot: suggests a fix for each problem.

Without a robot: packages, graphics, disk. With a robot's address: its server (network, clocks, control loop,
cameras, a latched fault), for a few seconds. With the name of a driver: whether this machine can run its
server (real-time rights, kernel, libraries, USB, the arm's controller). Nothing moves.
"""

import logging
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from robot_rl.errors import as_user_errors
from robot_rl.robot.checks.installation import Check, all_checks


@dataclass
class Config:
    runs_dir: str = "runs"
    """Where runs are kept."""
    robot: str | None = None
    """Robot to check: the address of its server, or its name in configs/robot, or its file."""
    role: str = "observer"
    """Role of this client: `observer`, `policy` or `operator`."""
    keys: str | None = None
    """File of this client's keys, from `robot-rl robot keys`; required for a robot on a network."""
    insecure: bool = False
    """Use a network without keys."""


def run(config: Config) -> None:
    """Print a line per check; the exit code is 1 if a check failed."""
    # robosuite warns about optional parts that are not used here, and sets its own level when imported.
    logging.getLogger("robosuite_logs").addFilter(lambda record: record.levelno >= logging.ERROR)
    with as_user_errors():
        faults = show(_checks(config))
    if faults:
        raise SystemExit(1)


def _checks(config: Config) -> Iterable[Check]:
    if config.robot is None:
        return all_checks(Path(config.runs_dir))
    # Imported late: broken packages are reported by the other checks.
    from robot_rl.robot.checks.robot_checks import robot_checks

    return robot_checks(config.robot, config.role, config.keys, config.insecure)


def show(checks: Iterable[Check]) -> int:
    """Print checks as they come; returns the number of faults."""
    faults = unknown = 0
    for check in checks:
        verdict = "?" if not check.known else "ok" if check.ok else "FAULT"
        print(f"{verdict:<6}{check.name:<14} {check.detail}", flush=True)
        unknown += not check.known
        if not check.ok:
            faults += 1
            print(f"{'':<6}{'fix:':<14} {check.fix}", flush=True)
    result = f"{faults} {'fault' if faults == 1 else 'faults'}" if faults else "all is well"
    print(f"\n{result}{f'; {unknown} not known from here (?)' if unknown else ''}")
    return faults
