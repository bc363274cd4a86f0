"""The checks of this machine, with faults put into them."""

import shutil
from importlib import metadata
from pathlib import Path

import numpy as np
import pytest
from packaging.requirements import Requirement

from robot_rl.commands import doctor
from robot_rl.graphics import LIBRARIES, Trial, choose_backend, judge, try_backend
from robot_rl.robot.checks import installation as checks
from robot_rl.robot.checks.installation import Check

MUJOCO = Requirement("mujoco>=3.3,<3.10")


def version(text: str):
    return lambda name: text


def importing(name: str) -> object:
    return None


def failing(message: str):
    def importer(name: str) -> object:
        raise ImportError(message)

    return importer


@pytest.mark.parametrize("version", ["3.11.2", "3.12.3", "3.13.5", "3.14.0"])
def test_every_supported_python_is_well(version: str) -> None:
    assert checks.check_python(version, checks.supported_pythons()).ok


@pytest.mark.parametrize("version", ["3.10.12", "3.15.0"])
def test_other_pythons_are_a_fault(version: str) -> None:
    check = checks.check_python(version, checks.supported_pythons())
    assert not check.ok
    assert "3.11" in check.detail
    assert "make setup" in check.fix


def test_package_in_range() -> None:
    assert checks.check_package(MUJOCO, version("3.9.0"), importing) == Check("mujoco", True, "3.9.0")


@pytest.mark.parametrize("requirement", checks.requirements(), ids=lambda requirement: requirement.name)
def test_each_package_of_a_healthy_machine_is_found(requirement: Requirement) -> None:
    """An import name that the check does not know would be a fault of every machine."""
    check = checks.check_package(requirement)
    assert check.ok, check.detail


def test_package_out_of_range() -> None:
    check = checks.check_package(MUJOCO, version("3.10.0"), importing)
    assert not check.ok
    assert "3.10.0" in check.detail
    # Other packages stay as they are.
    assert "pip install --no-deps 'mujoco<3.10,>=3.3'" in check.fix


def test_package_missing() -> None:
    def missing(name: str) -> str:
        raise metadata.PackageNotFoundError(name)

    check = checks.check_package(MUJOCO, missing, importing)
    assert (check.ok, check.detail) == (False, "not installed")


@pytest.mark.parametrize(
    ("reason", "fix"),
    [
        ("libusb-1.0.so.0: cannot open shared object file", "sudo apt-get install -y libusb-1.0-0"),
        ("libGL.so.1: cannot open shared object file", "sudo apt-get install -y libgl1"),
        ("libgthread-2.0.so.0: cannot open shared object file", "sudo apt-get install -y libglib2.0-0"),
        ("invalid value for environment variable MUJOCO_GL: x", "unset MUJOCO_GL"),
        ("No module named 'foo'", "pip install 'mujoco<3.10,>=3.3'"),
        ("undefined symbol: foo", "pip install --force-reinstall --no-deps"),
    ],
)
def test_package_that_cannot_be_imported(reason: str, fix: str) -> None:
    check = checks.check_package(MUJOCO, version("3.9.0"), failing(reason))
    assert not check.ok
    assert reason in check.detail
    assert fix in check.fix


def test_requirements_name_the_card() -> None:
    names = {requirement.name for requirement in checks.requirements()}
    assert {"torch", "mujoco", "robosuite", "diffusers", "pyzmq", "hydra-core", "zarr"} <= names
    assert not {"pytest", "ruff"} & names


def trials(**problems: str | None):
    return lambda backend: Trial(backend, problems[backend], 10.0)


def test_rendering() -> None:
    both = ("egl", "osmesa")
    assert checks.check_rendering("egl", both, trials(egl=None, osmesa=None)).ok
    check = checks.check_rendering("egl", both, trials(egl="the frame is black", osmesa=None))
    assert (check.ok, check.fix) == (False, "export MUJOCO_GL=osmesa")
    assert "the frame is black" in check.detail
    check = checks.check_rendering("", both, trials(egl="no", osmesa="no"))
    assert check.fix == "sudo apt-get install -y libegl1 libgl1 libosmesa6"


def test_frames() -> None:
    rng = np.random.default_rng(0)
    assert judge(np.zeros((84, 84, 3), np.uint8)) == "the frame is black"
    assert judge(np.full((84, 84, 3), 90, np.uint8)) == "the frame has one colour"
    assert judge(rng.integers(0, 256, (84, 84, 3), np.uint8)) == "the frame is noise"
    ramp = np.repeat(np.arange(84, dtype=np.uint8)[:, None, None], 84, 1).repeat(3, 2)
    assert judge(ramp) == "the frame shows something else than the scene"


def test_a_frame_is_drawn_here() -> None:
    trial = try_backend("egl")
    if trial.problem is not None:
        trial = try_backend("osmesa")
    assert trial.problem is None
    assert trial.milliseconds > 0


def test_a_backend_that_fails() -> None:
    assert "MUJOCO_GL" in (try_backend("nonsense").problem or "")


def test_folder_and_disk(tmp_path: Path) -> None:
    new = tmp_path / "a" / "b"
    assert checks.check_writable(new) == Check("runs folder", True, str(new))
    assert not new.exists()
    assert checks.check_disk(new, shutil.disk_usage(tmp_path).free).name == "disk"
    assert not checks.check_disk(new, 10**9).ok
    if Path("/proc").is_dir():
        check = checks.check_writable(Path("/proc/runs"))
        assert not check.ok
        assert "chown" in check.fix


def test_device_and_cores() -> None:
    assert checks.check_device().ok
    assert checks.check_cores(checks.available_cores()).ok


def test_backend_is_chosen_unless_the_user_has(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MUJOCO_GL", "glfw")
    choose_backend()
    assert checks.os.environ["MUJOCO_GL"] == "glfw"
    monkeypatch.delenv("MUJOCO_GL")
    monkeypatch.setattr("robot_rl.graphics.sys.platform", "linux")
    monkeypatch.setattr("robot_rl.graphics.ctypes.CDLL", lambda name: None)
    choose_backend()
    assert checks.os.environ["MUJOCO_GL"] == next(iter(LIBRARIES))


def test_table_and_exit_code(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    good, bad = Check("python", True, "3.11.7"), Check("disk", False, "full", "rm -r old")
    monkeypatch.setattr(doctor, "all_checks", lambda runs: [good])
    doctor.run(doctor.Config())
    assert capsys.readouterr().out == "ok    python         3.11.7\n\nall is well\n"
    monkeypatch.setattr(doctor, "all_checks", lambda runs: [good, bad])
    with pytest.raises(SystemExit) as exit_:
        doctor.run(doctor.Config())
    assert exit_.value.code == 1
    assert "FAULT disk           full\n      fix:           rm -r old\n" in capsys.readouterr().out
