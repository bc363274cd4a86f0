"""Checks of an arm's driver: its library and its controller."""

import dataclasses
import socket
import sys
from collections.abc import Iterator
from importlib import metadata

from packaging.requirements import Requirement

from robot_rl.hardware.robot_file import RobotConfig
from robot_rl.robot.checks.installation import Check, check_package

_FRANKA_PORT = 1337
_DASHBOARD_PORT = 29999
_TIMEOUT = 2.0
_VERSION_NOTE = "start the server: its library refuses an incompatible version"


def arm_checks(robot: RobotConfig) -> Iterator[Check]:
    """Run the checks of the robot's driver; they only read from the arm."""
    host = str(robot.options.get("host", ""))
    if robot.spec.driver == "franka":
        yield check_library("franky-control")
        yield check_reachable(host, _FRANKA_PORT)
        library = f"libfranka {version}" if (version := libfranka()) else "libfranka"
        yield Check("firmware", True, f"{library}; {_VERSION_NOTE}", known=False)
    elif robot.spec.driver == "ur":
        yield check_library("ur_rtde")
        yield from ur_checks(host)


def check_library(package: str) -> Check:
    """Check that a package is installed and can be imported."""
    check = check_package(Requirement(package))
    if check.detail == "not installed":
        return dataclasses.replace(check, fix=f"{sys.executable} -m pip install {package}")
    return check


def libfranka() -> str:
    """Version of the libfranka bundled with franky, "" if unknown."""
    try:
        files = metadata.files("franky-control") or []
    except metadata.PackageNotFoundError:
        return ""
    return next((file.name.partition(".so.")[2] for file in files if "libfranka" in file.name), "")


def check_reachable(host: str, port: int) -> Check:
    """Check that a host accepts connections at a port."""
    try:
        socket.create_connection((host, port), _TIMEOUT).close()
    except OSError as error:
        return _unreachable(host, port, error)
    return Check("controller", True, f"{host} accepts connections at port {port}")


def ur_checks(host: str, port: int = _DASHBOARD_PORT) -> Iterator[Check]:
    """Check a UR controller through its dashboard server."""
    questions = ("PolyscopeVersion", "is in remote control", "robotmode", "safetystatus")
    try:
        version, remote, mode, safety = _dashboard(host, port, questions)
    except OSError as error:
        yield _unreachable(host, port, error)
        return
    yield Check("controller", True, f"{host}, {version}")
    fix = "at the teach pendant: Settings, System, Remote Control on; then Remote at the top right"
    yield Check("remote control", remote == "true", "on" if remote == "true" else f"off ({remote})", fix)
    running = mode.upper().endswith("RUNNING")
    yield Check("arm mode", running, mode, "at the teach pendant: switch the arm on and release its brakes")
    normal = safety.upper().endswith(("NORMAL", "REDUCED"))
    yield Check("arm safety", normal, safety, "remove its cause; then release it at the teach pendant")


def _dashboard(host: str, port: int, questions: tuple[str, ...]) -> list[str]:
    """Send each question and return the one-line answers.

    Raises:
        OSError: if the dashboard does not answer.
    """
    with socket.create_connection((host, port), _TIMEOUT) as line, line.makefile("rw", newline="\n") as talk:
        answers = [talk.readline()]
        for question in questions:
            talk.write(question + "\n")
            talk.flush()
            answers.append(talk.readline().strip())
    if not all(answers):
        raise ConnectionError("connection closed")
    return answers[1:]


def _unreachable(host: str, port: int, error: OSError) -> Check:
    reason = (error.strerror or str(error)).lower()
    fix = f"check the arm's power, the cable and options.host: ping {host}"
    return Check("controller", False, f"{host} port {port}: {reason}", fix)
