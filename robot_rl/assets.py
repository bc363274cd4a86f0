"""Where the files that are not Python live: `configs/` and `sim_assets/`."""

from pathlib import Path

_PACKAGE = Path(__file__).resolve().parent


def asset_path(*parts: str) -> Path:
    """Path of a shipped file, e.g. `asset_path("configs", "task", "lift.yaml")`.

    A wheel carries the files inside this package; a checkout has them beside it. The package comes
    first, so that somebody else's `configs/` beside an installed `robot_rl` is never taken for ours.
    """
    packaged = _PACKAGE / "_assets"
    root = packaged if packaged.is_dir() else _PACKAGE.parent
    return root.joinpath(*parts)


def own_or_asset(*parts: str) -> Path:
    """The file of that name in the current folder, where the user's own are; else the shipped one."""
    own = Path(*parts)
    return own if own.exists() else asset_path(*parts)
