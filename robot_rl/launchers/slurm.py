"""Runs commands on a SLURM cluster (slurm.schedmd.com), each as a job, or as a step of the current job.

All nodes need this version of the program and see this folder under the same path. A command whose node is
lost, or that reaches its time limit or is preempted, starts again and resumes from its last checkpoint.
"""

import json
import shutil
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from robot_rl.errors import INTERRUPTED, UserError
from robot_rl.hardware.child_process import command_line, guarded
from robot_rl.launchers.launcher import Launcher, Stopped, start_process
from robot_rl.launchers.software import installed_software

_ANSWER = 30.0
"""s for SLURM's controller to answer."""


class SlurmLauncher(Launcher):
    """Runs each command through `srun`, which waits for a free core; SLURM_PARTITION etc. choose where.

    Args:
        gpus: GPUs reserved for each command, in addition to one core.

    Raises:
        UserError: if SLURM is not installed here, or its controller does not answer.
    """

    def __init__(self, gpus: int = 0) -> None:
        super().__init__()
        srun = shutil.which("srun")
        if srun is None:
            raise UserError("launcher=slurm needs SLURM's srun, which is not on this machine's PATH")
        try:
            asked = ["scontrol", "ping"]
            answer = subprocess.run(asked, check=False, capture_output=True, text=True, timeout=_ANSWER)
        except FileNotFoundError:
            raise UserError("launcher=slurm needs SLURM's scontrol, which is not on the PATH here") from None
        except subprocess.TimeoutExpired:
            raise UserError(
                f"SLURM's controller did not answer within {_ANSWER:g} s (scontrol ping)"
            ) from None
        if answer.returncode != 0 or " is UP" not in answer.stdout:
            said = (answer.stdout + answer.stderr).strip().splitlines()
            raise UserError(f"SLURM's controller does not answer: {said[-1] if said else 'scontrol ping'}")
        # With -X, SIGINT goes to the command at once, which then saves and exits.
        self._srun = [srun, "--quiet", "-X", "--exact", "--ntasks=1", "--cpus-per-task=1", "--input=none"]
        if gpus:
            self._srun.append(f"--gpus-per-task={gpus}")
        self._running: set[subprocess.Popen[bytes]] = set()

    def run(self, arguments: Sequence[str], log: Path) -> int:
        again = "the node of this command is lost, or its time is over"
        given_up = "jobs that ran it were lost or ended"
        return self._restarting(lambda: self._attempt(arguments, log), log, again, given_up)

    def _attempt(self, arguments: Sequence[str], log: Path) -> int | None:
        """Run a command; None if it did not end by itself."""
        # A job whose node fails ends with code 0 too, so the command's code comes in a file.
        ended = log.resolve().with_suffix(".code")
        ended.unlink(missing_ok=True)
        task = [sys.executable, "-P", str(Path(__file__).with_name("slurm_task.py"))]
        task += [str(ended), json.dumps(installed_software())]
        job = ["--job-name", log.stem, *task, *command_line(arguments)]
        with self._lock:
            if self._stopping:
                raise Stopped
            process = start_process(guarded([*self._srun, *job]), log, own_session=True)
            self._running.add(process)
        process.wait()
        with self._lock:
            self._running.remove(process)
        code = int(ended.read_text()) if ended.is_file() else None
        ended.unlink(missing_ok=True)
        if self._stopping and code != 0:
            raise Stopped
        return None if code == INTERRUPTED else code

    def _ask_all(self) -> None:
        for process in self._running:
            process.send_signal(signal.SIGINT)

    def kill(self) -> None:
        with self._lock:
            self._stopping = True
            # srun cancels its job, which ends at once.
            for process in self._running:
                process.terminate()
