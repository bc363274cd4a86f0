"""Finished episodes on the actor's disk, kept until the learner has them in a checkpoint."""

import os
from pathlib import Path
from typing import Final

from robot_rl.hardware.durable import make_folder, sync
from robot_rl.hardware.recording.log import LogWriter, read_log
from robot_rl.runs import write_text

_RUN: Final = "run.txt"


class Spool:
    """Folder with one log file per episode, written atomically; its records are frames of the link."""

    def __init__(self, folder: Path) -> None:
        """Open the folder, or create it; partly written episodes of a dead actor are deleted.

        Raises:
            OSError: if the folder cannot be created.
        """
        make_folder(folder)
        self._folder = folder
        for partial in folder.glob("*.part"):
            partial.unlink()

    @property
    def run(self) -> str:
        """Id of the run whose episodes these are, "" if it is not known yet."""
        path = self._folder / _RUN
        return path.read_text().strip() if path.is_file() else ""

    @run.setter
    def run(self, run: str) -> None:
        if run != self.run:
            write_text(self._folder / _RUN, run + "\n")

    @property
    def episodes(self) -> tuple[int, ...]:
        """Numbers of the stored episodes, in order."""
        return tuple(sorted(int(path.stem) for path in self._folder.glob("[0-9]*.log")))

    def put(self, episode: int, frames: list[bytes]) -> None:
        """Write an episode; it is on the disk when this returns.

        Raises:
            OSError: if writing fails.
        """
        partial = self._path(episode).with_suffix(".part")
        partial.unlink(missing_ok=True)
        log = LogWriter(partial)
        try:
            for frame in frames:
                log.append(frame)
            log.sync()
        finally:
            log.close()
        os.replace(partial, self._path(episode))
        sync(self._folder)

    def get(self, episode: int) -> list[bytes]:
        """Read the frames of an episode."""
        return [payload for _, payload in read_log(self._path(episode))]

    def drop(self, before: int) -> None:
        """Delete the episodes with a number less than `before`."""
        for episode in self.episodes:
            if episode < before:
                self._path(episode).unlink()

    def _path(self, episode: int) -> Path:
        return self._folder / f"{episode:08d}.log"
