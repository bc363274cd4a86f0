"""What no file may do, and what the files about the program must say truly."""

import ast
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from importlib.metadata import packages_distributions
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from robot_rl import __version__
from robot_rl.training.trackers import TRACKERS

ROOT = Path(__file__).resolve().parent.parent
PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")])
PACKAGES = ("hardware", "envs", "policies", "robot_rl")
SOURCES = sorted(path for package in PACKAGES for path in (ROOT / package).rglob("*.py"))

_UNSAFE_CALLS = {"eval", "exec", "torch.load", "os.system", "yaml.load", "OmegaConf.register_new_resolver"}
_UNSAFE_MODULES = {"pickle", "cloudpickle", "dill", "joblib", "shelve", "marshal"}


def _dotted(node: ast.expr) -> str:
    if isinstance(node, ast.Attribute):
        return f"{_dotted(node.value)}.{node.attr}"
    return node.id if isinstance(node, ast.Name) else "?"


def _unsafe(tree: ast.AST) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Call):
            if _dotted(node.func) in _UNSAFE_CALLS:
                yield f"line {node.lineno}: {_dotted(node.func)}"
            for keyword in node.keywords:
                if keyword.arg == "allow_pickle" and not (
                    isinstance(keyword.value, ast.Constant) and keyword.value.value is False
                ):
                    yield f"line {node.lineno}: allow_pickle"
        elif isinstance(node, ast.Import):
            names = [alias.name.split(".")[0] for alias in node.names]
            yield from (f"line {node.lineno}: {name}" for name in names if name in _UNSAFE_MODULES)
        elif isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] in _UNSAFE_MODULES:
            yield f"line {node.lineno}: {node.module}"


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: str(path.relative_to(ROOT)))
def test_nothing_is_unpickled_or_evaluated(path: Path) -> None:
    assert list(_unsafe(ast.parse(path.read_text(encoding="utf-8")))) == []


def test_the_search_finds_what_it_searches() -> None:
    text = "import pickle\nfrom dill import x\neval('1')\ntorch.load(f)\nnp.load(f, allow_pickle=True)\n"
    assert len(list(_unsafe(ast.parse(text)))) == 5
    assert list(_unsafe(ast.parse("policy.eval()\nnp.load(f, allow_pickle=False)"))) == []


def test_git_ignores_no_source() -> None:
    """A pattern such as `data/` would leave a package out of every clone."""
    if not (ROOT / ".git").exists():
        pytest.skip("not a git checkout")
    names = "\n".join(str(path.relative_to(ROOT)) for path in SOURCES)
    found = subprocess.run(
        ["git", "check-ignore", "--no-index", "--stdin"],
        input=names,
        cwd=ROOT,
        capture_output=True,
        text=True,
    )
    assert found.stdout.split() == []


def _imported(path: Path) -> Iterator[str]:
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name.split(".")[0] for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            yield node.module.split(".")[0]


def test_what_is_imported_is_declared() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    # What only a benchmark, a cluster or a pretrained encoder needs is a separate extra.
    extras = project["optional-dependencies"]
    lines = list(project["dependencies"])
    lines += (line for name in ("bench", "ray", "accelerate", "pretrained") for line in extras[name])
    # Whoever asks for another tracker installs it.
    declared = {canonicalize_name(Requirement(line).name) for line in lines} | set(TRACKERS)
    # Programs for other interpreters import them (robot_rl/policy_server/lerobot_worker.py,
    # envs/external/).
    declared |= {"lerobot", "libero", "msgpack"}
    distributions = packages_distributions()
    modules = {module for path in SOURCES for module in _imported(path)}
    for module in modules - set(PACKAGES) - sys.stdlib_module_names:
        names = {canonicalize_name(name) for name in distributions.get(module, [module])}
        assert names & declared, f"{module} is imported, and none of {sorted(names)} is a dependency"


def test_versions_agree() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert project["version"] == __version__
    lines = (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()
    pairs = [line.split("==") for line in lines if not line.startswith("#")]
    pins = {canonicalize_name(name): version for name, version in pairs}
    extras = [line for lines in project["optional-dependencies"].values() for line in lines]
    requirements = map(Requirement, [*project["dependencies"], *extras])
    for requirement in (other for other in requirements if other.name != project["name"]):
        pin = pins[canonicalize_name(requirement.name)]
        assert requirement.specifier.contains(pin), f"{requirement} does not allow the pin {pin}"


def _prose(page: Path) -> str:
    return re.sub(r"^```.*?^```$", "", page.read_text(encoding="utf-8"), flags=re.DOTALL | re.MULTILINE)


def _sections(page: Path) -> set[str]:
    """Names by which links refer to the headings of a page."""
    headings = re.findall(r"^#+ (.*)$", _prose(page), re.MULTILINE)
    return {re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", PAGES, ids=lambda path: str(path.relative_to(ROOT)))
def test_links_between_pages_and_files_lead_somewhere(page: Path) -> None:
    for link, section in re.findall(r"\]\(([^)#\s]*)(?:#([^)]*))?\)", _prose(page)):
        if ":" not in link:
            target = page.parent / link.replace("\\", "") if link else page
            assert target.exists(), link
            assert not section or section in _sections(target), f"{link}#{section}"


def test_the_index_of_the_docs_has_every_page() -> None:
    index = (ROOT / "docs" / "README.md").read_text(encoding="utf-8")
    folders = (ROOT / "docs", ROOT / "docs" / "measured", ROOT / "docs" / "tutorials")
    pages = [page for folder in folders for page in folder.glob("*.md")]
    names = {str(page.relative_to(ROOT / "docs")) for page in pages} - {"README.md"}
    assert {name for name in names if f"({name})" not in index} == set()
