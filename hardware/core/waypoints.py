"""Goals whose time has not come: each is acted on from its time, not before and not much later."""

from dataclasses import dataclass
from typing import Generic

from robot_rl.hardware.core.motion import Target
from robot_rl.hardware.core.refusal import Refusal
from robot_rl.hardware.protocol.messages import Code

MOST = 64


@dataclass(frozen=True, slots=True)
class Waypoint(Generic[Target]):
    """A goal in the driver's own space."""

    target: Target
    begins: int
    """When it becomes the goal, ns."""
    expires: int
    """Later than this it is too old to become the goal, ns."""
    seq: int
    """Of its command; 0 for a motion of the server's own."""
    gripper: float | None


class Waypoints(Generic[Target]):
    """In the order of their times."""

    def __init__(self) -> None:
        self._waiting: list[Waypoint[Target]] = []

    def last_before(self, begins: int) -> Waypoint[Target] | None:
        """The one that a waypoint of this time would follow."""
        earlier = [waypoint for waypoint in self._waiting if waypoint.begins < begins]
        return earlier[-1] if earlier else None

    def add(self, waypoint: Waypoint[Target]) -> None:
        """Append it; what was to begin at its time or later is dropped.

        Raises:
            Refusal: LIMIT, `MOST` are waiting.
        """
        kept = [waiting for waiting in self._waiting if waiting.begins < waypoint.begins]
        if len(kept) >= MOST:
            raise Refusal(Code.LIMIT, f"{MOST} commands wait for their time; send fewer ahead")
        self._waiting = [*kept, waypoint]

    def due(self, now: int) -> tuple[Waypoint[Target] | None, list[Waypoint[Target]]]:
        """The newest whose time has come and is not over; and those that came too late for a tick."""
        if not self._waiting or self._waiting[0].begins > now:
            return None, []
        come = [waypoint for waypoint in self._waiting if waypoint.begins <= now]
        self._waiting = self._waiting[len(come) :]
        fresh = [waypoint for waypoint in come if waypoint.expires >= now]
        late = [waypoint for waypoint in come if waypoint.expires < now]
        return (fresh[-1] if fresh else None), late

    def clear(self) -> None:
        """Forget them."""
        self._waiting = []
