"""A raw dataset: a folder of episodes. One process at a time writes to it, anybody may read."""

import fcntl
import os
from pathlib import Path
from types import TracebackType
from typing import Final, Self

from robot_rl.hardware.durable import make_folder, sync
from robot_rl.hardware.recording.episode import OPEN, DamagedEpisode, Episode, EpisodeWriter, write_footer
from robot_rl.hardware.recording.log import read_log
from robot_rl.hardware.recording.records import Footer, Header, Received
from robot_rl.hardware.recording.stream_counter import (
    MESSAGE_STREAMS,
    StreamCounter,
    describe_reconnectors,
    sequence_number,
)

_COMMITTED: Final = "episode_"
_LOCK: Final = "recorder.lock"


class RawDataset:
    """A raw dataset to be read. It opens whatever was killed when: what is not committed is no episode."""

    def __init__(self, root: Path) -> None:
        """Open it.

        Raises:
            ValueError: there is none.
        """
        if not (root / _LOCK).is_file():
            what = "is no raw dataset" if root.exists() else "does not exist"
            raise ValueError(f"{root} {what}; `robot-rl record` makes one")
        self.root = root

    @property
    def episodes(self) -> dict[int, Episode]:
        """The committed ones by their numbers."""
        return {number: Episode(folder) for number, folder in sorted(_committed(self.root).items())}

    @property
    def open(self) -> list[Episode]:
        """Those that are being recorded, or were when their recorder was killed."""
        return [episode for episode in self._uncommitted() if episode.begun]

    @property
    def headless(self) -> list[Path]:
        """Folders without a header: killed before anything was recorded, or damaged."""
        return [episode.folder for episode in self._uncommitted() if not episode.begun]

    def _uncommitted(self) -> list[Episode]:
        return [Episode(folder) for folder in sorted(self.root.glob(f"{OPEN}*"))]


class RawWriter:
    """The right to write to a raw dataset, until the end of the with statement."""

    def __init__(self, root: Path) -> None:
        """Take it; the folder is made if there is none.

        Raises:
            ValueError: somebody else writes to it, or it is something else.
            OSError: it cannot be made.
        """
        if root.is_dir() and any(root.iterdir()) and not (root / _LOCK).exists():
            raise ValueError(f"{root} holds something else; choose another folder")
        make_folder(root)
        self.root = root
        self._lock = os.open(root / _LOCK, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o644)
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(self._lock)
            raise ValueError(f"another recorder writes to {root}; end it, or choose another folder") from None
        # Looked at once: a commit takes as long among many episodes as among few.
        self._next = max(_committed(root), default=-1) + 1

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        os.close(self._lock)

    def begin(self, header: Header) -> EpisodeWriter:
        """A new episode.

        Raises:
            OSError: the disk is full or fails.
        """
        return EpisodeWriter(self.root, header)

    def commit(self, episode: EpisodeWriter, footer: Footer) -> int:
        """End it; it counts when this returns its number.

        Raises:
            OSError: the disk does not take it; `repair` will try again.
        """
        episode.close(footer)
        return self._name(episode.folder)

    def repair(self) -> tuple[dict[int, Episode], dict[Path, str]]:
        """Commit what killed recorders have left, up to the last whole records.

        Nothing is cut off or removed. What has no header is left as it is: its recorder was killed before
        anything was recorded, or it is damaged. So is an episode that cannot be read, which stops no other.

        Returns:
            The episodes by their new numbers, and why others stay as they are by their folders.

        Raises:
            OSError: the disk does not take it; what was not repaired stays as it is.
        """
        repaired: dict[int, Episode] = {}
        left: dict[Path, str] = {}
        for folder in sorted(self.root.glob(f"{OPEN}*")):
            episode = Episode(folder)
            if not episode.begun:
                continue
            try:
                # A whole footer was written by a recorder that was killed before the rename: it holds.
                footer = None if episode.footer else recovered_footer(episode)
            except ValueError as error:
                left[folder] = str(error)
                continue
            if footer:
                write_footer(folder, footer)
            number = self._name(folder)
            repaired[number] = Episode(_path(self.root, number))
        return repaired, left

    def _name(self, folder: Path) -> int:
        number, self._next = self._next, self._next + 1
        folder.rename(_path(self.root, number))
        sync(self.root)
        return number


def recovered_footer(episode: Episode) -> Footer:
    """What can be said of an episode whose recorder was killed.

    Raises:
        ValueError: a record cannot be read, or is of a stream that its header does not name.
    """
    header = episode.header
    streams = (*MESSAGE_STREAMS, *header.cameras)
    counters = {stream: StreamCounter(header.t) for stream in streams}
    for record in episode.messages():
        if isinstance(record, Received):
            if record.stream not in counters:
                raise DamagedEpisode(f"{episode.folder} is damaged: it has a record of {record.stream!r:.80}")
            counters[record.stream].take(sequence_number(record.stream, record.frame), record.t)
    for camera in header.cameras:
        for record in episode.images(camera):
            counters[camera].take(sequence_number(camera, record.frame), record.t)
    end = max(counter.last for counter in counters.values())
    counts = {stream: counter.end(end) for stream, counter in counters.items()}
    return Footer(
        outcome="recovered",
        t=end,
        # The recorder is gone: its wall clock is told by how long the episode was.
        tw=header.tw + end - header.t,
        counts=counts,
        records={log.name: sum(1 for _ in read_log(log)) for log in episode.logs},
        trouble=(*describe_reconnectors(counts, header.cameras), "its recorder was killed"),
    )


def _path(root: Path, number: int) -> Path:
    return root / f"{_COMMITTED}{number:06d}"


def _committed(root: Path) -> dict[int, Path]:
    names = ((entry.name, entry.path) for entry in os.scandir(root))
    return {
        int(name.removeprefix(_COMMITTED)): Path(path)
        for name, path in names
        if name.startswith(_COMMITTED) and name.removeprefix(_COMMITTED).isdecimal()
    }
