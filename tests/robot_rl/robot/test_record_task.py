"""A simulated task that is served as a robot, recorded, and derived into a dataset of that task."""

from pathlib import Path

import numpy as np
import pytest

from robot_rl.cli.compose import load_group
from robot_rl.data.compatibility import check_same_environment
from robot_rl.data.dataset import Dataset
from robot_rl.data.playback import play as play_episode
from robot_rl.data.playback import playback_env
from robot_rl.data.validation import find_problems
from robot_rl.envs.real_arm import RealArmEnv
from robot_rl.envs.task import TaskConfig
from robot_rl.factory import make_robosuite_env
from robot_rl.hardware.client import RobotClient
from robot_rl.hardware.recording.recorder_process import RecorderProcess
from tests.conftest import RunCommand
from tests.hardware.processes import Process, eventually


@pytest.mark.full
def test_what_was_done_behind_the_bridge_is_a_dataset_of_the_task(
    tmp_path: Path, robot_rl: RunCommand
) -> None:
    env = make_robosuite_env(load_group("task", "lift", TaskConfig))
    environment = env.describe()
    env.close()
    address = f"ipc://{tmp_path / 'r'}"
    arguments = ["robot", "task=lift", f"address={address}", "lease_ms=1000"]
    server = Process(["-m", "robot_rl", *arguments], "session")
    try:
        with (
            RobotClient(address, "carl", "operator", timeout=30.0) as client,
            RecorderProcess(address, tmp_path / "x.raw") as recorder,
        ):
            arm = RealArmEnv(
                client, environment, prepare=lambda number: client.reset_scene(number), max_age_ms=5000
            )
            arm.reset()
            recorder.begin()
            sent = np.array([0.3, 0.0, -0.2, 0.0, 0.0, 0.1, 1.0], np.float32)
            for _ in range(30):
                *_, info = arm.step(sent)
                assert not info["interrupted"]
            recorder.end("failure")
            arm.close()
    finally:
        server.kill()
    robot_rl("data derive", f"raw={tmp_path}/x.raw", f"out={tmp_path}/x.zarr", "task=lift", "max_age_ms=5000")
    dataset = Dataset(tmp_path / "x.zarr")
    check_same_environment(dataset.environment, environment, "it")
    assert dataset.num_steps >= 20
    acting = dataset["source"] == 1
    assert acting.sum() >= 20
    # The arm moves while a delta is on its way: what is left of it at a step is a little more or less.
    mean = dataset["action"][acting].mean(0)
    np.testing.assert_allclose(mean[:6], sent[:6], atol=0.15)
    assert (dataset["action"][acting][:, 6] == 1).all()
    np.testing.assert_allclose(dataset["applied_action"], dataset["action"], atol=0.05)
    # The scene was recorded with each state, so that the episode can be acted again.
    play = playback_env(dataset)
    playback = play_episode(dataset, play, 0)
    play.close()
    assert playback.deviations["cube position"].farthest < 0.01
    assert playback.success == playback.recorded
    assert find_problems(dataset.path) == []
    # It only falls a little onto the table.
    cube = dataset["cube_pos"][:, :2]
    np.testing.assert_allclose(cube, np.tile(cube[:1], (len(cube), 1)), atol=0.01)
    eventually(lambda: server.process.poll() is not None, "the server has ended")
