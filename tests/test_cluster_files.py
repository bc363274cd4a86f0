"""The example files for sweeps and clusters run, and their options are options of this program."""

import os
import shlex
import shutil
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from robot_rl.cli.compose import compose
from robot_rl.cli.main import load_command
from tests.conftest import SMALL_RL
from tests.hardware.processes import PATIENCE, eventually
from tests.robot_rl.launchers.sweeps import finished

FOLDER = Path(__file__).resolve().parent.parent / "configs" / "cluster"
NO_RAY = "the extra `ray` is not installed"
SCRIPTS = ("laptop.sh", "workstation.sh", "slurm.sbatch")
TINY = (*SMALL_RL, "method.steps=40", "method.warmup_steps=10", "task.horizon=10", "device=cpu")


def prepared(folder: Path, data: Path, base: Path) -> dict[str, Any]:
    """A folder with what the scripts need; returns how to run them there."""
    (folder / "data").mkdir()
    (folder / "runs").mkdir()
    (folder / "data" / "lift.zarr").symlink_to(data)
    (folder / "runs" / "lift_bc_s0").symlink_to(base)
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    return {"cwd": folder, "env": {**os.environ, "PATH": path}, "text": True, "capture_output": True}


def on_a_workstation(folder: Path, data: Path, base: Path) -> tuple[dict[str, Any], int]:
    """How to run its script in a prepared folder, and the port of its cluster."""
    pytest.importorskip("ray", reason=NO_RAY)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = int(free.getsockname()[1])
    where = prepared(folder, data, base)
    where["env"] |= {"PORT": str(port), "WORKERS": "1", "RAY_memory_monitor_refresh_ms": "0"}
    return where, port


def assert_nothing_listens(port: int) -> None:
    with socket.socket() as again:
        assert again.connect_ex(("127.0.0.1", port)) != 0


def finished_runs(folder: Path) -> int:
    return sum(finished(run) for run in (folder / "runs").iterdir() if not run.is_symlink())


@pytest.mark.parametrize("name", SCRIPTS)
def test_the_options_of_the_scripts_are_options_of_this_program(name: str) -> None:
    text = (FOLDER / name).read_text().replace("\\\n", " ")
    (line,) = [line for line in text.splitlines() if "robot-rl train" in line and not line.startswith("#")]
    line = line.removesuffix(" &")
    words = shlex.split(line)
    given = [word for word in words[words.index("train") + 1 :] if "=" in word]
    settings = dict(word.split("=", 1) for word in given)
    for option in ("jobs", "launcher"):
        settings.pop(option, None)
    for method in settings.pop("method").split(","):
        plain = [f"{key}={value.split(',')[0]}" for key, value in settings.items() if "$" not in value]
        compose(load_command("train"), [f"method={method}", *plain])


def test_ray_accepts_the_cluster_file() -> None:
    autoscaler = pytest.importorskip(
        "ray.autoscaler._private.util", reason="the extra `ray` is not installed"
    )
    config = yaml.safe_load((FOLDER / "ray.yaml").read_text())
    autoscaler.validate_config(autoscaler.prepare_config(config))
    (start,) = [line for line in config["head_start_ray_commands"] if "--head" in line]
    assert "--dashboard-host=127.0.0.1" in start


@pytest.mark.full
def test_the_sweep_for_a_laptop_ends(tmp_path: Path, demonstrations: Path, base_run: Path) -> None:
    where = prepared(tmp_path, demonstrations, base_run)
    done = subprocess.run([FOLDER / "laptop.sh", *TINY], check=False, **where)
    assert done.returncode == 0, done.stderr
    assert finished_runs(tmp_path) == 6


@pytest.mark.full
def test_the_run_for_a_workstation_ends_with_its_cluster(
    tmp_path: Path, demonstrations: Path, base_run: Path
) -> None:
    where, port = on_a_workstation(tmp_path, demonstrations, base_run)
    done = subprocess.run([FOLDER / "workstation.sh", *TINY, "name=run"], check=False, **where)
    assert done.returncode == 0, done.stderr
    assert finished_runs(tmp_path) == 1
    assert_nothing_listens(port)


@pytest.mark.full
def test_a_workstation_whose_script_is_ended_saves_the_run_and_ends_its_cluster(
    tmp_path: Path, demonstrations: Path, base_run: Path
) -> None:
    where, port = on_a_workstation(tmp_path, demonstrations, base_run)
    del where["capture_output"]
    long = ("method.steps=100000", "checkpoint_every=200", "name=run")
    child = subprocess.Popen(
        [FOLDER / "workstation.sh", *TINY, *long], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, **where
    )
    try:
        eventually(lambda: bool(list((tmp_path / "runs").glob("run/checkpoints/[0-9]*"))), "a checkpoint")
        child.terminate()
        said, _ = child.communicate(timeout=PATIENCE)
    finally:
        child.kill()
        child.wait()
    assert child.returncode == 143, said
    assert "stopped and saved" in said
    assert_nothing_listens(port)


def test_the_shells_of_the_scripts_accept_them() -> None:
    for name in SCRIPTS:
        path = FOLDER / name
        shell = shutil.which(path.read_text().splitlines()[0].removeprefix("#!"))
        assert shell
        subprocess.run([shell, "-n", str(path)], check=True)
