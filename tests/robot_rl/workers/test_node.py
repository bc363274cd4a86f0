"""Workers render with what their own machine has, and say it in one line if it has nothing."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pytest

from robot_rl.cli.compose import load_group
from robot_rl.cli.main import main
from robot_rl.data.dataset import Dataset
from robot_rl.envs.task import TaskConfig
from robot_rl.launchers.software import installed_software
from robot_rl.workers.node import prepare_worker

if TYPE_CHECKING:
    from ray.cluster_utils import Cluster

COLLECT = ("collect", "task=lift", "task.horizon=5", "episodes=1", "workers=ray", "workers.count=1")
SEEN = ("task.cameras=[agentview]", "task.image_size=[32,32]")


@pytest.mark.full
def test_a_worker_chooses_the_graphics_of_its_node_where_ray_was_started_without(
    make_cluster: "Callable[[], Cluster]", tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as node:
        node.delenv("MUJOCO_GL")
        node.delenv("PYOPENGL_PLATFORM", raising=False)
        make_cluster()
    assert main([*COLLECT, *SEEN, f"data={tmp_path / 'lift.zarr'}"]) == 0
    frames = Dataset(tmp_path / "lift.zarr").frames("agentview")[np.arange(5)]
    assert frames.std() > 10


@pytest.mark.full
def test_a_worker_without_egl_is_refused_in_one_line(
    make_cluster: "Callable[[], Cluster]",
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    with monkeypatch.context() as node:
        node.setenv("MUJOCO_GL", "egl")
        node.setenv("__EGL_VENDOR_LIBRARY_FILENAMES", str(tmp_path / "none.json"))
        make_cluster()
    assert main([*COLLECT, *SEEN, f"data={tmp_path / 'lift.zarr'}"]) == 2
    said = capsys.readouterr().err
    assert "a worker cannot collect: " in said
    assert "cannot render (MUJOCO_GL=egl)" in said
    # Without images it needs no EGL.
    assert main([*COLLECT, f"data={tmp_path / 'state.zarr'}"]) == 0


def test_graphics_that_do_not_work_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    task = load_group("task", "lift", TaskConfig)
    monkeypatch.setenv("MUJOCO_GL", "nothing")
    prepare_worker(task, [], installed_software())
    with pytest.raises(ValueError, match=r"cannot render \(MUJOCO_GL=nothing\): .*nothing.*robot-rl doctor"):
        prepare_worker(replace(task, cameras=["agentview"]), [], installed_software())
