"""Files that a power cut does not take: on the disk before their names are.

A name that appears before its content may lead to an empty file; one whose folder was not synced may be gone.
"""

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


def sync(path: Path) -> None:
    """Return when the disk has a file's content, or the names in a folder.

    Raises:
        OSError: it failed.
    """
    opened = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(opened)
    finally:
        os.close(opened)


def sync_tree(path: Path) -> None:
    """The same of a file, or of a folder and all that is in it.

    Raises:
        OSError: it failed.
    """
    for inside in path.rglob("*") if path.is_dir() else ():
        if not inside.is_symlink():
            sync(inside)
    sync(path)


def make_folder(path: Path) -> None:
    """Make a folder and those that it is in, if they are not there.

    Raises:
        OSError: it failed.
    """
    if path.is_dir():
        return
    make_folder(path.parent)
    path.mkdir(exist_ok=True)
    sync(path.parent)


def write_file(path: Path, content: bytes) -> None:
    """Write a file that appears whole or not at all, and stays.

    Raises:
        OSError: it failed; what was there is as before.
    """
    replace_file(path, content)
    sync(path.parent)


def replace_file(path: Path, content: bytes | memoryview) -> None:
    """The same, but for the name: it is the caller's to sync the folder, after several files.

    Raises:
        OSError: it failed; what was there is as before.
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
    """Give what was built, a file or a folder, its name, when the disk has all of it.

    Raises:
        OSError: it failed.
    """
    sync_tree(building)
    os.replace(building, place)
    sync(place.parent)


@contextmanager
def atomic_directory(final: Path) -> Iterator[Path]:
    """A folder to write into, which takes its place, on disk, once all of it is written.

    What was in that place is replaced.
    """
    building = final.with_name(f".building-{final.name}")
    make_folder(final.parent)
    if building.exists():
        shutil.rmtree(building)
    building.mkdir()
    try:
        yield building
        if final.exists():
            shutil.rmtree(final)
        publish(building, final)
    except BaseException:
        shutil.rmtree(building, ignore_errors=True)
        raise
