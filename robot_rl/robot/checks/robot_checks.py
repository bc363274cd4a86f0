"""Runs all checks of a robot one by one, since some take seconds."""

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import cast, get_args

from robot_rl.hardware.connection import RobotError
from robot_rl.hardware.protocol.clock_sync import boot_id
from robot_rl.hardware.protocol.endpoints import parse
from robot_rl.hardware.protocol.messages import Role, Welcome
from robot_rl.hardware.protocol.security import load_own_keys
from robot_rl.hardware.robot_file import load_robot
from robot_rl.robot.checks.arms import arm_checks
from robot_rl.robot.checks.connection import ServerTarget, connect
from robot_rl.robot.checks.host import check_encryption, machine_checks, usb_checks
from robot_rl.robot.checks.installation import Check
from robot_rl.robot.checks.observation import SECONDS, observe
from robot_rl.robot.checks.server import camera_checks, server_checks
from robot_rl.robot.robots import robot_path

SIMULATED = frozenset({"sim", "robosuite"})
"""Drivers of simulated arms, which need no real-time machine."""


def robot_checks(robot: str, role: str, keys: str | None, insecure: bool) -> Iterator[Check]:
    """Checks of a server, given its address, or of this machine, given a robot's name or file.

    Raises:
        ValueError: if the address, name, role or file of keys is invalid.
    """
    if "://" not in robot:
        return check_here(robot_path(robot))
    if role not in get_args(Role):
        raise ValueError(f"role={role}: choose {', '.join(get_args(Role))}")
    own = load_own_keys(keys)
    return check_served(ServerTarget(parse(robot), own, insecure, cast(Role, role)))


def check_served(target: ServerTarget, seconds: float = SECONDS) -> Iterator[Check]:
    """Check a robot's server, and this machine if the server runs here.

    Raises:
        ValueError: if a network is used without keys, or other users can access the socket's directory.
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
            yield from _server_machine_checks(line.welcome)
    except RobotError as error:
        # The server restarted or hung during the checks.
        yield Check("server", False, str(error), "check its output, and run this again")


def check_here(file: Path) -> Iterator[Check]:
    """Check that this machine can run the server of a robot.

    Args:
        file: the robot's file.

    Raises:
        ValueError: if the file is invalid.
    """
    robot = load_robot(file)
    yield Check("robot", True, f"{robot.spec.name}, driver {robot.spec.driver}, {file}")
    yield check_encryption()
    if robot.spec.driver not in SIMULATED:
        yield from machine_checks(robot.spec.driver)
        yield from arm_checks(robot)
    yield from usb_checks(robot.cameras)


def _server_machine_checks(welcome: Welcome) -> Iterator[Check]:
    driver = welcome.spec.driver
    if driver in SIMULATED:
        return
    if welcome.boot_id == boot_id():
        yield from machine_checks(driver)
    else:
        detail = f"the server runs on another machine; run there: robot-rl doctor robot={welcome.spec.name}"
        yield Check("real-time", True, detail, known=False)
