"""Sweeps on a real Ray cluster of two nodes on this machine."""

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from robot_rl.cli.main import main
from robot_rl.errors import UserError
from robot_rl.launchers import make_launcher
from tests.hardware.processes import PATIENCE, eventually
from tests.robot_rl.launchers.sweeps import LONG, commands_in, finished, sweep
from tests.robot_rl.training.test_training import assert_same, final_state

pytest.importorskip("ray", reason="the extra `ray` is not installed")
if TYPE_CHECKING:
    from ray.cluster_utils import Cluster


@pytest.mark.full
def test_a_sweep_survives_the_loss_of_a_node_with_the_same_results(
    cluster: "Cluster",
    tmp_path: Path,
    demonstrations: Path,
    capfd: pytest.CaptureFixture[str],
) -> None:
    assert main(sweep("ray", demonstrations, tmp_path / "straight", "seed=0", LONG)) == 0
    lost = next(node for node in cluster.list_all_nodes() if node is not cluster.head_node)
    runs = tmp_path / "runs"
    arguments = sweep("ray", demonstrations, runs, "seed=0,1", LONG)
    child = subprocess.Popen(
        [sys.executable, "-m", "robot_rl", *arguments], stderr=subprocess.PIPE, text=True
    )
    try:
        (first, *_) = eventually(lambda: list(runs.glob("*/checkpoints/[0-9]*")), "a checkpoint")
        cluster.add_node(num_cpus=2)
        cluster.remove_node(lost, allow_graceful=False)
        _, said = child.communicate(timeout=2 * PATIENCE)
    finally:
        child.kill()
        child.wait()
    assert child.returncode == 0, said
    assert "2 of 2 runs are done" in said
    # Ray chooses which of the two waiting commands gets the only core.
    log = first.parents[1].with_suffix(".log")
    assert "the node of this command is lost" in log.read_text()
    assert_same(final_state(tmp_path / "straight" / "s0"), final_state(runs / "s0"))
    assert finished(runs / "s1")


@pytest.mark.full
def test_a_sweep_whose_driver_is_killed_leaves_no_process_and_resumes(
    cluster: "Cluster", tmp_path: Path, demonstrations: Path
) -> None:
    runs = tmp_path / "runs"
    arguments = sweep("ray", demonstrations, runs, "seed=0", LONG)
    child = subprocess.Popen([sys.executable, "-m", "robot_rl", *arguments])
    eventually(lambda: bool(list((runs / "s0" / "checkpoints").glob("[0-9]*"))), "a checkpoint")
    child.kill()
    child.wait()
    eventually(lambda: not commands_in(runs), "the end of its command")
    assert not finished(runs / "s0")
    assert main(sweep("ray", demonstrations, runs, "seed=0", LONG)) == 0
    assert finished(runs / "s0")


@pytest.mark.full
def test_a_hanging_node_counts_as_lost(
    cluster: "Cluster", tmp_path: Path, monkeypatch: pytest.MonkeyPatch, demonstrations: Path
) -> None:
    monkeypatch.setattr("robot_rl.launchers.ray_cluster._HANGS", 5.0)
    runs = tmp_path / "runs"
    stopped: list[int] = []

    def hang() -> None:
        """Stop the actor and its command as a machine that swaps would."""
        eventually(lambda: bool(list((runs / "s0" / "checkpoints").glob("[0-9]*"))), "a checkpoint")
        command = commands_in(runs)[0]
        actor = int(Path(f"/proc/{command}/stat").read_text().rsplit(")", 1)[1].split()[1])
        stopped.extend((actor, command))
        for process in stopped:
            os.kill(process, signal.SIGSTOP)

    thread = threading.Thread(target=hang)
    thread.start()
    assert main(sweep("ray", demonstrations, runs, "seed=0", LONG)) == 0
    thread.join()
    assert "the node of this command is lost or hangs" in (runs / "s0.log").read_text()
    assert finished(runs / "s0")
    assert not any(Path(f"/proc/{process}").exists() for process in stopped)


@pytest.mark.full
def test_ctrl_c_saves_the_runs_on_the_cluster(
    cluster: "Cluster", tmp_path: Path, demonstrations: Path
) -> None:
    runs = tmp_path / "runs"
    endless = ("method.steps=1000000", "checkpoint_every=1000000")
    arguments = sweep("ray", demonstrations, runs, "seed=0,1", *endless)
    child = subprocess.Popen(
        [sys.executable, "-m", "robot_rl", *arguments], stderr=subprocess.PIPE, text=True
    )
    try:
        (metrics,) = eventually(lambda: list(runs.glob("*/metrics.csv")), "its metrics")
        child.send_signal(signal.SIGINT)
        _, said = child.communicate(timeout=PATIENCE)
    finally:
        child.kill()
        child.wait()
    assert child.returncode == 130
    assert "stopped after 0 of 2 runs; the same command goes on from here" in said
    assert list((metrics.parent / "checkpoints").glob("[0-9]*"))
    assert [path for path in runs.iterdir() if path.is_dir()] == [metrics.parent]


@pytest.mark.full
def test_a_node_with_other_software_is_refused(
    cluster: "Cluster", tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("robot_rl.launchers.software._code_sha256", lambda: "other")
    with pytest.raises(
        UserError, match=r"has other software: code is \w+, not other; install the same there"
    ):
        make_launcher("ray", "cpu")


@pytest.mark.full
def test_a_node_without_memory_is_refused(
    make_cluster: Callable[[], "Cluster"], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RAY_memory_monitor_refresh_ms", "100")
    monkeypatch.setenv("RAY_memory_usage_threshold", "0.01")
    make_cluster()
    with pytest.raises(UserError, match=r"^Ray node \S+ \(\w+\) has hardly any memory left: end other"):
        make_launcher("ray", "cpu")


@pytest.mark.usefixtures("no_cluster")
def test_without_a_cluster_nothing_runs(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], demonstrations: Path
) -> None:
    assert main(sweep("ray", demonstrations, tmp_path / "runs", "seed=0,1")) == 2
    assert "`ray start --head` starts one" in capsys.readouterr().err
    assert not (tmp_path / "runs").exists()
