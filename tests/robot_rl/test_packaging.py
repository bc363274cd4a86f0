"""The wheel, installed somewhere else and run from a folder with packages of the same names."""

import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from robot_rl.assets import asset_path

ROOT = Path(__file__).resolve().parents[2]


def run(*command: str, cwd: Path, **environment: str) -> str:
    inherited = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
    done = subprocess.run(
        command, cwd=cwd, env={**inherited, **environment}, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("wheel")
    pip = (sys.executable, "-m", "pip", "--disable-pip-version-check")
    run(*pip, "wheel", "-q", "--no-deps", "--no-build-isolation", "-w", str(folder), str(ROOT), cwd=folder)
    (path,) = folder.glob("robot_rl-*.whl")
    return path


@pytest.fixture(scope="module")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    target = tmp_path_factory.mktemp("installed")
    pip = (sys.executable, "-m", "pip", "--disable-pip-version-check")
    run(*pip, "install", "-q", "--no-deps", "--target", str(target), str(wheel), cwd=target)
    return target


def test_wheel_holds_packages_and_data_and_no_tests(wheel: Path) -> None:
    names = set(zipfile.ZipFile(wheel).namelist())
    for package in ("hardware", "envs", "policies", "robot_rl"):
        sources = {str(p.relative_to(ROOT)) for p in (ROOT / package).rglob("*.py")}
        assert sources <= names, f"missing: {sorted(sources - names)}"
    assert "robot_rl/_assets/configs/task/lift.yaml" in names
    assert any(name.startswith("robot_rl/_assets/sim_assets/") for name in names)
    tops = {name.split("/")[0] for name in names}
    assert {top for top in tops if not top.endswith(".dist-info")} == {
        "hardware",
        "envs",
        "policies",
        "robot_rl",
    }
    assert not [name for name in names if "__pycache__" in name or name.endswith((".pyc", ".nbi", ".nbc"))]


@pytest.mark.parametrize("way", ["script", "module"])
def test_it_runs_where_others_have_the_same_names(installed: Path, tmp_path: Path, way: str) -> None:
    for name in ("envs", "configs", "hardware", "policies"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "__init__.py").write_text(f"raise RuntimeError('a foreign {name}')\n")
    command = {
        "script": [sys.executable, str(installed / "bin" / "robot-rl")],
        "module": [sys.executable, "-m", "robot_rl"],
    }[way]
    assert "who collects" in run(*command, cwd=tmp_path, PYTHONPATH=str(installed))
    text = run(
        *command, "collect", "task=can", "--help", cwd=tmp_path, PYTHONPATH=str(installed), COLUMNS="200"
    )
    assert "task.env=PickPlaceCan" in text


def test_a_foreign_configs_folder_beside_the_package_is_not_ours(installed: Path) -> None:
    (installed / "configs").mkdir()
    code = "from robot_rl import asset_path; print(asset_path('configs', 'task'))"
    path = run(sys.executable, "-c", code, cwd=installed, PYTHONPATH=str(installed)).strip()
    assert path == str(installed / "robot_rl" / "_assets" / "configs" / "task")


def test_assets_of_a_checkout() -> None:
    assert asset_path("configs", "task", "lift.yaml") == ROOT / "configs" / "task" / "lift.yaml"
