"""Run the server of a robot: arm, gripper, limits and faults at one address.

The robot is an arm with a configuration file (driver=…) or a simulated task (task=…). Everything that
commands or observes the robot is a client of this server. `robot-rl robot keys` makes keys for a network.
Ctrl-C brings the arm to rest.
"""

import sys
import threading
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from robot_rl.cli.signals import handled
from robot_rl.envs.task import TaskConfig
from robot_rl.errors import UserError, as_user_errors
from robot_rl.hardware.core.core import CoreSettings
from robot_rl.hardware.drivers.driver import DriverError
from robot_rl.hardware.protocol.clock_sync import boot_id
from robot_rl.hardware.protocol.endpoints import default_address, parse
from robot_rl.hardware.protocol.messages import State
from robot_rl.hardware.protocol.security import load_server_keys
from robot_rl.hardware.server import RobotServer, StateCallback
from robot_rl.robot.robots import serve_arm, serve_task

_LINE_EVERY = 10.0
"""Seconds between lines of plain text while nothing changes."""
_REFRESH = 0.2
GROUPS = {"task": {"*": TaskConfig}}


@dataclass
class Config:
    driver: str | None = None
    """Robot: a name of configs/robot (sim_panda, franka …), or the path of a robot's file."""
    task: Any = None
    """Simulated task to serve as a robot, instead of a driver."""
    states: str | None = None
    """File of initial states of the task's episodes; the task's list if null. With `seeds`, or without a
    list, the episode's number is the seed of its reset, which gives any number of initial states."""
    surroundings: str | None = None
    """Folder for what is around a simulated task, for `robot-rl rehearse`: its true success is written there,
    and a scripted person sees and touches the scene. The robot itself is then as a real one: nothing that
    only a simulation knows is measured, and the scene is prepared by hand."""
    address: str = field(default_factory=default_address)
    """Address of the server: `ipc:///directory`, or `tcp://host:port` (uses seven ports from this one)."""
    keys: str | None = None
    """Directory of keys; required where other machines can reach the address."""
    insecure: bool = False
    """Serve a network without keys: anyone who can reach the address can move the arm."""
    cameras: list[str] = field(default_factory=list)
    """Cameras of a driver: `front` and `wrist` of a simulated arm, or one YAML file per camera."""
    lease_ms: int = CoreSettings.lease_ms
    """ms without a command after which the arm is braked and held; 10 to 1000."""

    def __post_init__(self) -> None:
        if (self.driver is None) == (self.task is None):
            raise ValueError("say which robot: driver=sim_panda, or task=lift for a simulated task")
        if self.task is not None and self.cameras:
            raise ValueError("cameras are a driver's; those of a task are task.cameras=[…]")
        if self.task is None and self.states is not None:
            raise ValueError("states are a task's; with a driver there are none")
        if self.surroundings is not None and (self.task is None or self.states is not None):
            raise ValueError(
                "surroundings are a task's, and its objects are placed by hand: leave out states"
            )


class StatusPrinter:
    """Prints the robot's status from a background thread: a blocked terminal must not delay control."""

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


def run(config: Config) -> None:
    """Serve until SIGINT, SIGTERM or SIGHUP."""
    status = StatusPrinter()
    with ExitStack() as ended:
        with as_user_errors():
            server = _build(config, status.show, ended)
        _serve(config, server, status)


def _build(config: Config, show: StateCallback, ended: ExitStack) -> RobotServer:
    address = parse(config.address)
    keys = load_server_keys(Path(config.keys)) if config.keys else None
    if config.driver is not None:
        robot = serve_arm(config.driver, config.cameras, ended)
    else:
        surroundings = Path(config.surroundings) if config.surroundings else None
        robot = serve_task(config.task, config.states, ended, surroundings)
    settings = CoreSettings(lease_ms=config.lease_ms, boot_id=boot_id(), latency=robot.latency)
    return RobotServer(
        robot.driver,
        address,
        settings,
        keys=keys,
        insecure=config.insecure,
        cameras=robot.cameras,
        state_callbacks=[show, *robot.state_callbacks],
    )


def _serve(config: Config, server: RobotServer, status: StatusPrinter) -> None:
    print(f"{server.name} at {config.address}, session {server.session[:8]}; Ctrl-C ends it", flush=True)
    try:
        with handled(lambda *_: server.close_soon()), status:
            server.run()
    except DriverError as error:
        raise UserError(f"{server.name}: {error}") from error
    rest = "the arm is at rest" if server.at_rest else "the arm had not come to rest yet"
    print(f"{rest} and the server has ended", flush=True)


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
