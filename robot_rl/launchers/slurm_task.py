"""Runs a command on a node of SLURM and writes its exit code to a file, which a lost node does not do.

Usage: `slurm_task.py <file of the exit code> <JSON of the software that it needs> <command…>`.
"""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

from robot_rl.launchers.software import check_software


def main(file: Path, software: str, command: list[str]) -> None:
    """Run `command` to its end; with other software than `software` on this node, refuse it (exit code 2)."""
    # SLURM sends signals to all processes of a job. The command decides, and this one waits for it.
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: None)
    try:
        check_software(json.loads(software), os.uname().nodename)
        code = subprocess.run(command, check=False).returncode
    except ValueError as error:
        print(f"robot-rl: {error}", flush=True)
        code = 2
    written = file.with_suffix(".part")
    written.write_text(str(code))
    written.rename(file)


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2], sys.argv[3:])
