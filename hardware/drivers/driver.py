"""Interfaces of a robot arm and its gripper. Every driver passes the conformance suite in tests/hardware."""

import importlib
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from robot_rl.hardware.spec import RobotSpec

Array = NDArray[np.float64]

_QUATERNION_TOLERANCE = 1e-3


class DriverError(Exception):
    """The arm failed: a reflex, a lost connection, a refused command. The server latches a fault."""


@dataclass(frozen=True)
class Pose:
    """Pose of the tool point in the base frame."""

    position: Array
    """[3] m"""
    quaternion: Array
    """[4] xyzw, of length 1"""


def is_unit(quaternion: Sequence[float]) -> bool:
    """Whether a quaternion [4] has length 1, within a tolerance."""
    return abs(math.hypot(*quaternion) - 1) <= _QUATERNION_TOLERANCE


@dataclass(frozen=True)
class Measurement:
    """Measurement of the arm at one time."""

    t: int
    """Time of the measurement on the server's clock, ns."""
    q: Array
    """[n] rad"""
    dq: Array
    """[n] rad/s"""
    tau: Array
    """[n] Nm; empty if the arm does not measure it"""
    pose: Pose
    wrench: Array
    """[6] N, Nm at the tool point; empty if it is not known"""
    sensors: Mapping[str, Array] = field(default_factory=dict)


class Kinematics(Protocol):
    """Forward and inverse kinematics of the tool point."""

    def forward(self, q: Array) -> Pose: ...

    def inverse(self, pose: Pose, near: Array) -> Array | None:
        """Joint positions [n] close to `near` that reach `pose`, None if not found."""
        ...


class Gripper(Protocol):
    """A gripper. Calls may block for a second: the server runs it in its own thread."""

    def move(self, opening: float) -> None:
        """Move to an opening in [0, 1]; closing onto an object grasps it.

        Raises:
            DriverError: if it cannot.
        """
        ...

    def read(self) -> float:
        """The opening in [0, 1].

        Raises:
            DriverError: if it cannot be read.
        """
        ...

    def stop(self) -> None:
        """Stop and keep holding an object. From any thread; a running `move` ends and returns."""
        ...


class Driver(Protocol):
    """An arm. All methods are called from one thread (`stop` from any); none blocks longer than a tick."""

    @property
    def spec(self) -> RobotSpec: ...

    @property
    def kinematics(self) -> Kinematics: ...

    @property
    def gripper(self) -> Gripper | None: ...

    def open(self) -> None:
        """Connect; the arm does not move and takes no setpoints yet.

        Raises:
            DriverError: if it cannot; the message says what to do.
        """
        ...

    def enable(self) -> None:
        """Hold the present position with torque and accept setpoints from now on.

        Raises:
            DriverError: if it is not open or reports a fault.
        """
        ...

    def read(self) -> Measurement:
        """The newest measurement.

        Raises:
            DriverError: if there is none or the arm reports a fault.
        """
        ...

    def write(self, setpoint: Array | Pose) -> None:
        """Set the setpoint for the next tick: joints [n], or a pose for a Cartesian driver.

        It is called at every tick while the arm is enabled.

        Raises:
            DriverError: if the arm did not accept it, for example because it is not finite.
        """
        ...

    def stop(self) -> None:
        """Come to rest as fast as the arm safely can; setpoints are ignored until `enable`."""
        ...

    def recover(self) -> None:
        """Clear the arm's error; only called after an operator has acknowledged the fault.

        The arm stays at rest until `enable`; without an error nothing happens.

        Raises:
            DriverError: if the error persists.
        """
        ...

    def close(self) -> None:
        """Leave the arm at rest and held, then disconnect. Safe to call twice."""
        ...


@runtime_checkable
class ResettableScene(Protocol):
    """Optional interface of a driver: a simulated scene that can be reset to saved initial states."""

    def reset(self, start: int) -> None:
        """Reset the scene to initial state `start`; called between ticks while the arm is not enabled.

        Raises:
            ValueError: if there is no such initial state.
            DriverError: if it cannot.
        """
        ...


def needed(module: str, package: str) -> Any:
    """Import a module of a package that only some robots need.

    Raises:
        ValueError: if it cannot be imported; the message says how to install it.
    """
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise ValueError(f"this arm needs {module} ({error}): pip install {package}") from error
