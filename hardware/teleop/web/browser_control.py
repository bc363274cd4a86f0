"""Which browser controls the arm, and its input as samples. Pure logic; time is an argument."""

import threading
from dataclasses import dataclass
from typing import Final

import msgspec

from robot_rl.hardware.clock import MS
from robot_rl.hardware.teleop.device import LATE_MS, PressedMarks, Sample
from robot_rl.hardware.teleop.web.messages import Asked, Move

_STILL: Final = (0.0,) * 6


@dataclass
class _Holder:
    name: str
    last: int = -1
    """Number of the newest move."""
    free: bool = False
    """Whether everything was released since the browser took control, so that what is held now counts."""


class BrowserControl:
    """Control of the arm, held by at most one browser. Thread-safe.

    A browser that takes control must first release everything: a key that is already held moves nothing.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._holder: _Holder | None = None
        self._sample: Sample | None = None
        self._release: Sample | None = None
        """A release that was not read yet; kept so that even a short release is seen."""
        self._floor = 0
        """Input made before this time is ignored, ns: it belongs to an earlier controller."""
        self._marks = PressedMarks()

    @property
    def holder(self) -> str:
        """Name of the browser in control, empty if there is none."""
        holder = self._holder
        return holder.name if holder else ""

    @property
    def made_at(self) -> int | None:
        """Earliest possible time of the newest sample, ns; None while no browser controls."""
        sample = self._sample
        return sample.t if sample and self._holder else None

    def take(self, name: str, now: int, *, over: bool) -> bool:
        """Take control; False if another browser has it and `over` is false."""
        with self._lock:
            if self._holder and self._holder.name != name and not over:
                return False
            if self.holder != name:
                self._change_holder(_Holder(name), now)
            return True

    def leave(self, name: str, now: int) -> None:
        """Give up control, if the browser has it."""
        with self._lock:
            if self._holder and self._holder.name == name:
                self._change_holder(None, now)

    def move(self, name: str, move: Move, made_at: int | None, received: int) -> None:
        """Apply a browser's input, made at `made_at` [ns]. If that is unknown (None), only a release counts.

        Ignored if the browser does not control, or if the move is repeated or out of order.
        """
        with self._lock:
            holder = self._holder
            if holder is None or holder.name != name or move.n <= holder.last:
                return
            holder.last = move.n
            if made_at is None and not move.on:
                holder.free = True
                self._reset(received)
            if made_at is None or made_at < self._floor:
                return
            holder.free = holder.free or not move.on
            before = self._sample.t if self._sample else 0
            # Never before the previous sample, even if the estimate of the browser's clock changed.
            t = max(made_at, before)
            if move.on and holder.free:
                self._sample = Sample(t=t, enable=True, motion=move.motion, gripper=move.gripper)
            else:
                self._sample = self._release = Sample(t=t, enable=False, motion=_STILL)

    def press(self, name: str, mark: Asked, made_at: int | None, received: int) -> str:
        """Apply a button press, made at `made_at` [ns]; return why it was refused, empty if accepted."""
        with self._lock:
            if self._holder is None or self._holder.name != name:
                return f"{mark}: take control first"
            if mark != "disarm" and (made_at is None or received - made_at > LATE_MS * MS):
                when = "at an unknown time" if made_at is None else f"{(received - made_at) / 1e9:.1f} s ago"
                return f"{mark} was pressed {when}: press it again"
            self._marks.add([mark], received if made_at is None else made_at)
            return ""

    def read(self, now: int) -> Sample | None:
        """Return the newest sample, or first an unread release. Each mark is returned once."""
        with self._lock:
            sample, self._release = self._release or self._sample, None
            if sample is None or not self._marks:
                return sample
            return msgspec.structs.replace(sample, marks=self._marks.take(now))

    def _change_holder(self, holder: _Holder | None, now: int) -> None:
        self._holder = holder
        self._reset(now)
        # What the earlier one has pressed.
        self._marks.keep("disarm")

    def _reset(self, now: int) -> None:
        self._floor = now
        self._sample = self._release = Sample(t=now, enable=False, motion=_STILL)
