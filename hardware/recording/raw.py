"""Raw dataset: a folder of recorded episodes. One process at a time may write to it, any may read."""

import fcntl
import os
from pathlib import Path
from typing import Final, Self

from robot_rl.files.durable import make_folder, sync
from robot_rl.hardware.recording.episode import OPEN, DamagedEpisode, Episode, EpisodeWriter, write_footer
from robot_rl.hardware.recording.log import read_log
from robot_rl.hardware.recording.records import Footer, Header, Outcome, Received
from robot_rl.hardware.recording.stream_counter import (
    MESSAGE_STREAMS,
    StreamCounter,
    describe_silences,
    sequence_number,
)

_COMMITTED: Final = "episode_"
_LOCK: Final = "recorder.lock"


class RawDataset:
    """Reads a raw dataset. It can be opened after any crash; uncommitted episodes are listed separately."""

    def __init__(self, root: Path) -> None:
        """Open the dataset.

        Raises:
            ValueError: if the folder is not a raw dataset.
        """
        if not (root / _LOCK).is_file():
            what = "is not a raw dataset" if root.exists() else "does not exist"
            raise ValueError(f"{root} {what}; `robot-rl record` creates one")
        self.root = root

    @property
    def episodes(self) -> dict[int, Episode]:
        """Committed episodes by number."""
        return {number: Episode(folder) for number, folder in sorted(_committed(self.root).items())}

    def count(self, *outcomes: Outcome) -> int:
        """Number of committed episodes with one of these outcomes."""
        footers = [episode.footer for episode in self.episodes.values()]
        return sum(footer is not None and footer.outcome in outcomes for footer in footers)

    @property
    def open(self) -> list[Episode]:
        """Episodes that are being recorded, or were when their recorder was killed."""
        return [episode for episode in self._uncommitted() if episode.begun]

    @property
    def headless(self) -> list[Path]:
        """Folders without a header: killed before anything was recorded, or damaged."""
        return [episode.folder for episode in self._uncommitted() if not episode.begun]

    def _uncommitted(self) -> list[Episode]:
        return [Episode(folder) for folder in sorted(self.root.glob(f"{OPEN}*"))]


class RawWriter:
    """Exclusive write access to a raw dataset, held until the context ends."""

    def __init__(self, root: Path) -> None:
        """Lock the dataset; creates the folder if needed.

        Raises:
            ValueError: if another process writes to it, or the folder is not a raw dataset.
            OSError: if it cannot be created.
        """
        if root.is_dir() and any(root.iterdir()) and not (root / _LOCK).exists():
            raise ValueError(f"{root} holds other files; choose another folder")
        make_folder(root)
        self.root = root
        self._lock = os.open(root / _LOCK, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o644)
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(self._lock)
            raise ValueError(f"another recorder writes to {root}; stop it or choose another folder") from None
        # Determined once, so the time of a commit does not grow with the number of episodes.
        self._next = max(_committed(root), default=-1) + 1

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        os.close(self._lock)

    def begin(self, header: Header) -> EpisodeWriter:
        """Begin a new episode.

        Raises:
            OSError: if the disk is full or fails.
        """
        return EpisodeWriter(self.root, header)

    def commit(self, episode: EpisodeWriter, footer: Footer) -> int:
        """Commit an episode; it is on disk when this returns its number.

        Raises:
            OSError: if writing fails; `repair` can try again.
        """
        episode.close(footer)
        return self._name(episode.folder)

    def repair(self) -> tuple[dict[int, Episode], dict[Path, str]]:
        """Commit the episodes of killed recorders, up to their last complete records.

        Nothing is truncated or removed. Episodes without a header or that cannot be read are left unchanged.

        Returns:
            The episodes by their new numbers, and by folder the reasons why others were left.

        Raises:
            OSError: if writing fails; the remaining episodes are unchanged.
        """
        repaired: dict[int, Episode] = {}
        left: dict[Path, str] = {}
        for folder in sorted(self.root.glob(f"{OPEN}*")):
            episode = Episode(folder)
            if not episode.begun:
                continue
            try:
                # A complete footer is valid: the recorder was killed just before the rename.
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
    """Build the footer of an episode whose recorder was killed.

    Raises:
        ValueError: if a record cannot be read or belongs to an unknown stream.
    """
    header = episode.header
    streams = (*MESSAGE_STREAMS, *header.cameras)
    counters = {stream: StreamCounter(header.t) for stream in streams}
    for record in episode.messages():
        if isinstance(record, Received):
            if record.stream not in counters:
                raise DamagedEpisode(f"{episode.folder} is damaged: it has a record of {record.stream!r:.80}")
            counters[record.stream].add(sequence_number(record.stream, record.frame), record.t)
    for camera in header.cameras:
        for record in episode.images(camera):
            counters[camera].add(sequence_number(camera, record.frame), record.t)
    end = max(counter.last for counter in counters.values())
    counts = {stream: counter.end(end) for stream, counter in counters.items()}
    return Footer(
        outcome="recovered",
        t=end,
        # Wall clock of the end, from the episode's duration.
        tw=header.tw + end - header.t,
        counts=counts,
        records={log.name: sum(1 for _ in read_log(log)) for log in episode.logs},
        trouble=(*describe_silences(counts, header.cameras), "its recorder was killed"),
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
