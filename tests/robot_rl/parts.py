"""Plugin that hides the packages that a part of the installation lacks, in this process and its children.

The part is named by an environment variable; its packages are those of its dependency group.
"""

import os
import sys
import tomllib
from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError, packages_distributions, requires
from pathlib import Path
from typing import Any, ClassVar

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

PART = "ROBOT_RL_TEST_PART"
NOTE = "only a part is installed"
PYPROJECT: dict[str, Any] = tomllib.loads(
    (Path(__file__).parents[2] / "pyproject.toml").read_text(encoding="utf-8")
)


def group(name: str) -> Iterator[str]:
    """Requirements of a dependency group and those that it includes."""
    for line in PYPROJECT["dependency-groups"][name]:
        yield from group(line["include-group"]) if isinstance(line, dict) else (line,)


def installed(lines: Iterator[str], found: set[str]) -> set[str]:
    """Names of packages that these requirements install, with those that they require."""
    for requirement in map(Requirement, lines):
        name = canonicalize_name(requirement.name)
        applies = requirement.marker is None or requirement.marker.evaluate({"extra": ""})
        if name not in found and applies:
            found.add(name)
            try:
                installed(iter(requires(name) or ()), found)
            except PackageNotFoundError:
                continue
    return found


def hidden(part: str) -> set[str]:
    """Modules that a part does not have."""
    there = installed(group(part), set())
    lacking = installed(iter(PYPROJECT["project"]["dependencies"]), set()) - there
    unlisted = {name.replace("-", "_") for name in lacking}  # a wheel need not list its modules
    return unlisted | {
        module
        for module, distributions in packages_distributions().items()
        if not module.startswith("_")
        and not there & {canonicalize_name(name) for name in distributions}
        and lacking & {canonicalize_name(name) for name in distributions}
    }


class Hidden:
    """Import finder that is asked before all others."""

    modules: ClassVar[set[str]] = set()

    @classmethod
    def find_spec(cls, name: str, path: object = None, target: object = None) -> None:
        if name.partition(".")[0] in cls.modules:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)


if part := os.environ.get(PART):
    # The simulated arms use robosuite's files of models, without importing it.
    Hidden.modules = hidden(part) - ({"robosuite"} if part == "robot" else set())
    assert not (found := Hidden.modules & sys.modules.keys()), found
    sys.meta_path.insert(0, Hidden)  # type: ignore[arg-type]
    print(NOTE, file=sys.stderr, flush=True)
