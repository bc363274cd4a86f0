"""Serve a robot: its arm, gripper, limits and faults at one address; Ctrl-C brings the arm to rest.

Whatever commands or watches the robot is a client of this server. Keys for a network are made by
`robot-rl robot keys`.
"""

import os
import signal
import sys
import threading
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path

import msgspec
from omegaconf import MISSING

from hardware.cameras.settings import CameraSettings
from hardware.clock import MonotonicClock
from hardware.config import load_robot
from hardware.core.core import CoreSettings
from hardware.drivers.base import DriverError
from hardware.drivers.models import CAMERAS
from hardware.drivers.registry import make_driver
from hardware.drivers.sim import SimDriver
from hardware.protocol.clock_sync import boot_id
from hardware.protocol.endpoints import parse
from hardware.protocol.messages import State
from hardware.protocol.security import load_server_keys
from hardware.server import RobotServer, Show
from hardware.sim_cameras import SimCameras
from hardware.spec import CameraSpec
from robot_rl.assets import asset_path
from robot_rl.errors import UserError, mistakes
from robot_rl.spelling import nearest

_LINE_EVERY = 10.0
"""Seconds between lines of plain text while nothing changes."""
_REFRESH = 0.2
_SIDE = 224
"""Pixels of a simulated camera's image."""
_IMAGES = 30.0
"""Its images per second."""


def default_address() -> str:
    """Of a robot that is used from this machine alone."""
    runtime = os.environ.get("XDG_RUNTIME_DIR", "")
    return f"ipc://{runtime}/robot" if runtime else f"ipc:///tmp/robot-{os.getuid()}"


@dataclass
class Config:
    driver: str = MISSING
    """Robot: a name of configs/robot (sim_panda, franka …), or the path of a robot's file."""
    address: str = field(default_factory=default_address)
    """Where clients find it: `ipc:///directory`, or `tcp://host:port` (six ports from this one)."""
    keys: str | None = None
    """Directory of keys; required where other machines can reach the address."""
    insecure: bool = False
    """Serve a network without keys: whoever can reach the address can move the arm."""
    cameras: list[str] = field(default_factory=list)
    """Cameras to publish: `front` and `wrist` of a simulated arm, or YAML files, a camera each."""
    lease_ms: int = 100
    """A commander that is silent for so many milliseconds is stopped; 10 to 1000."""


def run(config: Config) -> None:
    """Serve until SIGINT, SIGTERM or SIGHUP."""
    status = _Status()
    with ExitStack() as ended:
        with mistakes():
            server = _build(config, status.show, ended)
        _serve(config, server, status)


def _build(config: Config, show: Show, ended: ExitStack) -> RobotServer:
    address = parse(config.address)
    robot = load_robot(robot_path(config.driver))
    keys = load_server_keys(Path(config.keys)) if config.keys else None
    settings = CoreSettings(lease_ms=config.lease_ms, boot_id=boot_id())
    cameras = [load_camera(Path(name)) for name in config.cameras if name.endswith(".yaml")]
    drawn = [_sim_camera(name) for name in config.cameras if not name.endswith(".yaml")]
    specs = (*robot.spec.cameras, *(camera.spec for camera in cameras), *drawn)
    robot = msgspec.structs.replace(robot, spec=msgspec.structs.replace(robot.spec, cameras=specs))
    driver = make_driver(robot, MonotonicClock())
    shows: list[Show] = [show]
    if drawn:
        if not isinstance(driver, SimDriver):
            raise ValueError(f"{robot.spec.name} is not simulated: give its cameras as .yaml files")
        scene = SimCameras(driver, drawn)
        ended.callback(scene.close)
        cameras += scene.settings
        shows.append(scene.show)
    return RobotServer(
        driver, address, settings, keys=keys, insecure=config.insecure, cameras=cameras, shows=shows
    )


def _serve(config: Config, server: RobotServer, status: "_Status") -> None:
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, lambda *_: server.close_soon())
    print(f"{server.name} at {config.address}, session {server.session[:8]}; Ctrl-C ends it", flush=True)
    try:
        with status:
            server.run()
    except DriverError as error:
        raise UserError(f"{config.driver}: {error}") from error
    print("the arm is at rest and the server has ended", flush=True)


def load_camera(path: Path) -> CameraSettings:
    """A camera's file: the fields of `CameraSettings`.

    Raises:
        ValueError: it is none.
    """
    try:
        return msgspec.yaml.decode(path.read_bytes(), type=CameraSettings)
    except msgspec.MsgspecError as error:
        raise ValueError(f"{path}: {error}") from error


def _sim_camera(name: str) -> CameraSpec:
    if name not in CAMERAS:
        known = ", ".join(CAMERAS)
        raise ValueError(f"cameras={name}: the simulated arms have {known}; others are .yaml files")
    return CameraSpec(name=name, serial=name, width=_SIDE, height=_SIDE, rate=_IMAGES)


def robot_path(name: str) -> Path:
    """The file of a robot.

    Raises:
        UserError: there is none.
    """
    folder = asset_path("configs", "robot")
    known = {path.stem: path for path in sorted(folder.glob("*.yaml"))}
    if name in known:
        return known[name]
    if "/" in name or name.endswith(".yaml"):
        return Path(name)
    spelled = nearest(name, known)
    hint = f"did you mean {spelled}?" if spelled else f"there are {', '.join(known)}, or give a file's path"
    raise UserError(f"driver={name}: there is no such robot; {hint}")


class _Status:
    """Says how the robot does, from a thread of its own: a terminal that hangs must not hold up the arm."""

    def __init__(self) -> None:
        self._state: State | None = None
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name="status", daemon=True)

    def __enter__(self) -> None:
        self._thread.start()

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join(timeout=1.0)

    def show(self, state: State) -> None:
        self._state = state

    def _run(self) -> None:
        terminal = sys.stdout.isatty()
        said, waited = "", 0.0
        while not self._ended.wait(_REFRESH):
            state = self._state
            if state is None:
                continue
            waited += _REFRESH
            about = f"{state.mode}{f', {state.fault}' if state.fault else ''}"
            if terminal:
                print(f"\r\033[K{_line(about, state)}", end="", flush=True)
            elif about != said or waited >= _LINE_EVERY:
                print(_line(about, state), flush=True)
                said, waited = about, 0.0
        if terminal:
            print()


def _line(about: str, state: State) -> str:
    parts = [about]
    if state.lease_holder:
        parts.append(f"commanded by {state.lease_holder}")
    if state.position:
        parts.append("tool at " + " ".join(f"{value:.3f}" for value in state.position) + " m")
    if state.gripper:
        parts.append(f"gripper {state.gripper.opening:.2f} open")
    if state.loop and state.loop.ticks:
        parts.append(
            f"ticks {state.loop.late_us_p99 / 1e3:.1f} ms late (p99), {state.loop.overruns} overruns"
        )
    return "; ".join(parts)
