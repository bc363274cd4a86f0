"""Checks of this machine's installation; each suggests a fix for its problem."""

import os
import re
import shutil
import sys
import tempfile
import tomllib
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from importlib import import_module, metadata
from pathlib import Path
from typing import Any

from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet

from robot_rl.assets import asset_path
from robot_rl.graphics import LIBRARIES, Trial, try_backend

_NEEDED_BYTES = 2 * 1024**3
_MODULES = {
    "franky-control": "franky",
    "hydra-core": "hydra",
    "opencv-python": "cv2",
    "pillow": "PIL",
    "pyopengl": "OpenGL",
    "pyyaml": "yaml",
    "pyzmq": "zmq",
    "ur_rtde": "rtde_control",
}
"""Module names that differ from their package's name."""
_SYSTEM_PACKAGES = {
    "libusb": "libusb-1.0-0",
    "libGL.": "libgl1",
    "libEGL": "libegl1",
    "libOSMesa": "libosmesa6",
    "libgthread": "libglib2.0-0",
    "libglib": "libglib2.0-0",
}
"""Debian package of each shared library that a Python package may need."""


@dataclass(frozen=True)
class Check:
    """Result of one check."""

    name: str
    ok: bool
    detail: str
    fix: str = ""
    """Command that fixes the problem."""
    known: bool = True
    """Whether it could be determined; an unknown result is not a failure."""


def all_checks(runs: Path) -> Iterable[Check]:
    """Run all checks one by one, since some take seconds."""
    # Read first, since importing robosuite changes it.
    backend = os.environ.get("MUJOCO_GL", "")
    yield check_python(".".join(map(str, sys.version_info[:3])), supported_pythons())
    for requirement in requirements():
        yield check_package(requirement)
    yield check_device()
    yield check_rendering(backend, tuple(LIBRARIES))
    yield check_writable(runs)
    yield check_disk(runs, shutil.disk_usage(existing_parent(runs)).free)
    yield check_cores(available_cores())


def requirements() -> list[Requirement]:
    """Required packages on this platform."""
    try:
        lines = metadata.requires("robot-rl") or []
    except metadata.PackageNotFoundError:
        lines = _project()["dependencies"]
    found = [Requirement(line) for line in lines]
    return [r for r in found if r.marker is None or r.marker.evaluate({"extra": ""})]


def supported_pythons() -> SpecifierSet:
    """Supported Python versions."""
    try:
        text = metadata.metadata("robot-rl")["Requires-Python"]
    except metadata.PackageNotFoundError:
        text = _project()["requires-python"]
    return SpecifierSet(text)


def check_python(version: str, supported: SpecifierSet) -> Check:
    """Check that this Python version is supported."""
    if version in supported:
        return Check("python", True, version)
    # `make` finds or downloads a supported one.
    return Check("python", False, f"{version}, but {supported} is needed", "rm -r .venv && make setup")


def check_package(
    requirement: Requirement,
    version_of: Callable[[str], str] = metadata.version,
    importer: Callable[[str], object] = import_module,
) -> Check:
    """Check that a package is installed in the required version and can be imported."""
    name = requirement.name
    # --no-deps: pip would otherwise downgrade numpy for robosuite and upgrade other packages.
    install = f"{sys.executable} -m pip install --no-deps '{name}{requirement.specifier}'"
    try:
        version = version_of(name)
    except metadata.PackageNotFoundError:
        return Check(name, False, "not installed", install)
    if not requirement.specifier.contains(version, prereleases=True):
        return Check(name, False, f"{version}, but {requirement.specifier} is needed", install)
    try:
        importer(_MODULES.get(name, name))
    except Exception as error:
        reason = " ".join(str(error).split())
        return Check(name, False, f"{version} cannot be imported: {reason}", _fix_import(reason, install))
    return Check(name, True, version)


def check_device() -> Check:
    """Check that torch computes, on a GPU if available."""
    import torch

    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    name = (
        torch.cuda.get_device_name() if device.type == "cuda" else f"CPU, {torch.get_num_threads()} threads"
    )
    ones = torch.ones(64, 64, device=device)
    if not torch.equal(ones @ ones, 64 * ones):
        return Check(
            "torch device", False, f"{name} multiplies matrices wrongly", "export CUDA_VISIBLE_DEVICES="
        )
    if device.type == "cpu" and shutil.which("nvidia-smi"):
        name += " (there is a GPU, but this torch cannot use it)"
    return Check("torch device", True, name)


def check_rendering(
    chosen: str, backends: Sequence[str], trial: Callable[[str], Trial] = try_backend
) -> Check:
    """Check that MuJoCo renders correctly with the backend in `MUJOCO_GL`."""
    tried = {name: trial(name) for name in dict.fromkeys(filter(None, (chosen, *backends)))}
    working = [name for name, result in tried.items() if result.problem is None]
    if chosen in working:
        others = [name for name in working if name != chosen]
        also = f"; {', '.join(others)} works too" if others else ""
        return Check("rendering", True, f"{chosen}, {tried[chosen].milliseconds:.1f} ms a frame{also}")
    problem = tried[chosen].problem if chosen else "neither libEGL nor libOSMesa is here"
    fix = "sudo apt-get install -y libegl1 libgl1 libosmesa6"
    if working:
        fix = f"export MUJOCO_GL={working[0]}"
    return Check("rendering", False, f"{chosen or 'no backend'}: {problem}", fix)


def check_writable(folder: Path) -> Check:
    """Check that the folder for runs is writable."""
    parent = existing_parent(folder)
    try:
        with tempfile.NamedTemporaryFile(dir=parent) as file:
            file.write(b"robot-rl")
            file.flush()
    except OSError as error:
        fix = f"sudo chown $(id -un) {parent.resolve()}   (or runs_dir=<another folder>)"
        return Check("runs folder", False, f"{parent.resolve()} cannot be written: {error.strerror}", fix)
    return Check("runs folder", True, str(folder.resolve()))


def check_disk(folder: Path, free: int) -> Check:
    """Check the free disk space for runs."""
    detail = f"{free / 1024**3:.1f} GiB free"
    if free < _NEEDED_BYTES:
        where = existing_parent(folder).resolve()
        fix = f"free some space on the disk of {where}   (or runs_dir=<another folder>)"
        return Check("disk", False, f"{detail}, {_NEEDED_BYTES / 1024**3:.0f} GiB are needed", fix)
    return Check("disk", True, detail)


def check_cores(cores: int) -> Check:
    """Report the number of cores; one is enough, but slow."""
    return Check(
        "cores", True, f"{cores}" + (", so training and simulation take turns" if cores == 1 else "")
    )


def available_cores() -> int:
    """Number of cores available to this process."""
    affinity = getattr(os, "sched_getaffinity", None)
    return len(affinity(0)) if affinity else os.cpu_count() or 1


def existing_parent(folder: Path) -> Path:
    """The folder, or its nearest existing parent."""
    while not folder.is_dir():
        folder = folder.absolute().parent
    return folder


def _project() -> dict[str, Any]:
    """Table `project` of the checkout's pyproject.toml."""
    return tomllib.loads(asset_path("pyproject.toml").read_text(encoding="utf-8"))["project"]


def _fix_import(reason: str, install: str) -> str:
    if "MUJOCO_GL" in reason:
        return "unset MUJOCO_GL"
    # The name of the library ends at its ".so".
    for library in re.findall(r"[\w.+-]+\.so[\w.]*", reason):
        for start, package in _SYSTEM_PACKAGES.items():
            if library.startswith(start):
                return f"sudo apt-get install -y {package}"
    if "No module named" in reason:
        return install.replace("--no-deps ", "")
    return install.replace("pip install", "pip install --force-reinstall")
