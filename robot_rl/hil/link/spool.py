"""Finished episodes on the actor's disk, until the learner has them in a checkpoint."""

import os
from pathlib import Path
from typing import Final

from robot_rl.hardware.durable import make_folder, sync
from robot_rl.hardware.recording.log import LogWriter, read_log
from robot_rl.runs import write_text

_RUN: Final = "run.txt"


class Spool:
    """A folder with a log per episode, which appears by rename; the records are frames of the link."""

    def __init__(self, folder: Path) -> None:
        """Make the folder, or go on in it; what was being written when an actor died is thrown away.

        Raises:
            OSError: it cannot be made.
        """
        make_folder(folder)
        self._folder = folder
        for torn in folder.glob("*.part"):
            torn.unlink()

    @property
    def run(self) -> str:
        """The run whose episodes these are, "" where none has been kept."""
        path = self._folder / _RUN
        return path.read_text().strip() if path.is_file() else ""

    @run.setter
    def run(self, run: str) -> None:
        if run != self.run:
            write_text(self._folder / _RUN, run + "\n")

    @property
    def episodes(self) -> tuple[int, ...]:
        """Those that are here, in order."""
        return tuple(sorted(int(path.stem) for path in self._folder.glob("[0-9]*.log")))

    def put(self, episode: int, frames: list[bytes]) -> None:
        """Keep an episode; it is on the disk then.

        Raises:
            OSError: the disk did not take it.
        """
        building = self._path(episode).with_suffix(".part")
        building.unlink(missing_ok=True)
        log = LogWriter(building)
        try:
            for frame in frames:
                log.append(frame)
            log.sync()
        finally:
            log.close()
        os.replace(building, self._path(episode))
        sync(self._folder)

    def get(self, episode: int) -> list[bytes]:
        """The frames of an episode."""
        return [payload for _, payload in read_log(self._path(episode))]

    def drop(self, before: int) -> None:
        """Episodes before this one are safe elsewhere."""
        for episode in self.episodes:
            if episode < before:
                self._path(episode).unlink()

    def _path(self, episode: int) -> Path:
        return self._folder / f"{episode:08d}.log"
