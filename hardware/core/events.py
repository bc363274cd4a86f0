"""What happened: the newest events, numbered from 1."""

from bisect import bisect_right
from collections.abc import Iterator
from heapq import merge

from robot_rl.hardware.core.wording import one_line
from robot_rl.hardware.protocol.codec import Stamper
from robot_rl.hardware.protocol.messages import Event

KEPT = 10_000
_MOST_TEXT, _MOST_NAME = 1000, 128


class EventLog:
    """The last `KEPT` events of each kind. A late joiner asks for what it has missed.

    Each kind has a ring of its own: however many commands are refused, faults and stops stay.
    """

    def __init__(self, stamp: Stamper) -> None:
        """`stamp` makes no other events: it numbers them."""
        self._stamp = stamp
        self._rings: dict[str, list[Event]] = {}
        self._newest = 0

    @property
    def newest(self) -> int:
        """Number of the newest, 0 before the first."""
        return self._newest

    @property
    def oldest(self) -> int:
        """Number of the oldest that is kept, 1 before the first."""
        return min((_number(ring[0]) for ring in self._rings.values()), default=1)

    def append(self, what: str, text: str, who: str = "", code: str = "") -> Event:
        """Add one. What is too long for the wire is cut, and it is one printable line: peers chose parts."""
        event = self._stamp(
            Event, what=what, text=one_line(text, _MOST_TEXT), who=one_line(who, _MOST_NAME), code=code
        )
        ring = self._rings.setdefault(what, [])
        ring.append(event)
        if len(ring) > KEPT:
            del ring[0]
        self._newest = event.seq
        return event

    def since(self, after: int) -> tuple[Event, ...]:
        """Those with a number above `after`, oldest first."""
        return tuple(self._after(after))

    def since_within(self, after: int, size: int) -> tuple[Event, ...]:
        """As many of them, from the oldest, as fit into about `size` bytes; at least one."""
        fitting: list[Event] = []
        for event in self._after(after):
            size -= 200 + len(event.text.encode()) + len(event.who.encode())
            if size < 0 and fitting:
                break
            fitting.append(event)
        return tuple(fitting)

    def _after(self, after: int) -> Iterator[Event]:
        """In order, one by one: a client that asks for few does not make the control loop sort all."""
        known = ((ring, bisect_right(ring, after, key=_number)) for ring in self._rings.values())
        return merge(*(ring[start:] for ring, start in known), key=_number)


def _number(event: Event) -> int:
    return event.seq
