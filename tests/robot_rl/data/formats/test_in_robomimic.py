"""robomimic itself reads a file of ours, acts it again in its environment, and trains on it."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from robot_rl.data.dataset import Dataset
from tests.conftest import RunCommand
from tests.robot_rl.data.small_dataset import as_recorded

PYTHON = os.environ.get("ROBOMIMIC_PYTHON", sys.executable)


def in_robomimic(file: Path) -> dict[str, Any]:
    """What `in_robomimic.py` tells of a file; skips the test where there is no robomimic."""
    has = subprocess.run([PYTHON, "-c", "import robomimic"], capture_output=True, check=False)
    if has.returncode:
        pytest.skip(f"{PYTHON} has no robomimic: see docs/datasets.md, and set ROBOMIMIC_PYTHON")
    script, out = Path(__file__).with_name("in_robomimic.py"), file.parent
    run = subprocess.run(
        [PYTHON, str(script), str(file), str(out)], capture_output=True, text=True, cwd=out, check=False
    )
    assert run.returncode == 0, run.stderr[-3000:]
    told: dict[str, Any] = json.loads(run.stdout.splitlines()[-1])
    print(json.dumps(told, indent=1))
    return told


def has_trained(told: dict[str, Any]) -> bool:
    """With its default configuration, which observes these."""
    assert set(told["dataset"]["obs"]) == {
        "robot0_eef_pos", "robot0_eef_quat", "robot0_gripper_qpos", "object",
    }  # fmt: skip
    first, *_, last = told["training"]["losses"]
    return last < first and told["training"]["checkpoints"] == 1 and told["training"]["rolled_out"]


@pytest.mark.full
@pytest.mark.parametrize("task", ["lift", "square"])
def test_robomimic_reads_plays_back_and_trains_on_a_file(
    task: str, tmp_path: Path, robot_rl: RunCommand
) -> None:
    robot_rl("collect", f"task={task}", f"data={tmp_path}/x.zarr", "episodes=4", "noise=0.1")
    robot_rl("data convert", f"dataset={tmp_path}/x.zarr", f"out={tmp_path}/x.hdf5")
    dataset = Dataset(tmp_path / "x.zarr")
    told = in_robomimic(tmp_path / "x.hdf5")

    assert told["dataset"]["demos"] == 3  # of mask/train
    # Its environment observes what the file has, and goes where the file's states are, to the bit.
    assert len(told["playback"]) == 4
    for number, success in enumerate(dataset.success.tolist()):
        demo = told["playback"][f"demo_{number}"]
        assert demo["recorded"] == demo["success"] == success
        assert demo["deviation"] == 0
        assert demo["last_obs"] < 1e-5
        assert demo["names_that_differ"] == []
    # Its own conversion makes the same names, shapes, rewards and ends of the same states. What a step
    # returns was observed a substep earlier than what a state shows that was set.
    assert told["pipeline"]["different"] == []
    assert told["pipeline"]["farthest"] < 0.01
    assert has_trained(told)


@pytest.mark.full
def test_robomimic_trains_on_what_was_recorded_of_a_served_task(tmp_path: Path, robot_rl: RunCommand) -> None:
    robot_rl("collect", f"data={tmp_path}/collected.zarr", "episodes=4")
    as_recorded(Dataset(tmp_path / "collected.zarr"), tmp_path / "x.zarr")
    robot_rl("data convert", f"dataset={tmp_path}/x.zarr", f"out={tmp_path}/x.hdf5")
    assert has_trained(in_robomimic(tmp_path / "x.hdf5"))
