"""Paths of the data files that are shipped with the package: `configs/` and `sim_assets/`."""

from pathlib import Path

_PACKAGE = Path(__file__).resolve().parent


def asset_path(*parts: str) -> Path:
    """Path of a shipped file, e.g. `asset_path("configs", "task", "lift.yaml")`.

    A wheel has the files inside this package, a checkout beside it. The package is searched first, so that
    a foreign `configs/` beside an installed `robot_rl` is never used.
    """
    packaged = _PACKAGE / "_assets"
    root = packaged if packaged.is_dir() else _PACKAGE.parent
    return root.joinpath(*parts)


def own_or_asset(*parts: str) -> Path:
    """Path of a file in the current folder if it exists there, else of the shipped file."""
    own = Path(*parts)
    return own if own.exists() else asset_path(*parts)
