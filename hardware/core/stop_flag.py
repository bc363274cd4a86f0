"""The one thing that another thread may do to the core: say that the arm was stopped."""

from collections import deque


class StopFlag:
    """Set by the e-stop's thread, which also stops the driver itself; seen by the next `handle` or `tick`."""

    def __init__(self) -> None:
        # Appending and popping are atomic. Beyond a few, more stops say nothing new.
        self._pulled: deque[tuple[str, str]] = deque(maxlen=16)

    def pull(self, who: str, reason: str) -> None:
        """Say who stopped the arm, and why. From any thread; call it before `Driver.stop`."""
        self._pulled.append((who, reason))

    def take(self) -> tuple[str, str] | None:
        """The oldest stop that was not taken yet."""
        try:
            return self._pulled.popleft()
        except IndexError:
            return None
