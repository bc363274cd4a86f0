"""Who may import whom."""

from pathlib import Path

from importlinter import cli

ROOT = Path(__file__).resolve().parent.parent


def test_packages_import_only_what_they_may(monkeypatch) -> None:
    monkeypatch.chdir(ROOT)
    monkeypatch.syspath_prepend(str(ROOT))
    assert cli.lint_imports(config_filename=str(ROOT / "pyproject.toml"), cache_dir=None) == 0
