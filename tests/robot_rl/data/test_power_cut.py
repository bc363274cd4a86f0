"""What a command has said to be done is on the disk: a power cut takes nothing of it."""

from pathlib import Path

import pytest

from robot_rl.data.raw.derive import DeriveConfig, derive
from robot_rl.hardware.recording.raw import RawDataset
from robot_rl.policies.bases.uniform import UniformConfig, UniformPolicy
from robot_rl.policies.store import save_policy
from robot_rl.runs import list_checkpoints, open_run, write_run_record
from robot_rl.training.logger import RunLogger
from tests.conftest import SMALL_BASE, RunCommand
from tests.disk import Disk
from tests.robot_rl.data import small_dataset
from tests.robot_rl.data.recorded import Motion, record
from tests.robot_rl.hil.training import arguments


@pytest.fixture
def disk(monkeypatch: pytest.MonkeyPatch) -> Disk:
    return Disk(monkeypatch)


@pytest.mark.parametrize("video", [False, True])
def test_an_episode_counts_when_all_of_it_is_on_the_disk(disk: Disk, tmp_path: Path, video: bool) -> None:
    path = tmp_path / "data" / "a.zarr"
    small_dataset.write(path, (12, 7), ("front",), video=video)
    assert disk.lost(tmp_path / "data") == []
    # A writer that goes on, over the border of a chunk.
    small_dataset.write(path, (1100, 3), ("front",), video=video)
    assert disk.lost(tmp_path / "data") == []
    assert disk.commits == [[]] * 4


def test_collected_episodes_stay(disk: Disk, tmp_path: Path, robot_rl: RunCommand) -> None:
    robot_rl("collect", f"data={tmp_path}/new/lift.zarr", "episodes=1")
    assert disk.lost(tmp_path / "new") == []
    assert disk.commits == [[]]


def test_derived_merged_split_and_converted_datasets_stay(
    disk: Disk, tmp_path: Path, robot_rl: RunCommand
) -> None:
    record(tmp_path / "x.raw", Motion())
    derive(RawDataset(tmp_path / "x.raw"), tmp_path / "out" / "derived.zarr", DeriveConfig(rate=20.0))
    a, b = (small_dataset.write(tmp_path / name, (4, 5), ("front",)).path for name in ("a.zarr", "b.zarr"))
    robot_rl("data merge", f"datasets=[{a},{b}]", f"out={tmp_path}/out/merged.zarr")
    robot_rl(
        "data split",
        f"dataset={a}",
        f"out={tmp_path}/out/one.zarr",
        f"rest={tmp_path}/out/two.zarr",
        "episodes=[0]",
    )
    robot_rl("data convert", f"dataset={a}", f"out={tmp_path}/out/a.hdf5")
    robot_rl("data convert", f"dataset={a}", f"out={tmp_path}/out/lerobot", "to=lerobot", "images=image")
    robot_rl("data convert", f"dataset={tmp_path}/out/a.hdf5", f"out={tmp_path}/out/back.zarr")
    robot_rl("data view", f"dataset={a}", f"out={tmp_path}/out/a.html")
    assert disk.lost(tmp_path / "out") == []
    assert len(list((tmp_path / "out").iterdir())) == 8


def test_a_trained_run_stays(disk: Disk, tmp_path: Path, robot_rl: RunCommand, demonstrations: Path) -> None:
    robot_rl(
        "train",
        "method=bc",
        f"data={demonstrations}",
        f"runs_dir={tmp_path}/runs",
        "name=base",
        "method.steps=2",
        "threads=1",
        *SMALL_BASE,
    )
    run = tmp_path / "runs" / "base"
    assert len(list_checkpoints(run / "checkpoints")) == 1
    # TensorBoard's events can be made of metrics.csv.
    assert [name for name in disk.lost(tmp_path / "runs") if "/tensorboard" not in name] == []


@pytest.mark.full
def test_the_identity_of_a_run_with_an_actor_stays(
    disk: Disk, tmp_path: Path, robot_rl: RunCommand, demonstrations: Path, base_run: Path
) -> None:
    """Without it the actor's episodes, which are still on the actor's disk, would be those of another run."""
    robot_rl("train", *arguments(demonstrations, base_run, tmp_path, "run", "method.steps=30"))
    assert disk.lost(tmp_path / "run" / "identity") == []


def test_metrics_that_a_checkpoint_needs_stay(disk: Disk, tmp_path: Path) -> None:
    """A run whose metrics.csv is shorter than its checkpoint says does not go on."""
    directory = tmp_path / "runs" / "a"
    logger = RunLogger(directory)
    logger.log(1, loss=0.5)
    state = logger.state_dict()
    assert [name for name in disk.lost(tmp_path / "runs") if "/tensorboard" not in name] == []
    logger.log(2, loss=0.5)
    logger.close()
    RunLogger(directory).load_state_dict(state)


def test_records_of_a_run_stay_when_they_are_written_again(disk: Disk, tmp_path: Path) -> None:
    directory = tmp_path / "runs" / "a"
    for seconds in (1.0, 2.0):
        open_run(directory, {"name": "a"})
        write_run_record(directory, "now", wall_seconds=seconds)
        assert disk.lost(tmp_path / "runs") == []


def test_a_saved_policy_stays(disk: Disk, tmp_path: Path) -> None:
    for _ in range(2):
        save_policy(UniformPolicy(UniformConfig(), 3, 2), tmp_path / "policy", {})
        assert disk.lost(tmp_path / "policy" / "policy.json") == []
        assert disk.lost(tmp_path / "policy" / "weights.safetensors") == []
