"""The page about adding a robot, followed to the letter in a copy of the tree."""

import ast
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from robot_rl.hardware.robot_file import load_robot

ROOT = Path(__file__).resolve().parents[3]
PAGE = ROOT / "docs" / "add_your_robot.md"
_BLOCK = re.compile(r"^```(\w+)([^\n]*)\n(.*?)^```$", re.DOTALL | re.MULTILINE)


def _replace_class(text: str, name: str, replacement: str) -> str:
    (found,) = [node for node in ast.parse(text).body if isinstance(node, ast.ClassDef) and node.name == name]
    lines = text.splitlines(keepends=True)
    assert found.end_lineno is not None
    return "".join([*lines[: found.lineno - 1], replacement, *lines[found.end_lineno :]])


def _put_inside(text: str, name: str, entry: str) -> str:
    """As the first entry of a dictionary."""
    opened = re.search(rf"^{name}\b.*\{{\n", text, re.MULTILINE)
    assert opened, f"there is no {name}"
    return text[: opened.end()] + entry + text[opened.end() :]


def _follow(tree: Path, language: str, info: str, body: str) -> str:
    """Do what a block of the page says. Returns what a command printed."""
    where = dict(part.split("=", 1) for part in shlex.split(info))
    if language == "sh":
        words = shlex.split(body)
        words[0] = sys.executable if words[0] == "python" else words[0]
        done = subprocess.run(words, cwd=tree, capture_output=True, text=True, timeout=600)
        assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
        return done.stdout
    if "file" in where:
        path = tree / where["file"]
        if "replaces" in where:
            body = _replace_class(path.read_text(), where["replaces"], body)
        elif "inside" in where:
            body = _put_inside(path.read_text(), where["inside"], body)
        path.write_text(body)
    return ""


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """What a user has."""
    for name in ("hardware", "configs/robot", "tests/hardware"):
        shutil.copytree(ROOT / name, tmp_path / name, ignore=shutil.ignore_patterns("__pycache__"))
    skip = shutil.ignore_patterns("__pycache__")
    shutil.copytree(ROOT / "robot_rl", tmp_path / "robot_rl", symlinks=True, ignore=skip)
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    return tmp_path


def test_who_follows_the_page_has_a_driver_that_passes_the_suite(tree: Path) -> None:
    blocks = _BLOCK.findall(PAGE.read_text(encoding="utf-8"))
    assert [language for language, _, _ in blocks] == [
        "sh",
        "python",
        "python",
        "yaml",
        "xml",
        "python",
        "sh",
        "text",
    ]
    said = [_follow(tree, *block) for block in blocks]
    passed = re.search(r"(\d+) passed, (\d+) skipped", said[6])
    assert passed, said[6]
    # Skipped are the gripper that it has not, and the error that nobody can give it.
    assert int(passed[1]) >= 15
    assert int(passed[2]) == 2


def test_the_robot_of_the_page_is_one(tree: Path) -> None:
    blocks = _BLOCK.findall(PAGE.read_text(encoding="utf-8"))
    for language, info, body in blocks:
        if language == "yaml":
            _follow(tree, language, info, body)
    config = load_robot(tree / "configs" / "robot" / "my_arm.yaml")
    assert config.options["model"] == "my_arm.xml"
    assert config.folder == tree / "configs" / "robot"


def test_the_template_has_no_other_blanks_than_the_page_fills() -> None:
    text = (ROOT / "hardware" / "drivers" / "template.py").read_text()
    blank = {
        node.name
        for node in ast.parse(text).body
        if isinstance(node, ast.ClassDef) and "NotImplementedError" in ast.unparse(node)
    }
    assert blank == {"Connection"}
