"""A process that dies in native code leaves a trace, whichever of a command's processes it is."""

import os
import resource
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path

import numpy as np
import pytest

from robot_rl.cli.compose import load_group
from robot_rl.cli.main import main
from robot_rl.envs.process_vector import ProcessVectorEnv
from robot_rl.envs.robosuite_env import RobosuiteEnv
from robot_rl.envs.task import TaskConfig
from robot_rl.errors import UserError
from robot_rl.hardware.recording.recorder_process import RecorderError, RecorderProcess
from robot_rl.robot.teleop import simulated
from tests.hardware.processes import ROOT, Process, eventually, serving

CRASH = "Fatal Python error: Segmentation fault"


@pytest.fixture(autouse=True)
def no_core_files() -> Iterator[None]:
    before = resource.getrlimit(resource.RLIMIT_CORE)
    resource.setrlimit(resource.RLIMIT_CORE, (0, before[1]))
    yield
    resource.setrlimit(resource.RLIMIT_CORE, before)


@pytest.fixture(autouse=True)
def command(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> None:
    """This process has run a command, as far as those that it starts are concerned."""
    monkeypatch.setenv("PYTHONFAULTHANDLER", "")  # so that what the command sets is taken back
    monkeypatch.delenv("PYTHONFAULTHANDLER")
    assert main(["--version"]) == 0
    capfd.readouterr()


def children(pid: int) -> dict[int, str]:
    """Command lines of a process's children."""
    found = {}
    for folder in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):  # it ended meanwhile
            parent = int((folder / "stat").read_text().rpartition(")")[2].split()[1])
            if parent == pid:
                found[int(folder.name)] = (folder / "cmdline").read_text()
    return found


def test_a_command_that_crashes_leaves_a_trace_and_so_do_its_cameras(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("PYTHONFAULTHANDLER")  # its own doing
    arguments = ["driver=sim_panda", "cameras=[front]", f"address=ipc://{tmp_path / 'r'}"]
    robot = Process(["-m", "robot_rl", "robot", *arguments], "Ctrl-C ends it")
    try:

        def cameras() -> list[int]:
            found = children(robot.process.pid).items()
            # Python has started it when one of its threads runs.
            return [
                pid
                for pid, line in found
                if "robot_rl.hardware.cameras" in line and len(list(Path(f"/proc/{pid}/task").iterdir())) > 1
            ]

        camera = eventually(cameras, "a camera's process runs")[0]
        os.kill(camera, signal.SIGSEGV)
        assert robot.process.stdout is not None
        for line in robot.process.stdout:
            if CRASH in line:
                break
        else:
            pytest.fail("the camera's process left no trace")
        # Two processes that write their traces at the same time would mix them.
        eventually(lambda: not Path(f"/proc/{camera}").exists(), "the camera's process has ended")
        robot.send(signal.SIGSEGV)
        assert robot.wait() == -signal.SIGSEGV
        assert robot.output.count(CRASH) == 1
        assert 'robot.py", line' in robot.output
    finally:
        robot.kill()


def test_an_environment_that_crashes_in_a_process_of_its_own_leaves_a_trace(
    capfd: pytest.CaptureFixture[str],
) -> None:
    vector = ProcessVectorEnv([partial(RobosuiteEnv, load_group("task", "lift", TaskConfig))])
    vector.reset(seed=0)
    os.kill(vector._workers[0].process.pid, signal.SIGSEGV)
    with pytest.raises(RuntimeError, match="SIGSEGV"):
        vector.step(np.zeros((1, *vector.single_action_space.shape), np.float32))
    trace = capfd.readouterr().err
    assert CRASH in trace
    assert "process_vector.py" in trace


def test_a_recorder_that_crashes_leaves_a_trace(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    with serving(tmp_path) as server, RecorderProcess(server.address, tmp_path / "raw") as recorder:
        os.kill(recorder.process.pid, signal.SIGSEGV)
        with pytest.raises(RecorderError):
            recorder.status()
    assert CRASH in capfd.readouterr().err


def test_a_simulated_robot_that_crashes_leaves_a_trace(
    capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    started = []
    popen = subprocess.Popen

    def noted(*arguments: object, **options: object) -> "subprocess.Popen[bytes]":
        started.append(popen(*arguments, **options))  # type: ignore[call-overload]
        return started[-1]

    monkeypatch.setattr(subprocess, "Popen", noted)
    task = load_group("task", "lift", TaskConfig)
    with simulated.simulated_server(task):
        os.kill(started[0].pid, signal.SIGSEGV)
        started[0].wait()
    said = capfd.readouterr().err
    assert CRASH in said
    assert "robot-rl: the simulation has ended: SIGSEGV ended it, see above" in said


def test_a_simulated_robot_that_crashes_at_its_start_is_refused_below_its_trace(
    capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    crashing = "import ctypes; ctypes.string_at(0)"
    (tmp_path / "sitecustomize.py").write_text(crashing)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    with (
        pytest.raises(UserError, match="did not start: SIGSEGV ended it, see above"),
        simulated.simulated_server(load_group("task", "lift", TaskConfig)),
    ):
        pass
    assert CRASH in capfd.readouterr().err


def test_a_command_without_stderr_runs() -> None:
    """As a service may start it."""
    command = f"exec {sys.executable} -m robot_rl --version 2>&-"
    subprocess.run(["sh", "-c", command], cwd=ROOT, stdout=subprocess.DEVNULL, check=True)
