"""The package as users install it: what a wheel and an sdist hold, and that both run in any folder."""

import os
import shutil
import signal
import subprocess
import sys
import sysconfig
import time
import venv
import zipfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest
import uv

from robot_rl.assets import asset_path

ROOT = Path(__file__).resolve().parents[2]
FOLDERS = {
    "robot_rl": "robot_rl",
    "envs": "robot_rl/envs",
    "hardware": "robot_rl/hardware",
    "policies": "robot_rl/policies",
    "configs": "robot_rl/_assets/configs",
    "sim_assets": "robot_rl/_assets/sim_assets",
}
"""Folder of the checkout → where a wheel has its files."""
FOREIGN = ("envs", "policies", "hardware", "configs")
PATIENCE = 120.0
"""Seconds until a test gives up: far more than anything takes."""


def run(*command: str | Path, cwd: Path, **environment: str) -> str:
    """Run a command that must succeed; returns its output."""
    done = subprocess.run(
        command, cwd=cwd, env=_environment(**environment), capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def _environment(**more: str) -> dict[str, str]:
    inherited = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
    return {**inherited, "OMP_NUM_THREADS": "1", **more}


def build(source: Path, target: str, folder: Path) -> Path:
    """Build `wheel` or `sdist` of a source tree as pip does, by the declared build backend."""
    run(sys.executable, "-m", "hatchling", "build", "-t", target, "-d", folder, cwd=source)
    (path,) = folder.glob("robot_rl-*")
    return path


@pytest.fixture(scope="module")
def wheels(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A wheel built from the checkout, and one built from an unpacked sdist of it."""
    folder = tmp_path_factory.mktemp("wheels")
    unpacked = folder / "unpacked"
    unpacked.mkdir()
    # tarfile has no `filter` before Python 3.11.4, and warns without one from 3.12 on.
    run("tar", "-xf", build(ROOT, "sdist", folder / "sdist"), "--strip-components=1", cwd=unpacked)
    return {
        "wheel": build(ROOT, "wheel", folder / "from_tree"),
        "sdist": build(unpacked, "wheel", folder / "from_sdist"),
    }


@dataclass
class Installation:
    """A Python that has robot-rl, and the folder of its `robot_rl` package."""

    python: Path
    package: Path

    def robot_rl(self, *arguments: str, cwd: Path, **environment: str) -> str:
        return run(self.python, "-m", "robot_rl", *arguments, cwd=cwd, **environment)


@pytest.fixture(scope="module")
def install(
    wheels: dict[str, Path], tmp_path_factory: pytest.TempPathFactory
) -> Callable[[str], Installation]:
    """Installs into a new virtual environment; `editable` is the one that runs the tests."""
    made = {"editable": Installation(Path(sys.executable), ROOT / "robot_rl")}

    def get(kind: str) -> Installation:
        if kind not in made:
            made[kind] = _install(wheels[kind], tmp_path_factory.mktemp(kind))
        return made[kind]

    return get


def _install(wheel: Path, folder: Path) -> Installation:
    venv.create(folder, symlinks=True)
    python = folder / "bin" / "python"
    site = Path(run(python, "-c", "import site; print(site.getsitepackages()[0])", cwd=folder).strip())
    # The dependencies of this environment, but not its link to the checkout.
    standard = {sysconfig.get_path("stdlib"), sysconfig.get_path("platstdlib")}
    others = [p for p in sys.path if Path(p).is_dir() and Path(p).resolve() != ROOT and p not in standard]
    (site / "dependencies.pth").write_text("\n".join(others))
    options = ("--quiet", "--offline", "--no-deps", "--link-mode=copy")
    run(uv.find_uv_bin(), "pip", "install", *options, "--python", python, wheel, cwd=folder)
    return Installation(python, site / "robot_rl")


def _copy_compiled(target: Path) -> None:
    """Give an installation what numba has compiled for the checkout, which would take it a minute.

    Numba knows a source file by its size and time.
    """
    source = ROOT / "envs" / "compiled"
    for path in source.glob("*.py"):
        os.utime(target / path.name, ns=(path.stat().st_atime_ns, path.stat().st_mtime_ns))
    not_numbas = shutil.ignore_patterns("*.pyc")
    shutil.copytree(source / "__pycache__", target / "__pycache__", ignore=not_numbas, dirs_exist_ok=True)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with foreign packages, which raise when they are imported."""
    for name in FOREIGN:
        (tmp_path / name).mkdir()
        (tmp_path / name / "__init__.py").write_text(f"raise RuntimeError('a foreign {name}')\n")
    return tmp_path


FULL = pytest.mark.full
# Another test says that the wheel from the sdist has the same files.
INSTALLATIONS = ("wheel", pytest.param("sdist", marks=FULL), "editable")


def test_a_wheel_has_every_file_once_and_occupies_one_name(wheels: dict[str, Path]) -> None:
    names = zipfile.ZipFile(wheels["wheel"]).namelist()
    files = [name for name in names if ".dist-info/" not in name]
    assert len(set(names)) == len(names)
    expected = {
        f"{target}/{path.relative_to(ROOT / folder)}"
        for folder, target in FOLDERS.items()
        for path in (ROOT / folder).rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }
    assert set(files) == expected
    assert "robot_rl/envs/__init__.py" in files


def test_a_wheel_from_an_sdist_has_the_same_files(wheels: dict[str, Path]) -> None:
    def contents(path: Path) -> dict[str, int]:
        return {info.filename: info.CRC for info in zipfile.ZipFile(path).infolist()}

    assert contents(wheels["sdist"]) == contents(wheels["wheel"])


@pytest.mark.parametrize("kind", INSTALLATIONS)
def test_commands_run_beside_foreign_packages(
    install: Callable[[str], Installation], folder: Path, kind: str
) -> None:
    installed = install(kind)
    assert "usage: robot-rl" in installed.robot_rl(cwd=folder)
    if kind == "wheel":
        said = installed.robot_rl("collect", "task=can", "--help", cwd=folder, COLUMNS="200")
        assert "task.env=PickPlaceCan" in said
    script = installed.python.with_name("robot-rl")
    assert "usage: robot-rl" in run(script, cwd=folder)


@pytest.mark.parametrize("kind", INSTALLATIONS)
def test_it_is_the_installed_package_that_runs(
    install: Callable[[str], Installation], folder: Path, kind: str
) -> None:
    installed = install(kind)
    names = ("envs", "hardware", "policies")
    code = "from sys import argv; from importlib.util import find_spec as find; "
    code += "print(*(find(f'robot_rl.{name}').submodule_search_locations[0] for name in argv[1:]))"
    paths = run(installed.python, "-c", code, *names, cwd=folder).split()
    assert paths == [str(installed.package / name) for name in names]


PATIENT = """
from functools import partial
from robot_rl.hardware.cameras import camera_set
from robot_rl.hardware.cameras.settings import MonitorLimits
camera_set.MonitorLimits = partial(MonitorLimits, start_ms=90_000, stall_ms=20_000)
"""
"""A plugin: a busy machine's cameras are not started again."""


@pytest.mark.parametrize(
    "kind", ["wheel", *(pytest.param(kind, marks=FULL) for kind in ("sdist", "editable"))]
)
def test_camera_and_recorder_processes_start_beside_foreign_packages(
    install: Callable[[str], Installation], folder: Path, kind: str
) -> None:
    installed = install(kind)
    (folder / "patient.py").write_text(PATIENT)
    address = f"address=ipc://{folder / 'r'}"
    options = ("driver=sim_panda", "cameras=[front]", "plugins=[patient]", address)
    with (folder / "server.log").open("w") as log:
        server = subprocess.Popen(
            [installed.python, "-m", "robot_rl", "robot", *options],
            cwd=folder,
            env=_environment(),
            stdout=log,
            stderr=subprocess.STDOUT,
        )
    try:
        _wait_for(lambda: "session" in (folder / "server.log").read_text(), server)
        _record_until_images(installed, folder, address)
    finally:
        server.send_signal(signal.SIGTERM)
        assert server.wait(PATIENCE) == 0, (folder / "server.log").read_text()


def _record_until_images(installed: Installation, folder: Path, address: str) -> None:
    """Record until an episode has images; the first ones may be over before the camera has started."""
    command = (installed.python, "-m", "robot_rl", "record", address, "out=x.raw", "seconds=0.5")
    said = ""
    deadline = time.monotonic() + PATIENCE
    while time.monotonic() < deadline:
        done = subprocess.run(
            command, cwd=folder, env=_environment(), capture_output=True, text=True, check=False
        )
        if any(path.stat().st_size > 10_000 for path in folder.glob("x.raw/episode_*/front.images")):
            assert done.returncode == 0, done.stderr
            return
        # It waits for a camera for 20 s.
        said = done.stdout + done.stderr
    raise AssertionError(f"no image was recorded: {said}")


def _wait_for(condition: Callable[[], bool], process: subprocess.Popen[bytes]) -> None:
    deadline = time.monotonic() + PATIENCE
    while not condition():
        assert process.poll() is None, f"the server ended with exit code {process.returncode}"
        assert time.monotonic() < deadline, "the server did not start"
        time.sleep(0.05)


@pytest.mark.full
@pytest.mark.parametrize("kind", INSTALLATIONS)
def test_a_policy_is_evaluated_beside_foreign_packages(
    install: Callable[[str], Installation], base_run: Path, folder: Path, kind: str
) -> None:
    installed = install(kind)
    if kind != "editable":
        _copy_compiled(installed.package / "envs" / "compiled")
    options = (f"policy={base_run}", "episodes=2", "num_envs=2", "out=results", "device=cpu")
    out = installed.robot_rl("eval", *options, cwd=folder)
    assert "2 episodes" in out
    assert (folder / "results" / "summary.json").is_file()


def test_assets_of_an_installed_package_are_its_own(install: Callable[[str], Installation]) -> None:
    installed = install("wheel")
    beside = installed.package.with_name("configs")
    beside.mkdir()
    code = "from robot_rl import asset_path; print(asset_path('configs', 'task'))"
    path = run(installed.python, "-c", code, cwd=installed.package.parent).strip()
    assert path == str(installed.package / "_assets" / "configs" / "task")
    beside.rmdir()


def test_assets_of_a_checkout() -> None:
    assert asset_path("configs", "task", "lift.yaml") == ROOT / "configs" / "task" / "lift.yaml"
