"""Collecting episodes with workers on a real Ray cluster: the dataset is that of one process."""

import os
import signal
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from robot_rl.cli.compose import load_group
from robot_rl.cli.main import main
from robot_rl.data.expert_episodes import ExpertOptions
from robot_rl.data.writer import DatasetWriter
from robot_rl.envs.task import TaskConfig
from robot_rl.launchers.software import installed_software
from robot_rl.policies.finetuned.finetuned_policy import save_finetuned
from robot_rl.workers.episode_pool import EpisodeJob, EpisodeWorker
from tests.conftest import RunCommand
from tests.robot_rl.data.tuned_policies import tuned
from tests.robot_rl.workers.processes import worker_processes

if TYPE_CHECKING:
    from ray.cluster_utils import Cluster

COLLECT = ("collect", "task=lift", "noise=0.2", "task.horizon=60")


def files(dataset: Path) -> dict[str, bytes]:
    return {str(p.relative_to(dataset)): p.read_bytes() for p in dataset.rglob("*") if p.is_file()}


@pytest.mark.full
def test_workers_that_are_lost_or_hang_do_not_change_the_dataset(
    cluster: "Cluster",
    tmp_path: Path,
    robot_rl: RunCommand,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    """Also one that is continued with another number of workers."""
    one, other = tmp_path / "one.zarr", tmp_path / "other.zarr"
    robot_rl(*COLLECT, f"data={one}", "episodes=9")
    robot_rl(*COLLECT, f"data={other}", "episodes=2", "workers=ray", "workers.count=1")
    cluster.add_node(num_cpus=1)
    append, appended = DatasetWriter.append, []

    def failing(writer: DatasetWriter, *given: Any, **named: Any) -> None:
        append(writer, *given, **named)
        appended.append(1)
        if len(appended) == 1:
            os.kill(worker_processes("EpisodeWorker")[-1], signal.SIGKILL)
        if len(appended) == 3:
            os.kill(worker_processes("EpisodeWorker")[-1], signal.SIGSTOP)

    monkeypatch.setattr(DatasetWriter, "append", failing)
    monkeypatch.setattr("robot_rl.workers.episode_pool._HANGS", 20.0)
    robot_rl(*COLLECT, f"data={other}", "episodes=9", "workers=ray", "workers.count=2")
    said = capfd.readouterr().err
    assert "workers: one is lost" in said
    assert "workers: one hangs" in said
    assert files(one) == files(other)


@pytest.mark.full
def test_workers_collect_the_same_episodes_of_a_policy(
    cluster: "Cluster", tmp_path: Path, robot_rl: RunCommand, base_run: Path
) -> None:
    networks, meta = tuned("residual_chunk", base_run)
    save_finetuned(networks, tmp_path / "run" / "policy", meta)
    collect = ("collect", f"policy={tmp_path / 'run'}", "base_first=0.5", "task.horizon=30", "episodes=4")
    one, other = tmp_path / "one.zarr", tmp_path / "other.zarr"
    robot_rl(*collect, f"data={one}")
    robot_rl(*collect, f"data={other}", "workers=ray", "workers.count=1")
    assert files(one) == files(other)


@pytest.mark.full
def test_a_task_without_an_expert_is_refused_before_a_worker_starts(
    cluster: "Cluster", tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["collect", "task.env=Wipe", f"data={tmp_path / 'wipe.zarr'}", "workers=ray"]) == 2
    assert "Wipe" in capsys.readouterr().err
    assert not any(tmp_path.iterdir())


def test_a_worker_with_other_software_is_refused() -> None:
    options = ExpertOptions(load_group("task", "lift", TaskConfig), noise=0.0, skill=1.0, seed=0)
    with pytest.raises(ValueError, match="torch"):
        EpisodeWorker().build(EpisodeJob(options, [], {**installed_software(), "torch": "1.0"}))
