"""Scene file and newest state of a simulated arm, for the processes that render its cameras."""

from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated, Protocol

import msgspec
import numpy as np
import zmq
from numpy.typing import NDArray

from robot_rl.hardware.cameras.settings import CameraSettings, Sim
from robot_rl.hardware.protocol.messages import Natural, State
from robot_rl.hardware.spec import CameraSpec

_OPTIONS = {zmq.CONFLATE: 1, zmq.LINGER: 0}


_Numbers = Annotated[tuple[float, ...], msgspec.Meta(max_length=4096)]


class RenderState(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """State of the scene at one time."""

    t: Natural
    """On the server's clock, ns."""
    qpos: _Numbers
    """[nq], as in `MjData`."""
    bodies: _Numbers = ()
    """[7 nbody] `body_pos` and `body_quat` of each body of `MjModel`; if empty, unchanged."""


class RenderFeed:
    """Publisher of scene states, used by the simulated arm. For one thread."""

    def __init__(self, context: zmq.Context, endpoint: str) -> None:
        self._encoder = msgspec.msgpack.Encoder()
        self._socket = _new(context, zmq.PUB)
        self._socket.bind(endpoint)

    def send(self, t: int, qpos: Sequence[float], bodies: Sequence[float] = ()) -> None:
        """Publish the scene at time `t` [ns]; takes microseconds regardless of the subscribers."""
        state = RenderState(t=t, qpos=tuple(map(float, qpos)), bodies=tuple(map(float, bodies)))
        self._socket.send(self._encoder.encode(state))

    def close(self) -> None:
        self._socket.close()


class RenderView:
    """Subscriber to scene states, used by a camera."""

    def __init__(self, context: zmq.Context, endpoint: str) -> None:
        self._decoder = msgspec.msgpack.Decoder(RenderState)
        self._socket = _new(context, zmq.SUB)
        self._socket.setsockopt(zmq.SUBSCRIBE, b"")
        self._socket.connect(endpoint)

    def newest(self, timeout: float) -> RenderState | None:
        """Return the newest state not returned before, None if none arrives within `timeout` [s].

        Raises:
            msgspec.DecodeError: if the message is not a scene state.
        """
        if not self._socket.poll(max(0, round(timeout * 1e3))):
            return None
        return self._decoder.decode(self._socket.recv())

    def close(self) -> None:
        self._socket.close()


@dataclass(frozen=True)
class WorldState:
    """Physics state from which another process renders the world, together with its `scene`."""

    t: int
    """Time on the server's clock, ns."""
    qpos: NDArray[np.float64]
    qvel: NDArray[np.float64]
    bodies: NDArray[np.float64] = field(default_factory=lambda: np.empty(0))
    """[7 nbody] as in `RenderState`; empty if bodies are only moved by `qpos`."""


class World(Protocol):
    """A simulation that another process can render."""

    def save_scene(self, folder: Path) -> Path:
        """Write the scene for `robot_rl.hardware.cameras.settings.Sim`; returns the file."""
        ...

    def render_state(self) -> WorldState:
        """Present positions of all bodies."""
        ...


class SimCameras:
    """Scene file and position feed of simulated cameras, in a temporary directory until `close`."""

    def __init__(
        self,
        world: World,
        cameras: Sequence[CameraSpec],
        drawing: str = "robot_rl.hardware.cameras.sim:Plain",
    ) -> None:
        """Write the scene of a world that has these cameras; `drawing` as in `Sim`."""
        self._world = world
        with ExitStack() as stack:
            folder = Path(stack.enter_context(TemporaryDirectory(prefix="scene-")))
            scene, feed = world.save_scene(folder), f"ipc://{folder / 'feed'}"
            context = stack.enter_context(zmq.Context())
            self._feed = RenderFeed(context, feed)
            stack.callback(self._feed.close)
            source = Sim(scene=str(scene), feed=feed, drawing=drawing)
            self.settings = [CameraSettings(spec=camera, source=source) for camera in cameras]
            self._resources = stack.pop_all()

    def show(self, _: State) -> None:
        """Send the present scene to the cameras; called once per tick by the control thread."""
        world = self._world.render_state()
        self._feed.send(world.t, world.qpos.tolist(), world.bodies.tolist())

    def close(self) -> None:
        self._resources.close()


def _new(context: zmq.Context, kind: int) -> "zmq.Socket[bytes]":
    socket: zmq.Socket[bytes] = context.socket(kind)
    for option, value in _OPTIONS.items():
        # Options set after bind or connect would be ignored.
        socket.setsockopt(option, value)
    return socket
