"""Which robot is served is said once, and what cannot be served is answered in one line."""

from contextlib import ExitStack
from pathlib import Path

import numpy as np
import pytest

from robot_rl.assets import asset_path
from robot_rl.cli.compose import load_group
from robot_rl.cli.main import main
from robot_rl.envs.task import TaskConfig
from robot_rl.envs.task_driver import TaskDriver
from robot_rl.evaluation.initial_states import load_states
from robot_rl.robot.robots import serve_arm, serve_task


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ([], ["driver=sim_panda", "task=lift"]),
        (["driver=sim_panda", "task=lift"], ["which robot"]),
        (["driver=lift"], ["simulated task", "task=lift"]),
        (["driver=sim_pnda"], ["did you mean sim_panda"]),
        (["task=lfit"], ["did you mean task=lift"]),
        (["task=lift", "cameras=[front]"], ["task.cameras"]),
        (["driver=sim_panda", "states=list.safetensors"], ["states are a task's"]),
        (["driver=sim_panda", "cameras=[frnt]"], ["front, wrist"]),
        (["task=lift", "states=nothing"], ["nothing", "robot-rl states"]),
        (["task=lift", "task.cameras=[agentveiw]"], ["'agentveiw'", "agentview"]),
    ],
)
def test_a_robot_that_cannot_be_served_is_refused_in_one_line(
    arguments: list[str], words: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["robot", f"address=ipc://{tmp_path / 'r'}", *arguments]) == 2
    (line,) = [line for line in capsys.readouterr().err.splitlines() if line.startswith("robot-rl: ")]
    assert all(word in line for word in words), line


def test_a_task_is_served_with_its_saved_states_and_cameras() -> None:
    task = load_group("task", "lift", TaskConfig)
    task.cameras, task.image_size = ["agentview"], [32, 48]
    with ExitStack() as ended:
        served = serve_task(task, None, ended)
        assert isinstance(served.driver, TaskDriver)
        assert served.driver.starts is not None
        assert np.array_equal(served.driver.starts, load_states(served.driver.env).states)
        (camera,) = served.driver.spec.cameras
        assert (camera.name, camera.height, camera.width) == ("agentview", 32, 48)
        assert [settings.spec for settings in served.cameras] == [camera]
        assert len(served.state_callbacks) == 1
        scene = Path(served.cameras[0].source.scene)  # type: ignore[union-attr]
        assert scene.is_file()
    assert not scene.exists()


def test_a_task_without_a_list_begins_at_seeds() -> None:
    with ExitStack() as ended:
        served = serve_task(TaskConfig(env="Wipe"), None, ended)
    assert isinstance(served.driver, TaskDriver)
    assert served.driver.starts is None


def test_an_arm_is_served_with_the_cameras_that_are_named() -> None:
    with ExitStack() as ended:
        served = serve_arm(str(asset_path("configs", "robot") / "sim_panda.yaml"), ["wrist"], ended)
        assert [camera.name for camera in served.driver.spec.cameras] == ["wrist"]
        assert len(served.cameras) == len(served.state_callbacks) == 1
        bare = serve_arm("sim_panda", [], ended)
        assert (bare.driver.spec.cameras, bare.cameras, bare.state_callbacks) == ((), [], ())
