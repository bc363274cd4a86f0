"""What of a folder would be left after a power cut: content and names that were synced, and no others."""

import os
import stat
from pathlib import Path
from typing import Any

import pytest

_BUILDING = (".building-", ".writing-")
Kept = bytes | dict[str, int]


class Disk:
    """Watches what this process syncs and renames; a rename of what is not on the disk yet fails."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self._kept: dict[int, Kept] = {}
        """By inode: the content of a file, or names and inodes of a folder."""
        self.commits: list[list[str]] = []
        """For each new end of an episode: what a power cut just before would have taken of the dataset."""
        for name in ("fsync", "fdatasync"):
            patch.setattr(os, name, self._sync(getattr(os, name)))
        for name in ("replace", "rename"):
            patch.setattr(os, name, self._rename(getattr(os, name)))

    def lost(self, path: Path) -> list[str]:
        """What a power cut would take now of a file, or of a folder and all that is in it but locks."""
        every = [path, *path.rglob("*")] if path.is_dir() else [path]
        taken = [one for one in every if not one.name.endswith(".lock") and not self._safe(one)]
        return sorted(str(one.relative_to(path.parent)) for one in taken)

    def _safe(self, path: Path) -> bool:
        names = self._kept.get(path.parent.stat().st_ino)
        named = isinstance(names, dict) and names.get(path.name) == path.lstat().st_ino
        return named and (path.is_symlink() or path.is_dir() or self._has_content(path))

    def _has_content(self, path: Path) -> bool:
        return self._kept.get(path.stat().st_ino) == path.read_bytes()

    def _sync(self, real: Any) -> Any:
        def sync(file: int) -> None:
            real(file)
            here = os.fstat(file)
            place = f"/proc/self/fd/{file}"
            if stat.S_ISDIR(here.st_mode):
                self._kept[here.st_ino] = {one.name: one.inode() for one in os.scandir(place)}
            else:
                self._kept[here.st_ino] = Path(place).read_bytes()

        return sync

    def _rename(self, real: Any) -> Any:
        def rename(source: Any, target: Any) -> None:
            place = Path(target)
            # What is being built beside its place has no name to lose yet.
            if not any(part.startswith(_BUILDING) for part in place.parts):
                inside = [Path(source), *Path(source).rglob("*")]
                torn = [one for one in inside if one.is_file() and not self._has_content(one)]
                assert not torn, f"{target} gets its name before {torn} are on the disk"
            if place.parent.name == "episode_ends" and place.name == "0":
                self.commits.append([one for one in self.lost(place.parents[2]) if "episode_ends" not in one])
            real(source, target)

        return rename
