"""Sweeps on a real SLURM cluster of two nodes on this machine (Debian's package slurm-wlm)."""

import getpass
import os
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from robot_rl.cli.main import main
from robot_rl.errors import UserError
from robot_rl.launchers import make_launcher
from robot_rl.launchers.slurm_task import main as run_task
from tests.hardware.processes import PATIENCE, eventually
from tests.robot_rl.launchers.sweeps import LONG, commands_in, finished, sweep
from tests.robot_rl.training.test_training import assert_same, final_state
from tests.test_cluster_files import FOLDER as CLUSTER_FILES
from tests.test_cluster_files import TINY, finished_runs, prepared

CONFIG = """
ClusterName=test
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={ports[0]}
SlurmUser={user}
SlurmdUser={user}
AuthInfo=socket={folder}/munge.socket
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/%n
SlurmctldPidFile={folder}/controller.pid
SlurmdPidFile={folder}/%n.pid
SlurmctldLogFile={folder}/controller.log
SlurmdLogFile={folder}/%n.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
SlurmdTimeout=5
ReturnToService=2
NodeName=first NodeHostname={host} NodeAddr=127.0.0.1 Port={ports[1]} CPUs=1
NodeName=second NodeHostname={host} NodeAddr=127.0.0.1 Port={ports[2]} CPUs=1
PartitionName=all Nodes=ALL Default=YES State=UP
"""
DAEMONS = ("munged", "slurmctld", "slurmd", "srun")
needs_slurm = pytest.mark.skipif(
    not all(shutil.which(name, path=f"{os.environ['PATH']}:/usr/sbin") for name in DAEMONS),
    reason="slurm-wlm is not installed",
)


class Cluster:
    """A controller and two nodes with one core each."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._daemons: dict[str, subprocess.Popen[bytes]] = {}
        (folder / "state").mkdir()
        (folder / "munge.key").write_bytes(os.urandom(1024))
        (folder / "munge.key").chmod(0o400)
        with socket.socket() as a, socket.socket() as b, socket.socket() as c:
            for one in (a, b, c):
                one.bind(("127.0.0.1", 0))
            ports = [one.getsockname()[1] for one in (a, b, c)]
        text = CONFIG.format(
            host=socket.gethostname().split(".")[0], folder=folder, user=getpass.getuser(), ports=ports
        )
        (folder / "slurm.conf").write_text(text)

    def start(self) -> None:
        files = ("key-file", "socket", "pid-file", "log-file", "seed-file")
        places = [f"--{name}={self.folder / 'munge'}.{name.partition('-')[0]}" for name in files]
        self._start("munged", "--foreground", "--force", *places)
        eventually(lambda: (self.folder / "munge.socket").exists(), "munge's socket")
        self._start("slurmctld", "-D")
        for name in ("first", "second"):
            (self.folder / name).mkdir(exist_ok=True)
            self.start_node(name)

    def start_node(self, name: str) -> None:
        self._start("slurmd", "-D", "-N", name, key=name)
        eventually(lambda: f"{name} idle" in self.nodes(), f"{name} being idle")

    def lose_node(self, name: str) -> None:
        """Kill a node's daemon and all that it runs, as if its power had been cut."""
        daemon = self._daemons.pop(name)
        daemon.kill()
        daemon.wait()
        there = {b"SLURMD_NODENAME=" + name.encode(), f"SLURM_CONF={self.folder / 'slurm.conf'}".encode()}
        for task in Path("/proc").glob("[0-9]*"):
            try:
                if there <= set((task / "environ").read_bytes().split(b"\0")):
                    parent = int((task / "stat").read_text().rsplit(")", 1)[1].split()[1])
                    if (Path("/proc") / str(parent) / "comm").read_text().startswith("slurmstepd"):
                        os.kill(parent, signal.SIGKILL)
                    os.kill(int(task.name), signal.SIGKILL)
            except OSError:  # ended meanwhile
                continue

    def nodes(self) -> str:
        asked = ["sinfo", "--noheader", "--Node", "--format=%N %T"]
        return subprocess.run(asked, check=False, capture_output=True, text=True).stdout

    def jobs(self) -> str:
        return subprocess.run(["squeue", "--noheader"], check=True, capture_output=True, text=True).stdout

    def close(self) -> None:
        for daemon in reversed(self._daemons.values()):
            daemon.kill()
            daemon.wait()

    def _start(self, program: str, *arguments: str, key: str = "") -> None:
        with (self.folder / f"{key or program}.out").open("ab") as out:
            self._daemons[key or program] = subprocess.Popen([program, *arguments], stdout=out, stderr=out)


@pytest.fixture
def cluster(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Iterator[Cluster]:
    made = Cluster(tmp_path_factory.mktemp("slurm"))
    monkeypatch.setenv("SLURM_CONF", str(made.folder / "slurm.conf"))
    monkeypatch.setenv("PATH", f"{os.environ['PATH']}:/usr/sbin")
    try:
        made.start()
        yield made
    finally:
        made.close()


@needs_slurm
@pytest.mark.full
def test_a_sweep_survives_the_loss_of_a_node_with_the_same_results(
    cluster: Cluster, tmp_path: Path, demonstrations: Path
) -> None:
    assert main(sweep("slurm", demonstrations, tmp_path / "straight", "seed=0", LONG)) == 0
    runs = tmp_path / "runs"
    arguments = sweep("slurm", demonstrations, runs, "seed=0,1", LONG)
    child = subprocess.Popen(
        [sys.executable, "-m", "robot_rl", *arguments], stderr=subprocess.PIPE, text=True
    )
    try:
        for seed in (0, 1):
            saved = runs / f"s{seed}" / "checkpoints"
            eventually(lambda saved=saved: bool(list(saved.glob("[0-9]*"))), "a checkpoint")
        cluster.lose_node("first")
        eventually(lambda: "first down" in cluster.nodes(), "the loss being noticed")
        cluster.start_node("first")
        _, said = child.communicate(timeout=4 * PATIENCE)
    finally:
        child.kill()
        child.wait()
    assert child.returncode == 0, said
    assert "2 of 2 runs are done" in said
    logs = [(runs / f"s{seed}.log").read_text() for seed in (0, 1)]
    assert any("the node of this command is lost" in log for log in logs)
    assert_same(final_state(tmp_path / "straight" / "s0"), final_state(runs / "s0"))
    assert finished(runs / "s1")


@needs_slurm
@pytest.mark.full
def test_a_sweep_whose_driver_is_killed_leaves_no_job_and_resumes(
    cluster: Cluster, tmp_path: Path, demonstrations: Path
) -> None:
    runs = tmp_path / "runs"
    arguments = sweep("slurm", demonstrations, runs, "seed=0", LONG)
    child = subprocess.Popen([sys.executable, "-m", "robot_rl", *arguments])
    eventually(lambda: bool(list((runs / "s0" / "checkpoints").glob("[0-9]*"))), "a checkpoint")
    child.kill()
    child.wait()
    eventually(lambda: not cluster.jobs() and not commands_in(runs), "the end of its job")
    assert not finished(runs / "s0")
    assert main(sweep("slurm", demonstrations, runs, "seed=0", LONG)) == 0
    assert finished(runs / "s0")


@needs_slurm
@pytest.mark.full
def test_ctrl_c_saves_running_runs_and_drops_waiting_ones(
    cluster: Cluster, tmp_path: Path, demonstrations: Path
) -> None:
    runs = tmp_path / "runs"
    arguments = sweep("slurm", demonstrations, runs, "seed=0,1,2", "method.steps=100000")
    child = subprocess.Popen(
        [sys.executable, "-m", "robot_rl", *arguments], stderr=subprocess.PIPE, text=True
    )
    try:
        eventually(lambda: len(list(runs.glob("*/checkpoints/[0-9]*"))) > 2, "checkpoints")
        eventually(lambda: len(cluster.jobs().splitlines()) == 3, "a job that waits for a core")
        child.send_signal(signal.SIGINT)
        _, said = child.communicate(timeout=2 * PATIENCE)
    finally:
        child.kill()
        child.wait()
    assert child.returncode == 130, said
    assert "stopped after 0 of 3 runs" in said
    assert not cluster.jobs()
    saved = [path for path in runs.glob("s?.log") if "stopped and saved" in path.read_text()]
    assert len(saved) == 2


@needs_slurm
@pytest.mark.full
def test_what_keeps_a_sweep_from_slurm_is_said_in_one_line(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster.close()
    with pytest.raises(UserError, match=r"SLURM's controller d.* not answer"):
        make_launcher("slurm", "cpu")
    monkeypatch.setenv("PATH", os.path.dirname(sys.executable))
    with pytest.raises(UserError, match="launcher=slurm needs SLURM's srun"):
        make_launcher("slurm", "cpu")


def test_a_node_with_other_software_refuses_a_command(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    run_task(tmp_path / "s0.code", '{"robot-rl": "0.0"}', ["touch", str(tmp_path / "ran")])
    assert (tmp_path / "s0.code").read_text() == "2"
    assert not (tmp_path / "ran").exists()
    said = capfd.readouterr().out
    assert "has other software" in said
    assert said.count("\n") == 1


@needs_slurm
@pytest.mark.full
def test_the_example_job_runs_its_sweep(
    cluster: Cluster, tmp_path: Path, demonstrations: Path, base_run: Path
) -> None:
    where = prepared(tmp_path, demonstrations, base_run)
    where["env"] |= {"SLURM_CONF": os.environ["SLURM_CONF"]}
    job = ["sbatch", "--wait", "--ntasks=2", str(CLUSTER_FILES / "slurm.sbatch"), *TINY]
    done = subprocess.run(job, check=False, **where)
    logs = "\n".join(path.read_text() for path in tmp_path.glob("slurm-*.log"))
    assert done.returncode == 0, done.stderr + logs
    assert finished_runs(tmp_path) == 6
