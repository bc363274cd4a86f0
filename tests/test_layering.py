"""No circles of imports, and no imports of the checkout's own folders; `make lint` checks the layers."""

import subprocess
import sys
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import grimp
import pytest

ROOT = Path(__file__).resolve().parent.parent


def import_cycle(package: str) -> list[str]:
    """Modules that import each other in a circle, in functions too, but not under `TYPE_CHECKING`."""
    graph = grimp.build_graph(package, exclude_type_checking_imports=True, cache_dir=None)
    sorter = TopologicalSorter(
        {module: graph.find_modules_directly_imported_by(module) for module in graph.modules}
    )
    try:
        sorter.prepare()
    except CycleError as error:
        return error.args[1]
    return []


def test_no_files_import_each_other_in_a_circle(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(ROOT))
    assert import_cycle("robot_rl") == []


def test_the_search_finds_a_circle(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.syspath_prepend(str(tmp_path))
    for name, text in {
        "typed": "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from typed.b import f\n",
        "circle": "def g():\n    from circle.b import f\n",
    }.items():
        (tmp_path / name).mkdir()
        (tmp_path / name / "__init__.py").touch()
        (tmp_path / name / "a.py").write_text(text)
        (tmp_path / name / "b.py").write_text(f"from {name}.a import g\n\ndef f(): ...\n")
    assert import_cycle("typed") == []
    assert set(import_cycle("circle")) == {"circle.a", "circle.b"}


@pytest.mark.parametrize("name", ["envs", "hardware", "policies"])
def test_a_folder_of_the_checkout_is_not_imported_by_its_bare_name(name: str) -> None:
    """It would be found in a checkout, and by tests, but not in an install."""
    for text in (f"import {name}\n", f"from {name} import x\n", f"import {name}.x\n"):
        command = [sys.executable, "-m", "ruff", "check", "--select=TID251", "--stdin-filename=robot_rl/x.py"]
        done = subprocess.run([*command, "-"], cwd=ROOT, input=text, capture_output=True, text=True)
        assert done.returncode == 1, done.stdout + done.stderr
        assert f"import robot_rl.{name}" in done.stdout
