"""Queue of timed goals: each becomes active at its time, or is dropped if it is too late for a tick."""

from dataclasses import dataclass
from typing import Generic

from robot_rl.hardware.core.motion import Target
from robot_rl.hardware.core.refusal import Refusal
from robot_rl.hardware.protocol.messages import Code

MAX_WAITING = 64


@dataclass(frozen=True, slots=True)
class Waypoint(Generic[Target]):
    """A timed goal in the driver's space."""

    target: Target
    begins: int
    """Time at which it becomes the goal, ns."""
    expires: int
    """Latest time at which it may become the goal, ns."""
    seq: int
    """`seq` of its command; 0 for a motion of the server's, such as homing."""
    gripper: float | None


class Waypoints(Generic[Target]):
    """Waiting goals in the order of their times."""

    def __init__(self) -> None:
        self._waiting: list[Waypoint[Target]] = []

    def last_before(self, begins: int) -> Waypoint[Target] | None:
        """The waypoint that one at time `begins` [ns] would follow."""
        earlier = [waypoint for waypoint in self._waiting if waypoint.begins < begins]
        return earlier[-1] if earlier else None

    def add(self, waypoint: Waypoint[Target]) -> None:
        """Append a waypoint and drop those at its time or later.

        Raises:
            Refusal: LIMIT, if `MAX_WAITING` are waiting.
        """
        kept = [waiting for waiting in self._waiting if waiting.begins < waypoint.begins]
        if len(kept) >= MAX_WAITING:
            raise Refusal(Code.LIMIT, f"{MAX_WAITING} commands wait for their time; send fewer ahead")
        self._waiting = [*kept, waypoint]

    def due(self, now: int) -> tuple[Waypoint[Target] | None, list[Waypoint[Target]]]:
        """Remove the waypoints whose time has come; returns the newest valid one and the expired ones."""
        if not self._waiting or self._waiting[0].begins > now:
            return None, []
        due = [waypoint for waypoint in self._waiting if waypoint.begins <= now]
        self._waiting = self._waiting[len(due) :]
        fresh = [waypoint for waypoint in due if waypoint.expires >= now]
        late = [waypoint for waypoint in due if waypoint.expires < now]
        return (fresh[-1] if fresh else None), late

    def clear(self) -> None:
        """Drop all waypoints."""
        self._waiting = []
