"""Workers with copies of the policy, on a real Ray cluster of two nodes."""

import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from robot_rl.data.replay_buffer import SOURCES
from robot_rl.runs import list_checkpoints
from robot_rl.workers.training import WorkerTraining
from tests.conftest import RunCommand
from tests.hardware.processes import PATIENCE, eventually
from tests.robot_rl.training.test_training import final_state, metrics, residual
from tests.robot_rl.workers.processes import worker_processes

pytest.importorskip("ray", reason="the extra `ray` is not installed")
if TYPE_CHECKING:
    from ray.cluster_utils import Cluster


def updates_after(steps: int) -> int:
    """What `residual` asks for: the critics' warm-up after 40 steps, then one update per step."""
    return 10 + steps - 40


@pytest.mark.full
@pytest.mark.filterwarnings("error:The given NumPy array is not writable")
def test_a_run_with_workers_keeps_its_ratio_and_resumes_with_another_number(
    cluster: "Cluster", tmp_path: Path, robot_rl: RunCommand, demonstrations: Path, base_run: Path
) -> None:
    cluster.add_node(num_cpus=1)
    # The last message of a worker has more steps than the run.
    run = residual(demonstrations, base_run, tmp_path, "run", 210)
    robot_rl("train", *run, "workers=ray", "workers.count=2")
    state = final_state(tmp_path / "run")
    assert (state["step"], state["learner"]["updates"]) == (210, updates_after(210))
    assert {SOURCES.index("base"), SOURCES.index("policy")} <= set(
        state["replay"]["data.source"][:, :90].flatten().tolist()
    )
    assert len(metrics(tmp_path / "run")["train/success"]) == int(state["replay"]["data.last"].sum())
    robot_rl("train", *run, "method.steps=300", "workers=ray", "workers.count=1")
    state = final_state(tmp_path / "run")
    assert (state["step"], state["learner"]["updates"]) == (300, updates_after(300))
    logged = metrics(tmp_path / "run")
    assert {"workers/age", "train/success", "learn/critic_loss"} <= logged.keys()


class Disturbance:
    """Pauses a worker until its weights are too old, stops one for good, takes a node away, then the run."""

    def __init__(self, cluster: "Cluster", monkeypatch: pytest.MonkeyPatch) -> None:
        self.cluster, self.monkeypatch = cluster, monkeypatch
        self.stage = self.since = self.process = 0

    def __call__(self, training: WorkerTraining) -> None:
        advance = getattr(self, f"stage_{self.stage}")
        if advance(training):
            self.stage += 1
            self.since = training._updates

    def stage_0(self, training: WorkerTraining) -> bool:
        if training._step < 100:
            return False
        self.process = worker_processes("Collector")[-1]
        os.kill(self.process, signal.SIGSTOP)
        return True

    def stage_1(self, training: WorkerTraining) -> bool:
        if training._updates < self.since + 200:
            return False
        os.kill(self.process, signal.SIGCONT)
        return True

    def stage_2(self, training: WorkerTraining) -> bool:
        if not training._dropped:
            return False
        self.process = worker_processes("Collector")[-1]
        os.kill(self.process, signal.SIGSTOP)
        self.hangs_after(5.0)
        return True

    def stage_3(self, training: WorkerTraining) -> bool:
        # The hanging worker was alone on its node, where the next one has to start first.
        if not training._pool.lost or not all(worker.order for worker in training._pool.workers):
            return False
        self.hangs_after(1e9)
        lost = next(node for node in self.cluster.list_all_nodes() if node is not self.cluster.head_node)
        self.cluster.add_node(num_cpus=1)
        self.cluster.remove_node(lost, allow_graceful=False)
        return True

    def stage_4(self, training: WorkerTraining) -> bool:
        return training._pool.lost >= 2 and all(worker.order for worker in training._pool.workers)

    def stage_5(self, training: WorkerTraining) -> bool:
        if training._updates < self.since + 100:
            return False
        os.kill(os.getpid(), signal.SIGINT)
        return True

    def stage_6(self, training: WorkerTraining) -> bool:
        return False

    def hangs_after(self, seconds: float) -> None:
        self.monkeypatch.setattr("robot_rl.workers.pool._HANGS", seconds)


@pytest.mark.full
def test_slow_hanging_and_lost_workers_cost_only_their_episodes(
    cluster: "Cluster",
    tmp_path: Path,
    robot_rl: RunCommand,
    demonstrations: Path,
    base_run: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    cluster.add_node(num_cpus=1)
    disturb = Disturbance(cluster, monkeypatch)
    disturb.hangs_after(1e9)
    after = WorkerTraining._after

    def disturbed(training: WorkerTraining, before: int) -> None:
        after(training, before)
        disturb(training)

    monkeypatch.setattr(WorkerTraining, "_after", disturbed)
    # More than it makes before the last disturbance ends it, on any machine.
    run = residual(demonstrations, base_run, tmp_path, "run", 1_000_000)
    with pytest.raises(KeyboardInterrupt):
        robot_rl("train", *run, "workers=ray", "workers.count=2", "workers.max_age=80")
    assert disturb.stage == 6
    said = capfd.readouterr().err
    assert "workers: one hangs; another one takes its place" in said
    assert "workers: one is lost; another one takes its place" in said
    state = final_state(tmp_path / "run")
    assert state["learner"]["updates"] + state["owed"] == updates_after(state["step"])
    # A step without its successor, where an episode was cut, starts no window.
    replay = state["replay"]
    assert not (replay["data.start"] & replay["data.last"]).any()


@pytest.mark.full
def test_a_run_whose_head_dies_resumes_on_a_new_cluster(
    make_cluster: Callable[[], "Cluster"],
    tmp_path: Path,
    robot_rl: RunCommand,
    demonstrations: Path,
    base_run: Path,
) -> None:
    cluster = make_cluster()
    options = [*residual(demonstrations, base_run, tmp_path, "run", 20_000), "checkpoint_every=100"]
    options += ["workers=ray", "workers.count=1"]
    child = subprocess.Popen([sys.executable, "-m", "robot_rl", "train", *options])
    try:
        eventually(lambda: bool(list_checkpoints(tmp_path / "run" / "checkpoints")), "a checkpoint")
        cluster.remove_node(cluster.head_node, allow_graceful=False)
        child.wait(PATIENCE)
    finally:
        child.kill()
        child.wait()
    saved = final_state(tmp_path / "run")["step"]
    make_cluster()
    robot_rl("train", *options, f"method.steps={saved + 60}")
    state = final_state(tmp_path / "run")
    assert state["learner"]["updates"] == updates_after(saved + 60)
