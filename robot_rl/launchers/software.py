"""What a node must have in common with the machine that starts commands on it."""

import hashlib
from collections.abc import Mapping
from functools import cache
from pathlib import Path

import robot_rl
from robot_rl import __version__
from robot_rl.assets import asset_path
from robot_rl.machine import describe_versions


def installed_software() -> dict[str, str]:
    """Versions of what is installed here, and the SHA-256 of this program's files."""
    return {**describe_versions(), "robot-rl": __version__, "code": _code_sha256()}


def check_software(wanted: Mapping[str, str], place: str = "this node") -> None:
    """Check that this machine has the software of another one.

    Raises:
        ValueError: if it has not; says what differs at `place`.
    """
    found = installed_software()
    different = [
        f"{name} is {found.get(name)}, not {wanted.get(name)}"
        for name in sorted(found.keys() | wanted.keys())
        if found.get(name) != wanted.get(name)
    ]
    if different:
        raise ValueError(f"{place} has other software: {'; '.join(different)}; install the same there")


@cache
def _code_sha256() -> str:
    package = Path(robot_rl.__file__).parent
    digest = hashlib.sha256()
    for root, pattern in ((package, "**/*.py"), (Path(asset_path("configs")), "**/*.yaml")):
        # `recurse_symlinks` is of Python 3.13; a checkout links three folders of the package.
        folders = [root, *(path for path in root.iterdir() if path.is_symlink())]
        for path in sorted(path for folder in folders for path in folder.glob(pattern)):
            digest.update(f"{path.relative_to(root)}\0".encode() + path.read_bytes())
    return digest.hexdigest()
