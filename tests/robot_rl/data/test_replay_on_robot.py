"""A recorded motion is followed by the robot's real server within its limits, and only if somebody agrees."""

import io
import math
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import msgspec
import numpy as np
import pytest

from robot_rl.cli.main import main
from robot_rl.data.dataset import Dataset
from robot_rl.data.raw.derive import DeriveConfig, derive
from robot_rl.data.replay_on_robot import motion_of
from robot_rl.hardware.protocol.messages import Mode
from robot_rl.hardware.recording.raw import RawDataset
from robot_rl.hardware.recording.recorder_process import RecorderProcess
from tests.hardware.processes import ROOT, Server, eventually, serving
from tests.robot_rl.data.small_dataset import write

SECONDS = 3.0
WIDTH = 0.25


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with serving(tmp_path_factory.mktemp("r")) as server:
        yield server


@pytest.fixture(scope="module")
def recorded(server: Server, tmp_path_factory: pytest.TempPathFactory) -> Dataset:
    """Two joints go to and fro and end elsewhere; the gripper closes."""
    folder = tmp_path_factory.mktemp("recorded")
    with (
        server.client("carl", "operator") as robot,
        RecorderProcess(server.address, folder / "x.raw") as recorder,
    ):
        eventually(lambda: recorder.status().age_ms["state"] is not None, "states")
        robot.arm()
        with robot.lease("script"):
            start = list(robot.state(10.0).q)
            robot.command("joint_position", start)
            recorder.begin()
            commands = 0
            begun = time.monotonic()
            while (passed := time.monotonic() - begun) < SECONDS:
                part = passed / SECONDS
                goal = list(start)
                goal[0] += WIDTH * math.sin(1.5 * math.pi * part) ** 2
                goal[3] += 0.5 * WIDTH * part
                robot.command("joint_position", goal, gripper=0.0 if part > 0.5 else 1.0)
                commands += 1
                time.sleep(0.03)
            eventually(lambda: recorder.status().received["command"] >= commands, "all commands")
            recorder.end("success")
        robot.disarm()
    derive(RawDataset(folder / "x.raw"), folder / "x.zarr", DeriveConfig(20.0, max_age_ms=5000.0))
    return Dataset(folder / "x.zarr")


def mode(server: Server) -> Mode:
    with server.client("me") as robot:
        return robot.sample().mode


@pytest.mark.full
def test_the_arm_goes_where_it_was(
    server: Server, recorded: Dataset, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = [f"dataset={recorded.path}", f"address={server.address}", "speed=0.5", "yes=true"]
    before = time.monotonic()
    assert main(["replay", *arguments]) == 0
    # The way back to the start comes first.
    assert time.monotonic() - before > SECONDS / 0.5
    told = capsys.readouterr().out
    rows = [line.split() for line in told.splitlines() if line.startswith("joint")][1:]
    assert len(rows) == 7
    off = np.array([[float(number) for number in row[1:]] for row in rows])
    assert off.max() < 0.03, told
    with server.client("me") as robot:
        gripper = robot.sample().gripper
        assert gripper is not None
        # Closed at the end, as recorded; it was open at the start.
        assert gripper.opening < 0.2
        np.testing.assert_allclose(robot.sample().q, recorded["robot0_joint_pos"][-1], atol=0.03)
        moved = np.abs(recorded["robot0_joint_pos"][-1] - recorded["robot0_joint_pos"][0])
        assert moved.max() > 0.1
    assert mode(server) is Mode.IDLE


@pytest.mark.full
def test_ctrl_c_leaves_the_arm_at_rest(server: Server, recorded: Dataset) -> None:
    command = [sys.executable, "-m", "robot_rl", "replay", f"dataset={recorded.path}"]
    process = subprocess.Popen(
        [*command, f"address={server.address}", "speed=0.05", "yes=true"],
        cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    try:
        eventually(lambda: mode(server) is Mode.SCRIPT, "it moves")
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=120)
    finally:
        process.kill()
    assert process.returncode == 130
    assert "stopped; the arm is at rest" in err
    assert "off the path" in out
    with server.client("me") as robot:
        state = robot.sample()
        assert state.mode is Mode.IDLE
        assert max(map(abs, state.dq)) < 0.05


def test_nothing_moves_without_consent(
    server: Server,
    recorded: Dataset,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(sys, "stdin", io.StringIO(""))
    assert main(["replay", f"dataset={recorded.path}", f"address={server.address}"]) == 2
    told = capsys.readouterr()
    assert "the arm moves only with the operator's consent: press Enter, or give yes=true" in told.err
    assert "will go to the start of episode 0" in told.out
    assert mode(server) is Mode.IDLE


def test_a_recording_of_another_robot_is_refused(
    server: Server, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = write(tmp_path / "a.zarr", (4,), real_robot={"name": "other", "spec_sha256": ""}).path
    assert main(["replay", f"dataset={path}", f"address={server.address}", "yes=true"]) == 2
    assert "was recorded from other, and the robot at the address is sim_panda" in capsys.readouterr().err
    assert main(["replay", f"dataset={path}", f"address={server.address}", "yes=true", "accept=[robot]"]) == 2
    assert "has no robot0_joint_pos of 7 joints" in capsys.readouterr().err


def test_joints_outside_of_the_robots_limits_are_refused(server: Server, recorded: Dataset) -> None:
    with server.client("me") as robot:
        spec = robot.spec
    tight = msgspec.structs.replace(spec.limits, joint_upper=tuple(-9.0 for _ in spec.joints))
    with pytest.raises(ValueError, match=r"is at .* rad in step 0, outside of the robot's limits"):
        motion_of(recorded, 0, msgspec.structs.replace(spec, limits=tight))


def test_a_server_that_is_not_there_is_named(
    recorded: Dataset, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["replay", f"dataset={recorded.path}", f"address=ipc://{tmp_path}/none", "yes=true"]) == 2
    assert "no connection from" in capsys.readouterr().err
