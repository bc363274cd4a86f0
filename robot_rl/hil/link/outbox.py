"""What the actor has to send: in order, again where nothing was heard, and never waiting."""

from collections.abc import Iterator
from typing import Final

from robot_rl.hardware.clock import MS
from robot_rl.hil.link.messages import Ack, End, Step, encode
from robot_rl.hil.link.spool import Spool

WINDOW: Final = 64
"""Records on their way that nobody has acknowledged: fewer than a socket's queue holds."""
AGAIN: Final = 1000 * MS
"""Reconnector after which the oldest of them is sent again; all that followed it, once it is acknowledged."""

Place = tuple[int, int]
"""Episode, and index of a record in it."""


class Outbox:
    """The records of the open episode, and those of the spool. Times are ns."""

    def __init__(self, spool: Spool) -> None:
        self._spool = spool
        self._open: int | None = None
        self._frames: dict[int, list[bytes]] = {}
        """Of the open episode, and of the one that is being sent."""
        self._lengths = {episode: len(spool.get(episode)) for episode in spool.episodes}
        self._wanted: Place = (0, 0)
        self._next: Place = (0, 0)
        self._window = WINDOW
        self._heard = 0

    @property
    def run(self) -> str:
        """Whose episodes these are, "" where nobody has said it."""
        return self._spool.run

    @run.setter
    def run(self, run: str) -> None:
        self._spool.run = run

    @property
    def episodes(self) -> tuple[int, ...]:
        """What can be sent from its beginning."""
        return tuple(sorted(self._lengths))

    @property
    def unacknowledged(self) -> int:
        """Records that the learner has not confirmed."""
        episode, index = self._wanted
        later = sum(length for number, length in self._lengths.items() if number > episode)
        return later + max(0, self._lengths.get(episode, 0) - index)

    def begin(self, episode: int) -> None:
        """An episode begins."""
        assert self._open is None
        self._open = episode
        self._frames[episode] = []
        self._lengths[episode] = 0

    def add(self, record: Step | End) -> None:
        """The next record of the open episode; an `End` closes it, and then it is on the disk."""
        episode, frames = record.episode, self._frames[record.episode]
        assert episode == self._open
        assert record.index == len(frames)
        frames.append(encode(record))
        self._lengths[episode] += 1
        if isinstance(record, End):
            self._spool.put(episode, frames)
            self._open = None
            self._forget()

    def start_at(self, place: Place, now: int) -> None:
        """Where the learner wants to go on."""
        self._wanted = self._next = place
        self._window, self._heard = WINDOW, now

    def acknowledged(self, ack: Ack, now: int) -> None:
        """The learner has said what it has."""
        place = (ack.episode, ack.index)
        if place > self._wanted:
            self._wanted = place
            self._next = max(self._next, place)
            self._window, self._heard = WINDOW, now
        kept = [episode for episode in self._lengths if episode < ack.kept]
        for episode in kept:
            del self._lengths[episode]
        if kept:
            self._spool.drop(ack.kept)
        self._forget()

    def unanswered(self, now: int) -> bool:
        """Whether something was sent and nothing has been heard for too long."""
        return self._next > self._wanted and now - self._heard > AGAIN

    def due(self, now: int) -> Iterator[bytes]:
        """Frames to send now; each counts as sent when the next one is asked for."""
        if self._next == self._wanted:
            self._heard = now
        elif self.unanswered(now):
            # Of what is lost in a connection nobody tells. One record shows whether the learner listens.
            self._next, self._window, self._heard = self._wanted, 1, now
        while (frame := self._frame(self._next)) is not None:
            yield frame
            self._next = self._after(self._next)

    def _frame(self, place: Place) -> bytes | None:
        """The record at a place, if it exists and the window has room."""
        place = self._forward(place)
        episode, index = place
        if self._between(place) >= self._window or index >= self._lengths.get(episode, 0):
            return None
        if episode not in self._frames:
            self._frames[episode] = self._spool.get(episode)
        return self._frames[episode][index]

    def _forward(self, place: Place) -> Place:
        """A place behind the end of a finished episode is the next one's beginning."""
        episode, index = place
        if episode != self._open and index >= self._lengths.get(episode, 0):
            later = [number for number in self._lengths if number > episode]
            if later:
                return min(later), 0
        return place

    def _after(self, place: Place) -> Place:
        episode, index = self._forward(place)
        return self._forward((episode, index + 1))

    def _between(self, place: Place) -> int:
        """Records from the first wanted one to a place."""
        (a, i), (b, j) = self._forward(self._wanted), place
        if a == b:
            return j - i
        inside = sum(length for number, length in self._lengths.items() if a < number < b)
        return self._lengths.get(a, 0) - i + inside + j

    def _forget(self) -> None:
        """Keep in memory what is open or being sent."""
        keep = {self._open, self._forward(self._wanted)[0], self._forward(self._next)[0]}
        self._frames = {episode: frames for episode, frames in self._frames.items() if episode in keep}
