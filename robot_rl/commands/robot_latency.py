"""Measure the latency of a robot's actions, cameras and states; write it to the robot's file.

The arm swings one joint by a few degrees around its position, within its limits. Commands, setpoints,
measurements and images are compared by cross-correlation; if the correlation is too low, the figure is
refused and the exit code is 1. Afterwards the arm is armed or not, as before.
"""

import datetime
import sys
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from robot_rl.cli.signals import interrupted_by_signal
from robot_rl.errors import UserError, as_user_errors
from robot_rl.files.durable import write_file
from robot_rl.hardware.client import RobotClient, RobotError
from robot_rl.hardware.latency.delays import Figures, measure, table
from robot_rl.hardware.latency.recording import record
from robot_rl.hardware.latency.swing import Axis, Swing, find_axis
from robot_rl.hardware.protocol.endpoints import default_address, parse
from robot_rl.hardware.protocol.messages import Mode
from robot_rl.hardware.protocol.security import ClientKeys, load_own_keys
from robot_rl.hardware.protocol.sockets import ClientSockets
from robot_rl.hardware.realtime import message_context
from robot_rl.hardware.robot_file import load_robot, merged_latencies, with_latency
from robot_rl.hardware.spec import Latency
from robot_rl.robot.consent import ask_consent


@dataclass
class Config:
    address: str = field(default_factory=default_address)
    """Address of the robot's server, as in `robot-rl robot address=…`."""
    cameras: list[str] | None = None
    """Cameras to measure; null for all. Each must see the arm or move with it."""
    joint: str = ""
    """Name of the joint to swing; the first if empty."""
    seconds: float = 10.0
    """Duration of the swing in s."""
    go: bool = False
    """Move the arm without asking."""
    write: str | None = None
    """Robot's file whose section `latency` is replaced by the result."""
    keys: str | None = None
    """File of this client's keys, from `robot-rl robot keys`; required for a robot on a network."""
    insecure: bool = False
    """Use a network without keys."""


def run(config: Config) -> None:
    with as_user_errors():
        keys = load_own_keys(config.keys)
        robot = RobotClient(config.address, "latency", "policy", keys=keys, insecure=config.insecure)
        try:
            with interrupted_by_signal(), robot:
                figures = _measure(config, robot, keys)
        except RobotError as error:
            raise UserError(f"{config.address}: {error}") from error
    print(f"\n{table(figures)}")
    if config.write:
        _write(Path(config.write), figures.latency())
    if refused := figures.refused():
        for name, reason in refused.items():
            print(f"robot-rl: {name} was not measured: {reason}", file=sys.stderr)
        raise SystemExit(1)


def _measure(config: Config, robot: RobotClient, keys: ClientKeys | None) -> Figures:
    """Swing the arm after asking the operator."""
    known = [camera.name for camera in robot.spec.cameras]
    cameras = known if config.cameras is None else config.cameras
    for camera in cameras:
        if camera not in known:
            raise UserError(
                f"cameras: {robot.spec.name} has no {camera!r}; it has {', '.join(known) or 'none'}"
            )
    if config.write:
        _check_file(Path(config.write), robot.spec.name)
    axis = find_axis(robot.spec, config.joint)
    swing = Swing(axis, config.seconds)
    mode = robot.sample().mode
    if mode not in (Mode.IDLE, Mode.ARMED):
        raise UserError(f"the robot is in mode {mode}: it must be idle or armed, without another commander")
    _ask(config, robot, axis, swing)
    with message_context() as context:
        sockets = ClientSockets(context, parse(config.address), keys, insecure=config.insecure)
        if mode is Mode.IDLE:
            robot.arm()
        try:
            recording = record(robot, sockets, axis, swing, cameras)
        except BaseException:
            # Keep the original error; without a lease the arm stops by itself.
            with suppress(RobotError):
                robot.disarm()
            raise
        if mode is Mode.IDLE:
            robot.disarm()
    return measure(recording, datetime.date.today())


def _ask(config: Config, robot: RobotClient, axis: Axis, swing: Swing) -> None:
    ask_consent(
        f"{robot.spec.name} at {config.address} will swing {axis.name} by {swing.amplitude:.3f} {axis.unit} "
        f"to either side of where it stands, for {swing.seconds:g} s.",
        given=config.go,
        option="go",
    )


def _check_file(path: Path, name: str) -> None:
    """Check, before any motion, that the file belongs to this robot and can be written."""
    robot = load_robot(path)
    if robot.spec.name != name:
        raise UserError(f"{path} is the file of {robot.spec.name}, and the robot at the address is {name}")
    try:
        with_latency(_read(path), robot.latency)
    except ValueError as error:
        raise UserError(f"{path}: {error}") from error


def _write(path: Path, latency: Latency) -> None:
    both = merged_latencies(load_robot(path).latency, latency)
    write_file(path.resolve(), with_latency(_read(path), both).encode())
    print(f"\nwritten to {path}; the server uses it after a restart")


def _read(path: Path) -> str:
    return path.read_bytes().decode("utf-8")
