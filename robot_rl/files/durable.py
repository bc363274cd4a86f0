"""Writes files that survive a power cut: their content is synced to disk before they get their name.

Without syncing, a file may be empty after a power cut, or its name missing from the folder.
"""

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

_REPLACED: Final = ".replaced-"
"""Begin of the name of a folder that is being replaced."""


def sync(path: Path) -> None:
    """Sync a file's content, or the names in a folder, to disk.

    Raises:
        OSError: if it fails.
    """
    opened = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(opened)
    finally:
        os.close(opened)


def sync_tree(path: Path) -> None:
    """Sync a file, or a folder and all its content, to disk.

    Raises:
        OSError: if it fails.
    """
    for inside in path.rglob("*") if path.is_dir() else ():
        if not inside.is_symlink():
            sync(inside)
    sync(path)


def make_folder(path: Path) -> None:
    """Create a folder and its parents, if they do not exist, and sync them.

    Raises:
        OSError: if it fails.
    """
    if path.is_dir():
        return
    make_folder(path.parent)
    path.mkdir(exist_ok=True)
    sync(path.parent)


def write_file(path: Path, content: bytes) -> None:
    """Write a file atomically and sync its name.

    Raises:
        OSError: if it fails; an existing file is unchanged.
    """
    replace_file(path, content)
    sync(path.parent)


def replace_file(path: Path, content: bytes | memoryview) -> None:
    """Write a file atomically without syncing its name; the caller syncs the folder after several files.

    Raises:
        OSError: if it fails; an existing file is unchanged.
    """
    building = path.with_name(f"{path.name}.part")
    try:
        with building.open("wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        os.replace(building, path)
    except BaseException:
        building.unlink(missing_ok=True)
        raise


def publish(building: Path, place: Path) -> None:
    """Sync a file or folder and rename it to its final name `place`.

    Raises:
        OSError: if it fails.
    """
    sync_tree(building)
    os.replace(building, place)
    sync(place.parent)


def restore_replaced(folder: Path) -> None:
    """Bring back what `atomic_directory` was about to replace in a folder when the process was killed."""
    for replaced in folder.glob(f"{_REPLACED}*"):
        final = replaced.with_name(replaced.name.removeprefix(_REPLACED))
        if final.exists():
            shutil.rmtree(replaced)
        else:
            os.replace(replaced, final)


@contextmanager
def atomic_directory(final: Path) -> Iterator[Path]:
    """A temporary folder to write into, which is renamed to `final` when the with block succeeds.

    An existing folder is replaced.
    """
    building = final.with_name(f".building-{final.name}")
    make_folder(final.parent)
    if building.exists():
        shutil.rmtree(building)
    building.mkdir()
    replaced = final.with_name(f"{_REPLACED}{final.name}")
    try:
        yield building
        sync_tree(building)
        if final.exists():
            shutil.rmtree(replaced, ignore_errors=True)
            os.replace(final, replaced)
        os.replace(building, final)
        sync(final.parent)
        if replaced.exists():
            shutil.rmtree(replaced)
    except BaseException:
        shutil.rmtree(building, ignore_errors=True)
        raise


@contextmanager
def atomic_outputs(*places: Path) -> Iterator[list[Path]]:
    """Yield temporary paths that are renamed to `places` at the end, or removed after an error.

    Raises:
        ValueError: if one of them exists already, or two are the same.
    """
    if len(set(places)) < len(places):
        raise ValueError(f"{places[0]} is named twice; choose two paths")
    for place in places:
        if place.exists():
            raise ValueError(f"{place} exists; choose another path, or remove it")
    building = [place.with_name(f".writing-{place.name}") for place in places]
    try:
        for path in building:
            _remove(path)
            make_folder(path.parent)
        yield building
        for path, place in zip(building, places, strict=True):
            publish(path, place)
    finally:
        for path in building:
            _remove(path)


def _remove(path: Path) -> None:
    if path.is_dir():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)
