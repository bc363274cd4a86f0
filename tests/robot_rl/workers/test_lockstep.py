"""Training with workers on a real Ray cluster of two nodes: the results are those of one process."""

import os
import signal
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from robot_rl.cli.main import main
from robot_rl.workers.ray_vector import RayVectorEnv
from tests.conftest import RunCommand
from tests.robot_rl.training.test_training import assert_same, final_state, metrics, residual
from tests.robot_rl.workers.processes import worker_processes

pytest.importorskip("ray", reason="the extra `ray` is not installed")
if TYPE_CHECKING:
    from ray.cluster_utils import Cluster

LOCKSTEP = "workers.lockstep=true"


def assert_same_runs(one: Path, other: Path) -> None:
    assert_same(final_state(one), final_state(other))
    assert metrics(one) == metrics(other)


@pytest.mark.full
def test_any_number_of_workers_gives_the_results_of_one_process(
    cluster: "Cluster", tmp_path: Path, robot_rl: RunCommand, demonstrations: Path, base_run: Path
) -> None:
    """A run that begins with one worker, goes on with two, and ends in one process."""
    cluster.add_node(num_cpus=1)
    robot_rl("train", *residual(demonstrations, base_run, tmp_path, "one_process", 160))
    begin = residual(demonstrations, base_run, tmp_path, "workers", 70)
    robot_rl("train", *begin, "workers=ray", "workers.count=1", LOCKSTEP)
    robot_rl("train", *begin, "method.steps=130", "workers=ray", "workers.count=2", LOCKSTEP)
    robot_rl("train", *begin, "method.steps=160")
    assert_same_runs(tmp_path / "one_process", tmp_path / "workers")


@pytest.mark.full
def test_a_node_that_is_lost_and_a_worker_that_hangs_do_not_change_the_results(
    cluster: "Cluster",
    tmp_path: Path,
    robot_rl: RunCommand,
    demonstrations: Path,
    base_run: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    robot_rl("train", *residual(demonstrations, base_run, tmp_path, "one_process", 160))
    lost = next(node for node in cluster.list_all_nodes() if node is not cluster.head_node)
    monkeypatch.setattr("robot_rl.workers.ray_vector._HANGS", 5.0)
    step, steps = RayVectorEnv._step_envs, []

    def failing(envs: RayVectorEnv) -> None:
        steps.append(1)
        if len(steps) == 20:
            # By itself a worker notices only after a while that its node is lost, and answers until then.
            os.kill(worker_processes("Simulation")[-1], signal.SIGKILL)
            cluster.add_node(num_cpus=2)
            cluster.remove_node(lost, allow_graceful=False)
        if len(steps) == 50:
            os.kill(worker_processes("Simulation")[-1], signal.SIGSTOP)
        step(envs)

    monkeypatch.setattr(RayVectorEnv, "_step_envs", failing)
    begin = residual(demonstrations, base_run, tmp_path, "workers", 160)
    robot_rl("train", *begin, "workers=ray", "workers.count=1", LOCKSTEP)
    said = capfd.readouterr().err
    assert "workers: one is lost" in said
    assert "workers: one hangs" in said
    assert_same_runs(tmp_path / "one_process", tmp_path / "workers")


@pytest.mark.full
def test_an_on_policy_method_collects_with_workers(
    cluster: "Cluster", tmp_path: Path, robot_rl: RunCommand, base_run: Path
) -> None:
    for name, more in (("one_process", ()), ("workers", ("workers=ray", "workers.count=1", LOCKSTEP))):
        arguments = [
            *("method=residual_ppo", f"base={base_run}", f"runs_dir={tmp_path}", f"name={name}"),
            *("method.steps=96", "method.num_envs=2", "method.rollout_steps=16", "method.minibatches=2"),
            *("method.hidden=[16]", "task.horizon=10", "threads=1"),
        ]
        robot_rl("train", *arguments, *more)
    assert_same_runs(tmp_path / "one_process", tmp_path / "workers")


@pytest.mark.full
def test_an_evaluation_with_workers_has_the_results_of_one_process(
    cluster: "Cluster", tmp_path: Path, robot_rl: RunCommand, base_run: Path
) -> None:
    arguments = (f"policy={base_run}", "episodes=3", "num_envs=2")
    robot_rl("eval", *arguments, f"out={tmp_path / 'one_process'}")
    robot_rl("eval", *arguments, f"out={tmp_path / 'workers'}", "workers=ray", "workers.count=1")
    one, other = (tmp_path / name / "episodes.csv" for name in ("one_process", "workers"))
    assert len(one.read_text().splitlines()) == 4
    assert one.read_text() == other.read_text()


@pytest.mark.full
def test_more_workers_than_cores_are_refused(
    cluster: "Cluster", tmp_path: Path, base_run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ["train", "method=rlpd", "base=uniform", f"runs_dir={tmp_path / 'runs'}", "workers=ray"]
    assert main([*arguments, "method.demo_ratio=0", "method.num_envs=2", LOCKSTEP]) == 2
    assert "workers.count=2: the cluster has 1 cores" in capsys.readouterr().err
    assert not (tmp_path / "runs").exists()
