"""The whole of it without a person: a recorded hand lifts the cube, is recorded, and becomes a dataset."""

import math
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import msgspec
import numpy as np
import pytest

from robot_rl.cli.compose import load_group
from robot_rl.cli.main import main
from robot_rl.data.dataset import Dataset
from robot_rl.envs.robot_state import BASE, SUCCESS
from robot_rl.envs.task import TaskConfig
from robot_rl.envs.task_driver import TaskDriver
from robot_rl.evaluation.initial_states import load_states
from robot_rl.hardware.client import RobotClient
from robot_rl.hardware.clock import SteppedClock
from robot_rl.hardware.connection import NoAnswer
from robot_rl.hardware.recording.log import LogWriter
from robot_rl.hardware.recording.raw import RawDataset
from robot_rl.hardware.teleop.device import Sample
from robot_rl.hardware.teleop.stream import StreamHeader
from tests.hardware.processes import ROOT, eventually
from tests.robot_rl.scripted_hand import lift


def hand_for(start: int) -> list[Sample]:
    """Samples that lift the cube of that saved initial state."""
    driver = TaskDriver(load_group("task", "lift", TaskConfig), SteppedClock())
    driver.starts = load_states(driver.env, None).states
    driver.open()
    driver.reset(start)
    seen = driver.read()
    assert not seen.sensors[SUCCESS][0]
    cube = seen.sensors["cube_pos"] - np.array(driver.spec.calibration[BASE][:3])
    turned = 2 * math.atan2(seen.sensors["cube_quat"][2], seen.sensors["cube_quat"][3])
    return lift(seen.pose.position, seen.pose.quaternion, cube, turned)


def write_stream(path: Path, samples: list[Sample]) -> None:
    log = LogWriter(path)
    log.append(msgspec.msgpack.encode(StreamHeader(device="hand")))
    for sample in samples:
        log.append(msgspec.msgpack.encode(sample))
    log.close()


@pytest.mark.full
@pytest.mark.parametrize("actions", ["delta", "absolute"])
def test_a_replayed_hand_lifts_the_cube_and_a_dataset_has_it(actions: str, tmp_path: Path) -> None:
    task = f"task.input_type={actions}"
    write_stream(tmp_path / "lift.device", hand_for(0))
    # On a busy machine a command may arrive too late to be followed, which a recorded hand does not correct.
    for _ in range(3):
        shutil.rmtree(tmp_path / "lift.raw", ignore_errors=True)
        done = subprocess.run(
            [
                *(sys.executable, "-m", "robot_rl", "teleop", "task=lift", task),
                *("device=replay", f"device.path={tmp_path}/lift.device", f"out={tmp_path}/lift.raw"),
            ],
            cwd=ROOT,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            env={**os.environ, "OMP_NUM_THREADS": "1"},
        )
        assert done.returncode == 0, done.stdout + done.stderr
        if "stale:" not in done.stdout:
            break
    assert "the task is done" in done.stdout, done.stdout
    assert f"robot-rl data derive raw={tmp_path}/lift.raw out={tmp_path}/lift.zarr task=lift" in done.stdout
    (episode,) = RawDataset(tmp_path / "lift.raw").episodes.values()
    assert episode.footer is not None
    assert episode.footer.outcome == "success"
    (suggested,) = re.findall(rf"robot-rl (data derive raw={tmp_path}/lift.raw .*)", done.stdout)
    assert main([*shlex.split(suggested), "max_age_ms=2000"]) == 0
    dataset = Dataset(tmp_path / "lift.zarr")
    assert dataset.environment.get("input_type", "delta") == actions
    assert dataset["reward"][-1] == 1
    assert dataset["reward"].sum() == 1
    # The task is done 4 cm over the table; the last step is the one before that.
    assert dataset["cube_pos"][-1, 2] - dataset["cube_pos"][0, 2] > 0.01
    assert (dataset["source"] == 2).sum() > 50
    # It begins as scripted demonstrations and evaluations do: half open, and told to open, not to close.
    assert np.abs(dataset["robot0_gripper_qpos"][0]).sum() > 0.03
    assert dataset["action"][0, -1] == dataset["applied_action"][0, -1] == -1


@pytest.mark.full
def test_the_simulation_ends_with_the_program_however_that_ends(tmp_path: Path) -> None:
    first = hand_for(0)[0]
    an_hour_later = msgspec.structs.replace(first, t=first.t + 3600 * 10**9)
    write_stream(tmp_path / "rest.device", [first, an_hour_later])
    program = subprocess.Popen(
        [
            *(sys.executable, "-m", "robot_rl", "teleop", "task=lift"),
            *("device=replay", f"device.path={tmp_path}/rest.device"),
        ],
        cwd=ROOT,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "OMP_NUM_THREADS": "1", "TMPDIR": str(tmp_path)},
    )
    try:
        assert program.stdout is not None
        address = program.stdout.readline().split()[2].rstrip(",")
        with RobotClient(address, "watcher", timeout=30.0) as watcher:
            assert watcher.spec.name == "lift"
        program.send_signal(signal.SIGKILL)
        program.wait()
        assert program.stdout is not None
        eventually(lambda: is_gone(address), "the server has ended")
    finally:
        program.kill()
        program.wait()
        program.stdout.close()


def is_gone(address: str) -> bool:
    try:
        with RobotClient(address, "watcher", timeout=0.5):
            time.sleep(0.1)
            return False
    except NoAnswer:
        return True
