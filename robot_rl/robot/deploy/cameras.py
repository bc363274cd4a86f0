"""Images of a robot's cameras for whoever observes it."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from robot_rl.hardware.cameras.reader import FrameReader, StaleFrame
from robot_rl.hardware.client import RobotClient
from robot_rl.hardware.clock import MonotonicClock
from robot_rl.hardware.connection import RobotError
from robot_rl.hardware.protocol.endpoints import parse
from robot_rl.hardware.protocol.security import ClientKeys
from robot_rl.hardware.protocol.sockets import ClientSockets
from robot_rl.hardware.realtime import message_context

_FIRST = 20.0
"""s that a camera is given for its first image: its process may just have been started."""
_OLDEST = 3
"""Control periods."""


class ServerClock(MonotonicClock):
    """The clock of a client's server, by which images are stamped."""

    def __init__(self, robot: RobotClient) -> None:
        self._robot = robot

    def now(self) -> int:
        return self._robot.server_time()


@contextmanager
def camera_reader(
    robot: RobotClient,
    address: str,
    cameras: Sequence[str],
    period: float,
    keys: ClientKeys | None,
    insecure: bool,
) -> Iterator[FrameReader | None]:
    """A reader that has a fresh image of each camera; None where there are no cameras.

    Args:
        robot: whose cameras they are.
        address: the robot's.
        cameras: their names.
        period: of control, s; an image older than three of them is none.
        keys: as of the client.
        insecure: as of the client.

    Raises:
        RobotError: a camera gives none.
    """
    if not cameras:
        yield None
        return
    with message_context() as context:
        sockets = ClientSockets(context, parse(address), keys, insecure=insecure)
        with FrameReader(sockets, cameras, _OLDEST * period * 1e3, ServerClock(robot)) as reader:
            try:
                reader.wait(_FIRST)
            except StaleFrame as stale:
                raise RobotError(str(stale)) from stale
            yield reader
