"""All checks of a robot, one at a time, since some take seconds."""

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import cast, get_args

from robot_rl.hardware.config import load_robot
from robot_rl.hardware.connection import RobotError
from robot_rl.hardware.protocol.clock_sync import boot_id
from robot_rl.hardware.protocol.endpoints import parse
from robot_rl.hardware.protocol.messages import Role, Welcome
from robot_rl.hardware.protocol.security import load_client_keys
from robot_rl.robot.checks.arms import arm_checks
from robot_rl.robot.checks.cameras import camera_checks
from robot_rl.robot.checks.connection import ServerTarget, connect
from robot_rl.robot.checks.installation import Check
from robot_rl.robot.checks.machine import check_encryption, machine_checks
from robot_rl.robot.checks.observation import SECONDS, observe
from robot_rl.robot.checks.server import server_checks
from robot_rl.robot.checks.usb import usb_checks
from robot_rl.robot.robots import robot_path

SIMULATED = frozenset({"sim", "robosuite"})
"""Drivers whose arms nothing happens to when a tick is late."""


def robot_checks(robot: str, role: str, keys: str | None, insecure: bool) -> Iterator[Check]:
    """Those of a server at an address, or of this machine for a robot by its name or file.

    Raises:
        ValueError: an address, a name, a role or a file of keys that is none.
    """
    if "://" not in robot:
        return check_here(robot_path(robot))
    if role not in get_args(Role):
        raise ValueError(f"role={role}: choose {', '.join(get_args(Role))}")
    own = load_client_keys(Path(keys)) if keys else None
    return check_served(ServerTarget(parse(robot), own, insecure, cast(Role, role)))


def check_served(target: ServerTarget, seconds: float = SECONDS) -> Iterator[Check]:
    """A robot's server, and this machine if it runs here.

    Raises:
        ValueError: a network without keys, or others may enter the directory.
    """
    yield check_encryption()
    try:
        first, line = connect(target)
        yield from first
        if line is None:
            return
        with closing(line):
            seen = observe(target, line, seconds)
            yield from server_checks(target.address, line.welcome, line.offset(), seen)
            yield from camera_checks(line.welcome.spec, seen)
            yield from _its_machine(line.welcome)
    except RobotError as error:
        # It was started anew meanwhile, or hangs only now.
        yield Check("server", False, str(error), "see its output, and run this again")


def check_here(file: Path) -> Iterator[Check]:
    """What the server of a robot would need on this machine.

    Args:
        file: of the robot.

    Raises:
        ValueError: it is none.
    """
    robot = load_robot(file)
    yield Check("robot", True, f"{robot.spec.name}, driver {robot.spec.driver}, {file}")
    yield check_encryption()
    if robot.spec.driver not in SIMULATED:
        yield from machine_checks(robot.spec.driver)
        yield from arm_checks(robot)
    yield from usb_checks(robot.cameras)


def _its_machine(welcome: Welcome) -> Iterator[Check]:
    driver = welcome.spec.driver
    if driver in SIMULATED:
        return
    if welcome.boot_id == boot_id():
        yield from machine_checks(driver)
    else:
        detail = f"the server's machine is another one; there: robot-rl doctor robot={welcome.spec.name}"
        yield Check("real-time", True, detail, known=False)
