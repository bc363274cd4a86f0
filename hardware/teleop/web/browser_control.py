"""The one browser that controls, and what it last said: no sockets, and time is an argument."""

import threading
from dataclasses import dataclass
from typing import Final

import msgspec

from robot_rl.hardware.clock import MS
from robot_rl.hardware.teleop.device import Mark, Sample
from robot_rl.hardware.teleop.web.messages import Asked, Move

LATE_PRESS_MS: Final = 1000
"""A button that was pressed longer ago is not pressed any more; disarming never comes too late."""
_STILL: Final = (0.0,) * 6


@dataclass
class _Holder:
    name: str
    last: int = -1
    """Number of its newest move."""
    free: bool = False
    """It has let go since it took the seat: what is held now was pressed in it."""


class BrowserControl:
    """Taken by one browser, left by it or taken over. All threads may use it.

    Whoever takes it has to let go of everything first: a key that is held already moves nothing.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._holder: _Holder | None = None
        self._sample: Sample | None = None
        self._let_go: Sample | None = None
        """One in which nothing is held, and which nobody has read: however short it was, it is seen."""
        self._floor = 0
        """What was made earlier has nothing to do with who controls now, ns."""
        self._marks: list[Mark] = []

    @property
    def holder(self) -> str:
        """Name of the browser that controls, empty if none does."""
        holder = self._holder
        return holder.name if holder else ""

    @property
    def made(self) -> int | None:
        """When the newest sample was made at the earliest, ns; None while nobody controls."""
        sample = self._sample
        return sample.t if sample and self._holder else None

    def take(self, name: str, now: int, *, over: bool) -> bool:
        """Control from now on; False where another does and is not to be taken `over`."""
        with self._lock:
            if self._holder and self._holder.name != name and not over:
                return False
            if self.holder != name:
                self._holder = _Holder(name)
                self._rest(now)
            return True

    def leave(self, name: str, now: int) -> None:
        """Control no more, if it does."""
        with self._lock:
            if self._holder and self._holder.name == name:
                self._holder = None
                self._rest(now)

    def move(self, name: str, move: Move, made: int | None, received: int) -> None:
        """What a browser's hands did at `made` [ns]; None, where that is not known, only lets go.

        What does not control, comes twice or comes after a later one changes nothing.
        """
        with self._lock:
            holder = self._holder
            if holder is None or holder.name != name or move.n <= holder.last:
                return
            holder.last = move.n
            if made is None and not move.on:
                holder.free = True
                self._rest(received)
            if made is None or made < self._floor:
                return
            holder.free = holder.free or not move.on
            before = self._sample.t if self._sample else 0
            # It was made after the one before, whatever is newly known of the browser's clock.
            t = max(made, before)
            if move.on and holder.free:
                self._sample = Sample(t=t, enable=True, motion=move.motion, gripper=move.gripper)
            else:
                self._sample = self._let_go = Sample(t=t, enable=False, motion=_STILL)

    def press(self, name: str, mark: Asked, made: int | None, received: int) -> str:
        """A button that a browser pressed at `made` [ns]; returns why it does not count, empty if it does."""
        with self._lock:
            if self._holder is None or self._holder.name != name:
                return f"{mark}: take control first"
            if mark != "disarm" and (made is None or received - made > LATE_PRESS_MS * MS):
                when = "who knows when" if made is None else f"{(received - made) / 1e9:.1f} s ago"
                return f"{mark} was pressed {when}: press it again"
            self._marks.append(mark)
            return ""

    def read(self) -> Sample | None:
        """The newest sample, after one of letting go where that was not read; each mark is in one of them."""
        with self._lock:
            sample, self._let_go = self._let_go or self._sample, None
            if sample is None or not self._marks:
                return sample
            marks, self._marks = tuple(self._marks), []
            return msgspec.structs.replace(sample, marks=marks)

    def _rest(self, now: int) -> None:
        self._floor = now
        self._sample = self._let_go = Sample(t=now, enable=False, motion=_STILL)
