"""Opens a reader for the cameras of a robot."""

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

_FIRST_IMAGE_TIMEOUT = 20.0
"""Timeout of a camera's first image, s: its process may have just started."""
_MAX_AGE = 3
"""Images older than this many control periods are stale."""


class ServerClock(MonotonicClock):
    """Clock of the robot's server, which stamps the images."""

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
    """Yield a reader that has a fresh image of each camera; None if there are no cameras.

    Args:
        robot: client of the robot.
        address: address of the robot's server.
        cameras: names of the cameras.
        period: control period, s; images older than three periods are stale.
        keys: keys of the client.
        insecure: use a network without keys.

    Raises:
        RobotError: if a camera gives no image.
    """
    if not cameras:
        yield None
        return
    with message_context() as context:
        sockets = ClientSockets(context, parse(address), keys, insecure=insecure)
        with FrameReader(sockets, cameras, _MAX_AGE * period * 1e3, ServerClock(robot)) as reader:
            try:
                reader.wait(_FIRST_IMAGE_TIMEOUT)
            except StaleFrame as stale:
                raise RobotError(str(stale)) from stale
            yield reader
