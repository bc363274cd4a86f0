"""What happened: the newest events, numbered from 1."""

from collections import deque
from itertools import islice

from hardware.core.wording import one_line
from hardware.protocol.codec import Stamper
from hardware.protocol.messages import Event

KEPT = 10_000
_MOST_TEXT, _MOST_NAME = 1000, 128


class EventLog:
    """A ring of the last `KEPT` events. A late joiner asks for what it has missed."""

    def __init__(self, stamp: Stamper) -> None:
        """`stamp` makes no other events: it numbers them."""
        self._stamp = stamp
        self._events: deque[Event] = deque(maxlen=KEPT)

    @property
    def newest(self) -> int:
        """Number of the newest, 0 before the first."""
        return self._events[-1].seq if self._events else 0

    @property
    def oldest(self) -> int:
        """Number of the oldest that is kept, 1 before the first."""
        return self._events[0].seq if self._events else 1

    def append(self, what: str, text: str, who: str = "", code: str = "") -> Event:
        """Add one. What is too long for the wire is cut, and it is one printable line: peers chose parts."""
        event = self._stamp(
            Event, what=what, text=one_line(text, _MOST_TEXT), who=one_line(who, _MOST_NAME), code=code
        )
        self._events.append(event)
        return event

    def since(self, after: int) -> tuple[Event, ...]:
        """Those with a number above `after`, oldest first."""
        known = max(0, after - self.oldest + 1)
        return tuple(islice(self._events, known, None))

    def since_within(self, after: int, size: int) -> tuple[Event, ...]:
        """As many of them, from the oldest, as fit into about `size` bytes; at least one."""
        fitting: list[Event] = []
        for event in self.since(after):
            size -= 200 + len(event.text.encode()) + len(event.who.encode())
            if size < 0 and fitting:
                break
            fitting.append(event)
        return tuple(fitting)
