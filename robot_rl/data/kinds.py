"""Detects which kind of dataset is at a path."""

from pathlib import Path
from typing import Final, Literal

Kind = Literal["dataset", "raw", "robomimic", "lerobot"]
NAMES: Final[dict[Kind, str]] = {
    "dataset": "dataset",
    "raw": "recordings",
    "robomimic": "robomimic HDF5 file",
    "lerobot": "LeRobotDataset",
}
_WHAT: Final[dict[Kind, str]] = {
    "raw": "a folder of recordings",
    "robomimic": "a robomimic HDF5 file",
    "lerobot": "a LeRobotDataset",
}
HDF5_SUFFIXES: Final = (".hdf5", ".h5")
_HDF5: Final = b"\x89HDF\r\n\x1a\n"


def kind_of(path: Path) -> Kind:
    """Kind of the dataset at a path.

    Raises:
        ValueError: if there is nothing, or no dataset.
    """
    if not path.exists():
        raise ValueError(
            f"{path} does not exist; `robot-rl collect` or `robot-rl data derive` makes a dataset"
        )
    if path.is_file():
        with path.open("rb") as file:
            if file.read(len(_HDF5)) == _HDF5:
                return "robomimic"
        raise ValueError(f"{path} is a file, and no HDF5: give a dataset's folder, or robomimic's file")
    if (path / "recorder.lock").is_file():
        return "raw"
    if (path / "meta" / "info.json").is_file():
        return "lerobot"
    if (path / ".zgroup").is_file() or (path / "zarr.json").is_file() or (path / ".zarray").is_file():
        return "dataset"
    raise ValueError(
        f"{path} is no dataset: it has none of .zgroup (a dataset of this program), recorder.lock "
        "(recordings) or meta/info.json (LeRobot)"
    )


def how_to_convert(path: Path) -> str:
    """Advice for a user who gave something else where a dataset of this program is needed."""
    try:
        kind = kind_of(path)
    except ValueError as error:
        return str(error)
    if kind == "dataset":
        return (
            f"{path} is not a dataset: it is zarr without the groups data/ and meta/, of another program "
            "or damaged; copy or collect it again"
        )
    command, argument = ("derive", "raw") if kind == "raw" else ("convert", "dataset")
    made = path.with_suffix(".zarr")
    return (
        f"{path} is no dataset, but {_WHAT[kind]}: make one with "
        f"`robot-rl data {command} {argument}={path} out={made}`"
    )
