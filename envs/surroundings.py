"""What a person sees and does around a simulated robot, outside of the robot's protocol.

A task that is served with surroundings looks like a real robot to all its clients. A scripted person
(`robot_rl.rehearsal`) needs the simulated room itself: the scene is published, objects
are put elsewhere on request, and the disarmed arm is guided home. The task's own check of success is
written to a file.
"""

import json
import time
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated, Final

import msgspec
import numpy as np
import zmq
from numpy.typing import NDArray

from robot_rl.envs.task_driver import TaskDriver
from robot_rl.files.durable import make_folder, write_file
from robot_rl.hardware.protocol.messages import Natural, State

TRUTH: Final = "truth.jsonl"
"""File in the folder of the surroundings: a line for each change of the task's own check of success."""
_ADDRESS: Final = "address"
_SILENT_S: Final = 1.0
"""Time without a new scene after which the server's address is read again, s."""


class Look(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The scene as it is now."""

    scene: Annotated[tuple[float, ...], msgspec.Meta(max_length=4096)]
    """As in `robot_rl.envs.scene_state`."""


class Place(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, tag="place"):
    """Request to put the objects elsewhere."""

    seed: Natural


class GuideHome(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, tag="guide_home"):
    """Request to guide the arm home by hand."""


class Handled(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Answer to `Place` and `GuideHome`."""

    refused: str = ""
    """Why nothing was moved, "" if it was."""


@dataclass(frozen=True)
class TruthChange:
    """A line of the file `TRUTH`."""

    session: str
    """Session of the server."""
    t: int
    """Time of the measurement, on the server's clock, ns."""
    success: bool


def read_truth(folder: Path) -> list[TruthChange]:
    """Read the changes in a folder of surroundings; none if there is no file yet.

    Raises:
        ValueError: if a line is not one of this file. The last line may be incomplete.
    """
    path = folder / TRUTH
    if not path.is_file():
        return []
    lines = path.read_text(encoding="utf-8").split("\n")
    return [msgspec.json.decode(line, type=TruthChange) for line in lines[:-1]]


class Surroundings:
    """The room of a served task. All of it happens in the thread that drives the arm."""

    def __init__(self, driver: TaskDriver, folder: Path) -> None:
        """Publish the scene of a driver; `folder` receives the address for `Visitor`, and the truth."""
        self._driver = driver
        self._success: bool | None = None
        make_folder(folder)
        with ExitStack() as stack:
            self._truth = stack.enter_context((folder / TRUTH).open("a", encoding="utf-8"))
            at = stack.enter_context(TemporaryDirectory(prefix="room-"))
            context = stack.enter_context(zmq.Context())
            self._scenes: zmq.Socket[bytes] = stack.enter_context(context.socket(zmq.PUB))
            self._requests: zmq.Socket[bytes] = stack.enter_context(context.socket(zmq.REP))
            for socket, name in ((self._scenes, "scenes"), (self._requests, "requests")):
                socket.setsockopt(zmq.LINGER, 0)
                socket.bind(f"ipc://{at}/{name}")
            write_file(folder / _ADDRESS, f"ipc://{at}".encode())
            self._resources = stack.pop_all()

    def update(self, state: State) -> None:
        """Answer a request, and publish the scene; called once per tick by the control thread."""
        if self._requests.poll(0):
            self._requests.send(msgspec.msgpack.encode(self._handle(self._requests.recv())))
        scene = tuple(self._driver.look().tolist())
        self._scenes.send(msgspec.msgpack.encode(Look(scene=scene)))
        success = self._driver.succeeds()
        if success != self._success:
            self._success = success
            line = {"session": state.src, "t": state.t_sample, "success": success}
            self._truth.write(json.dumps(line) + "\n")
            self._truth.flush()

    def close(self) -> None:
        self._resources.close()

    def _handle(self, request: bytes) -> Handled:
        try:
            asked = msgspec.msgpack.decode(request, type=Place | GuideHome)
            if isinstance(asked, Place):
                self._driver.place_objects(asked.seed)
            else:
                self._driver.guide_home()
        except (msgspec.MsgspecError, ValueError) as error:
            return Handled(refused=str(error))
        return Handled()


class Visitor:
    """A person in the room of a served task, also across restarts of its server. For one thread."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._context = zmq.Context()
        self._address = ""
        self._scenes: zmq.Socket[bytes] | None = None
        self._seen_at = 0.0
        self._newest: Look | None = None

    def close(self) -> None:
        self._context.destroy(linger=0)

    def look(self) -> NDArray[np.float64] | None:
        """The scene [N] as it is now; None if nobody has shown it for a second."""
        if time.monotonic() - self._seen_at > _SILENT_S:
            self._newest = None
            self._follow()
        if self._scenes is not None and self._scenes.poll(0):
            self._newest = msgspec.msgpack.decode(self._scenes.recv(), type=Look)
            self._seen_at = time.monotonic()
        return None if self._newest is None else np.array(self._newest.scene)

    def place(self, seed: int, timeout: float = 5.0) -> str:
        """Put the objects elsewhere; returns why that failed, "" if it did not."""
        return self._ask(Place(seed=seed), timeout)

    def guide_home(self, timeout: float = 5.0) -> str:
        """Guide the disarmed arm home; returns why that failed, "" if it did not."""
        return self._ask(GuideHome(), timeout)

    def _ask(self, request: Place | GuideHome, timeout: float) -> str:
        with self._context.socket(zmq.REQ) as socket:
            socket.setsockopt(zmq.LINGER, 0)
            socket.connect(f"{self._read_address()}/requests")
            socket.send(msgspec.msgpack.encode(request))
            if not socket.poll(round(timeout * 1e3)):
                return "the simulation does not answer"
            return msgspec.msgpack.decode(socket.recv(), type=Handled).refused

    def _follow(self) -> None:
        """Connect to the server that is there now, if it is another one."""
        address = self._read_address()
        if not address or address == self._address:
            return
        if self._scenes is not None:
            self._scenes.close(linger=0)
        self._address, self._scenes = address, self._context.socket(zmq.SUB)
        for option, value in ((zmq.CONFLATE, 1), (zmq.LINGER, 0)):
            self._scenes.setsockopt(option, value)
        self._scenes.setsockopt(zmq.SUBSCRIBE, b"")
        self._scenes.connect(f"{address}/scenes")

    def _read_address(self) -> str:
        path = self._folder / _ADDRESS
        return path.read_text(encoding="utf-8") if path.is_file() else ""
