"""From the thread that takes images to the one that sends them: never waits, drops the oldest."""

import threading
from collections import deque
from typing import Generic, TypeVar

T = TypeVar("T")


class Mailbox(Generic[T]):
    """Holds the newest few items."""

    def __init__(self, capacity: int) -> None:
        self._items: deque[T] = deque(maxlen=capacity)
        self._filled = threading.Condition()

    def put(self, item: T) -> None:
        """Add an item; a full mailbox loses its oldest."""
        with self._filled:
            self._items.append(item)
            self._filled.notify()

    def get(self, timeout: float) -> T | None:
        """Take the oldest that is left, None where there is none within `timeout` [s]."""
        with self._filled:
            if not self._filled.wait_for(lambda: self._items, timeout):
                return None
            return self._items.popleft()
