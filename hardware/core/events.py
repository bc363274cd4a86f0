"""Event log of the server, and refusals: the newest events of each kind, numbered from 1."""

from bisect import bisect_right
from collections.abc import Iterator
from heapq import merge

from robot_rl.hardware.protocol.codec import Stamper
from robot_rl.hardware.protocol.messages import Code, Event

CAPACITY = 10_000
_MAX_TEXT, _MAX_NAME = 1000, 128


class EventLog:
    """The last `CAPACITY` events of each kind, for clients that join late.

    Each kind has its own ring buffer, so a flood of refused commands does not displace faults and stops.
    """

    def __init__(self, stamp: Stamper) -> None:
        """`stamp` numbers the events, so it must not be used for events elsewhere."""
        self._stamp = stamp
        self._rings: dict[str, list[Event]] = {}
        self._newest = 0

    @property
    def newest(self) -> int:
        """Number of the newest event, 0 before the first."""
        return self._newest

    @property
    def oldest(self) -> int:
        """Number of the oldest event kept, 1 before the first."""
        return min((_number(ring[0]) for ring in self._rings.values()), default=1)

    def append(self, what: str, text: str, who: str = "", code: str = "") -> Event:
        """Add an event. Text and name become one printable line each, cut to the wire's limits."""
        event = self._stamp(
            Event, what=what, text=one_line(text, _MAX_TEXT), who=one_line(who, _MAX_NAME), code=code
        )
        ring = self._rings.setdefault(what, [])
        ring.append(event)
        if len(ring) > CAPACITY:
            del ring[0]
        self._newest = event.seq
        return event

    def since(self, after: int) -> tuple[Event, ...]:
        """Events with a number above `after`, oldest first."""
        return tuple(self._after(after))

    def since_within(self, after: int, size: int) -> tuple[Event, ...]:
        """As many of these events, oldest first, as fit into about `size` bytes; the first one always."""
        fitting: list[Event] = []
        for event in self._after(after):
            size -= 200 + len(event.text.encode()) + len(event.who.encode())
            if size < 0 and fitting:
                break
            fitting.append(event)
        return tuple(fitting)

    def _after(self, after: int) -> Iterator[Event]:
        """Lazily, in order: a request for few events does not make the control loop sort all of them."""
        known = ((ring, bisect_right(ring, after, key=_number)) for ring in self._rings.values())
        return merge(*(ring[start:] for ring, start in known), key=_number)


def _number(event: Event) -> int:
    return event.seq


def one_line(text: str, max_length: int) -> str:
    """Text from drivers and peers as one printable line of at most `max_length` characters."""
    spaced = " ".join(text.split())
    return "".join(sign if sign.isprintable() else "?" for sign in spaced)[:max_length]


class Refusal(Exception):
    """Raised when a request is not carried out; the arm's motion does not change."""

    def __init__(self, code: Code, reason: str) -> None:
        super().__init__(f"{code.value}: {reason}")
        self.code = code
        self.reason = one_line(reason, 500)
