"""Send queue of the actor: ordered, with acknowledgement and retransmission; it never blocks.

Finished episodes are kept on the disk until the learner has them in a checkpoint.
"""

import fcntl
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from robot_rl.files.durable import make_folder, sync
from robot_rl.hardware.clock import MS
from robot_rl.hardware.protocol.large_messages import encode
from robot_rl.hardware.recording.log import LogWriter, read_log
from robot_rl.hil.link.messages import Ack, End, Step, from_actor
from robot_rl.runs import folder_id, write_text

_RUN: Final = "run.txt"
_LOCK: Final = "lock"
_LOCK_POLL: Final = 0.1
_LOCK_PATIENCE: Final = 30.0
"""Time to wait for another process that uses a spool, s; an actor notices a dead learner sooner."""
WINDOW: Final = 64
"""Most records sent and not yet acknowledged; less than a socket's queue holds."""
RESEND_AFTER: Final = 1000 * MS
"""Time without an acknowledgement after which the oldest record is sent again, ns. The records after it
follow once it is acknowledged."""
Position = tuple[int, int]
"""Position of a record: (episode, index in the episode)."""


class Spool:
    """Folder with one log file per episode, written atomically; its records are frames of the link."""

    def __init__(self, folder: Path) -> None:
        """Open the folder, or create it; partly written episodes of a dead actor are deleted.

        Raises:
            OSError: if the folder cannot be created.
        """
        make_folder(folder)
        self._folder = folder
        self.id = folder_id(folder)
        """Id of the spool. Episodes of two spools may have the same numbers."""
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

    def set_aside_damaged(self) -> list[Path]:
        """Rename the files of episodes without their end, which the learner would wait for; returns them."""
        return [self._set_aside(episode) for episode in self.episodes if not self._is_whole(episode)]

    def _is_whole(self, episode: int) -> bool:
        try:
            frames = self.get(episode)
            last = from_actor(frames[-1]) if frames else None
        except ValueError:
            return False
        return isinstance(last, End) and (last.episode, last.index) == (episode, len(frames) - 1)

    def _set_aside(self, episode: int) -> Path:
        path = self._path(episode)
        os.replace(path, damaged := path.with_suffix(".damaged"))
        return damaged

    def drop(self, before: int) -> None:
        """Delete the episodes with a number less than `before`."""
        for episode in self.episodes:
            if episode < before:
                self._path(episode).unlink()

    def _path(self, episode: int) -> Path:
        return self._folder / f"{episode:08d}.log"


@contextmanager
def locked_spool(folder: Path, stop: Callable[[], bool]) -> Iterator[Spool]:
    """The spool in a folder, which no other process can use until the context ends.

    An actor whose learner was killed may still be saving its episode, so another process is waited for.

    Args:
        folder: folder of the spool, created if needed.
        stop: polled while waiting; True ends the wait.

    Raises:
        ValueError: if another process goes on using it.
        OSError: if the folder cannot be created.
    """
    make_folder(folder)
    patience = time.monotonic() + _LOCK_PATIENCE
    with (folder / _LOCK).open("w") as lock:
        while True:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if stop() or time.monotonic() > patience:
                    raise ValueError(f"another actor uses spool={folder}: choose another folder") from None
            time.sleep(_LOCK_POLL)
        yield Spool(folder)


class Outbox:
    """The records of the open episode and of the spooled ones. Times are ns."""

    def __init__(self, spool: Spool) -> None:
        self._spool = spool
        self._open: int | None = None
        self._frames: dict[int, list[bytes]] = {}
        """Frames in memory, by episode: the open episode and the one being sent."""
        self._lengths = {episode: len(spool.get(episode)) for episode in spool.episodes}
        self._wanted: Position = (0, 0)
        self._next: Position = (0, 0)
        self._window = WINDOW
        self._acknowledged_at = 0

    @property
    def spool_id(self) -> str:
        """Id of the spool."""
        return self._spool.id

    @property
    def run(self) -> str:
        """Id of the run whose episodes these are, "" if it is not known yet."""
        return self._spool.run

    @run.setter
    def run(self, run: str) -> None:
        self._spool.run = run

    @property
    def episodes(self) -> tuple[int, ...]:
        """Episodes that can be sent from their first record on."""
        return tuple(sorted(self._lengths))

    @property
    def unacknowledged(self) -> int:
        """Number of records that the learner has not acknowledged."""
        episode, index = self._wanted
        later = sum(length for number, length in self._lengths.items() if number > episode)
        return later + max(0, self._lengths.get(episode, 0) - index)

    def begin(self, episode: int) -> None:
        """Open an episode."""
        assert self._open is None
        self._open = episode
        self._frames[episode] = []
        self._lengths[episode] = 0

    def add(self, record: Step | End) -> None:
        """Append a record to the open episode; an `End` closes the episode and writes it to the disk."""
        episode, frames = record.episode, self._frames[record.episode]
        assert episode == self._open
        assert record.index == len(frames)
        frames.append(encode(record))
        self._lengths[episode] += 1
        if isinstance(record, End):
            self._spool.put(episode, frames)
            self._open = None
            self._free_memory()

    def restart_at(self, position: Position, now: int) -> None:
        """Continue sending at the position that the learner asked for."""
        self._wanted = self._next = position
        self._window, self._acknowledged_at = WINDOW, now

    def acknowledged(self, ack: Ack, now: int) -> None:
        """Handle an acknowledgement of the learner."""
        position = (ack.episode, ack.index)
        if position > self._wanted:
            self._wanted = position
            self._next = max(self._next, position)
            self._window, self._acknowledged_at = WINDOW, now
        checkpointed = [episode for episode in self._lengths if episode < ack.kept]
        for episode in checkpointed:
            del self._lengths[episode]
        if checkpointed:
            self._spool.drop(ack.kept)
        self._free_memory()

    def timed_out(self, now: int) -> bool:
        """Whether sent records have not been acknowledged for too long."""
        return self._next > self._wanted and now - self._acknowledged_at > RESEND_AFTER

    def due(self, now: int) -> Iterator[bytes]:
        """Frames to send now; each counts as sent when the next one is requested."""
        if self._next == self._wanted:
            self._acknowledged_at = now
        elif self.timed_out(now):
            # A broken connection loses frames silently. One record tests whether the learner answers.
            self._next, self._window, self._acknowledged_at = self._wanted, 1, now
        while (frame := self._frame(self._next)) is not None:
            yield frame
            self._next = self._after(self._next)

    def _frame(self, position: Position) -> bytes | None:
        """The frame at a position; None if it does not exist yet or the window is full."""
        position = self._normalized(position)
        episode, index = position
        if self._distance(position) >= self._window or index >= self._lengths.get(episode, 0):
            return None
        if episode not in self._frames:
            self._frames[episode] = self._spool.get(episode)
        return self._frames[episode][index]

    def _normalized(self, position: Position) -> Position:
        """Map a position past the end of a finished episode to the start of the next one."""
        episode, index = position
        if episode != self._open and index >= self._lengths.get(episode, 0):
            later = [number for number in self._lengths if number > episode]
            if later:
                return min(later), 0
        return position

    def _after(self, position: Position) -> Position:
        episode, index = self._normalized(position)
        return self._normalized((episode, index + 1))

    def _distance(self, position: Position) -> int:
        """Number of records from the first unacknowledged one to a position."""
        (a, i), (b, j) = self._normalized(self._wanted), position
        if a == b:
            return j - i
        between = sum(length for number, length in self._lengths.items() if a < number < b)
        return self._lengths.get(a, 0) - i + between + j

    def _free_memory(self) -> None:
        """Drop frames of episodes that are neither open nor being sent."""
        keep = {self._open, self._normalized(self._wanted)[0], self._normalized(self._next)[0]}
        self._frames = {episode: frames for episode, frames in self._frames.items() if episode in keep}
