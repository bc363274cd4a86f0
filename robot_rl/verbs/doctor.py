"""Check this machine: packages, graphics, disk; says the mend for each fault."""

import logging
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from robot_rl.checks import Check, all_checks


@dataclass
class Config:
    runs_dir: str = "runs"
    """Where runs are kept."""


def run(config: Config) -> None:
    """Print a line per check; exit code 1 if there is a fault."""
    # robosuite warns of optional parts that nothing here uses, and sets its own level when imported.
    logging.getLogger("robosuite_logs").addFilter(lambda record: record.levelno >= logging.ERROR)
    faults = show(all_checks(Path(config.runs_dir)))
    if faults:
        raise SystemExit(1)


def show(checks: Iterable[Check]) -> int:
    """Print checks as they come; returns the number of faults."""
    faults = 0
    for check in checks:
        print(f"{'ok' if check.ok else 'FAULT':<6}{check.name:<15}{check.detail}", flush=True)
        if not check.ok:
            faults += 1
            print(f"{'':<6}{'mend:':<15}{check.mend}", flush=True)
    print(f"\n{faults} {'fault' if faults == 1 else 'faults'}" if faults else "\nall is well")
    return faults
