"""A served task and its client on one stepped clock, without sockets, so that timing is deterministic."""

from typing import Any, TypeVar

import zmq
from numpy.typing import NDArray

from robot_rl.envs.task import TaskConfig
from robot_rl.envs.task_driver import TaskDriver
from robot_rl.hardware.client import RobotClient
from robot_rl.hardware.clock import SteppedClock
from robot_rl.hardware.connection import Connection, NoAnswer, RequestRefused
from robot_rl.hardware.core.core import CoreSettings, RobotCore
from robot_rl.hardware.core.lease import Peer
from robot_rl.hardware.protocol.clock_sync import boot_id
from robot_rl.hardware.protocol.codec import decode_client, decode_server, encode
from robot_rl.hardware.protocol.endpoints import parse
from robot_rl.hardware.protocol.messages import Gripped, Message, Refused, Role, State

ADDRESS = "tcp://127.0.0.1:1"
"""An address at which nothing listens."""
A = TypeVar("A", bound=Message)


class TickingClock(SteppedClock):
    """A clock whose sleeps run the server's ticks at their times."""

    def __init__(self) -> None:
        super().__init__()
        self.core: RobotCore | None = None
        self.newest: State | None = None

    def serve(self, core: RobotCore, rate: float) -> None:
        self.core, self._period = core, round(1e9 / rate)
        self._due = self.now() + self._period
        core.open()
        self.newest = core.tick()

    def sleep_until(self, deadline: int) -> None:
        while self.core and self._due <= deadline:
            super().sleep_until(self._due)
            self.newest = self.core.tick()
            self._due += self._period
        super().sleep_until(deadline)


class StraightLine(Connection):
    """Requests go to the core as bytes and are answered at once; the last tick's state is the newest."""

    def __init__(self, clock: TickingClock) -> None:
        super().__init__(parse(ADDRESS), None, False, 1.0, clock)
        self.ticks = clock
        self.role: Role = "policy"
        self.dead = False
        """Whether the server has gone."""

    def await_connection(self, socket: "zmq.Socket[bytes]", kind: type[Message], deadline: int) -> None:
        pass

    def exchange(self, socket: "zmq.Socket[bytes]", request: Message, answer: type[A], deadline: int) -> A:
        if self.dead:
            raise NoAnswer("no answer")
        assert self.ticks.core is not None
        peer = Peer("client", self.role, request.src)
        found = decode_server(encode(self.ticks.core.handle(peer, decode_client(encode(request)))))
        if isinstance(found, Refused):
            raise RequestRefused(found.code, found.reason)
        assert isinstance(found, answer)
        return found

    def newest_state(self, known: State | None) -> State | None:
        return self.ticks.newest


class Fingers:
    """A gripper's thread that is never behind."""

    fault = ""

    def __init__(self, driver: TaskDriver, clock: SteppedClock) -> None:
        self._gripper, self._clock = driver.gripper, clock

    def put(self, opening: float) -> None:
        self._gripper.move(opening)

    def stop(self) -> None:
        self._gripper.stop()

    def latest(self) -> Gripped:
        return Gripped(opening=self._gripper.read(), t=self._clock.now(), goal=0.0)

    def acknowledge(self) -> None:
        pass


class SteppedBridge:
    """All of it; `client` is to be used in a with statement."""

    def __init__(self, task: TaskConfig, starts: NDArray[Any]) -> None:
        self.clock = TickingClock()
        self.driver = TaskDriver(task, self.clock, starts=starts)
        settings, fingers = CoreSettings(boot_id=boot_id()), Fingers(self.driver, self.clock)
        self.clock.serve(
            RobotCore(self.driver, settings, self.clock, "session", fingers), self.driver.spec.rate
        )
        self.client = RobotClient(ADDRESS, "deploy", "policy", clock=self.clock)
        self.client.close()
        self.client._connection = self.line = StraightLine(self.clock)
