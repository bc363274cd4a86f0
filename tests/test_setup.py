"""How `make setup` comes to its Python, and what pins the packages for all of them."""

import re
import shutil
import subprocess
import tomllib
from pathlib import Path

import pytest
from packaging.specifiers import SpecifierSet
from packaging.utils import canonicalize_name

ROOT = Path(__file__).resolve().parent.parent
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
BASH = shutil.which("bash") or "/bin/bash"


def program(path: Path, text: str) -> None:
    path.write_text(f"#!{BASH}\n{text}\n")
    path.chmod(0o755)


def interpreter(folder: Path, name: str, version: str) -> Path:
    """A file that says what a Python of this version would."""
    program(folder / name, f'echo "{version} $0"')
    return folder / name


def script(name: str, *arguments: str, path: str, cwd: Path = ROOT) -> subprocess.CompletedProcess[str]:
    command = [BASH, str(ROOT / ".ci" / name), *arguments]
    return subprocess.run(command, cwd=cwd, env={"PATH": path}, capture_output=True, text=True, check=False)


def test_the_newest_supported_python_is_taken(tmp_path: Path) -> None:
    for minor in (10, 11, 13, 15):
        interpreter(tmp_path, f"python3.{minor}", f"3.{minor}")
    assert script("python.sh", path=str(tmp_path)).stdout.strip() == str(tmp_path / "python3.13")


def test_a_second_python_is_another_one(tmp_path: Path) -> None:
    for minor in (11, 13):
        interpreter(tmp_path, f"python3.{minor}", f"3.{minor}")
    assert script("python.sh", "3.13", path=str(tmp_path)).stdout.strip() == str(tmp_path / "python3.11")
    (tmp_path / "python3.11").unlink()
    assert script("python.sh", "3.13", path=str(tmp_path)).returncode == 1


def test_a_name_without_a_python_behind_it_is_passed_over(tmp_path: Path) -> None:
    program(tmp_path / "python3.13", "echo 'no such version' >&2; exit 127")
    interpreter(tmp_path, "python3.11", "3.11")
    assert script("python.sh", path=str(tmp_path)).stdout.strip() == str(tmp_path / "python3.11")


def test_a_supported_python_may_be_called_python3(tmp_path: Path) -> None:
    found = interpreter(tmp_path, "python3", "3.12")
    assert script("python.sh", path=str(tmp_path)).stdout.strip() == str(found)
    interpreter(tmp_path, "python3", "3.10")
    assert script("python.sh", path=str(tmp_path)).returncode == 1


def test_without_a_supported_python_uv_is_asked_for_one(tmp_path: Path) -> None:
    program(tmp_path / "uv", f'echo "$@" > {tmp_path}/asked')
    assert script("managed-python.sh", "somewhere", path=str(tmp_path)).returncode == 0
    asked = (tmp_path / "asked").read_text().split()
    assert asked[0] == "venv"
    assert asked[-1] == "somewhere"
    assert "--managed-python" in asked


def test_a_python_that_uv_cannot_bring_is_asked_of_the_user(tmp_path: Path) -> None:
    program(tmp_path / "uv", "echo 'cannot download' >&2; exit 2")
    done = script("managed-python.sh", "somewhere", path=str(tmp_path))
    assert done.returncode == 1
    assert "make PYTHON=" in done.stderr


NVIDIA = bool(shutil.which("nvidia-smi")) or Path("/proc/driver/nvidia/version").exists()


@pytest.mark.parametrize(
    ("card", "refused", "build"),
    [
        pytest.param(True, "nothing", "the CUDA build, for the NVIDIA driver", id="a card"),
        pytest.param(False, "nothing", "the CPU build, since there is no", id="the index of CPU builds"),
        pytest.param(False, "+cpu", "the CPU build, since there is no", id="PyTorch's own index"),
        pytest.param(False, "+cpu|--torch-backend", "the CUDA build (4 GB more)", id="no CPU build in reach"),
    ],
)
def test_torch_is_the_build_for_the_machines_card_and_which_it_was_is_said(
    card: bool, refused: str, build: str, tmp_path: Path
) -> None:
    if NVIDIA and not card:
        pytest.skip("this machine has an NVIDIA driver")
    (tmp_path / "bin").mkdir()
    program(tmp_path / "bin" / "python", "[ $3 != config ]")
    asked = tmp_path / "asked"
    program(tmp_path / "bin" / "uv", f'echo "$@" >> {asked}; ! [[ "$*" =~ {refused} ]]'.replace("+", "\\+"))
    program(tmp_path / "grep", f'exec {shutil.which("grep")} "$@"')
    program(tmp_path / "dirname", f'exec {shutil.which("dirname")} "$@"')
    if card:
        program(tmp_path / "nvidia-smi", "true")
    done = script("packages.sh", str(tmp_path), path=str(tmp_path))
    assert done.returncode == 0, done.stderr
    assert f"torch: {build}" in done.stdout
    *torch, everything = asked.read_text().splitlines()
    assert everything.endswith("-e .[dev]")
    assert len(torch) == (0 if card else 1 if refused == "nothing" else 2)


def test_all_that_names_the_supported_pythons_names_the_same() -> None:
    supported = SpecifierSet(PROJECT["project"]["requires-python"])
    versions = [f"3.{minor}" for minor in range(30) if f"3.{minor}" in supported]
    classifiers = " ".join(PROJECT["project"]["classifiers"])
    assert re.findall(r"Python :: (3\.\d+)", classifiers) == versions
    tried = re.search(r"for version in (.+);", (ROOT / ".ci" / "python.sh").read_text(encoding="utf-8"))
    assert tried is not None
    assert tried[1].split() == versions[::-1]
    managed = (ROOT / ".ci" / "managed-python.sh").read_text(encoding="utf-8")
    assert f"'{PROJECT['project']['requires-python']}'" in managed
    assert f"Python {versions[0]} to {versions[-1]}" in managed
    assert (
        f"python_version < '3.{len(versions) + int(versions[0][2:])}'"
        in PROJECT["tool"]["uv"]["environments"][0]
    )


def test_one_version_of_each_package_is_pinned_for_all_pythons() -> None:
    lines = (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()
    pins = [line for line in lines if not line.startswith("#")]
    assert all(re.fullmatch(r"[\w.-]+==[\w.]+", pin) for pin in pins)
    names = [canonicalize_name(pin.partition("==")[0]) for pin in pins]
    assert len(set(names)) == len(names)
