"""The interface of an arm. Every driver passes the conformance suite in tests/hardware."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from robot_rl.hardware.spec import RobotSpec

Array = NDArray[np.float64]


class DriverError(Exception):
    """The arm cannot go on: a reflex, a lost connection, a refused command. The server latches a fault."""


@dataclass(frozen=True)
class Pose:
    """Of the tool point in the base frame."""

    position: Array
    """[3] m"""
    quaternion: Array
    """[4] xyzw, of length 1"""


@dataclass(frozen=True)
class Measurement:
    """What the arm senses at one moment."""

    t: int
    """When it was sensed, on the server's clock, ns."""
    q: Array
    """[n] rad"""
    dq: Array
    """[n] rad/s"""
    tau: Array
    """[n] Nm; empty where the arm does not measure it"""
    pose: Pose
    wrench: Array
    """[6] N, Nm at the tool point; empty where it is not known"""
    sensors: Mapping[str, Array] = field(default_factory=dict)


class Kinematics(Protocol):
    """Where the tool point is, and which joints bring it there."""

    def forward(self, q: Array) -> Pose: ...

    def inverse(self, pose: Pose, near: Array) -> Array | None:
        """Joints [n] close to `near` that reach `pose`, None where there are none."""
        ...


class Gripper(Protocol):
    """Calls may block for a second: the server gives a gripper its own thread."""

    def move(self, opening: float) -> None:
        """Go to an opening in [0, 1]; closing onto an object grasps it.

        Raises:
            DriverError: it cannot.
        """
        ...

    def read(self) -> float:
        """The opening in [0, 1].

        Raises:
            DriverError: it cannot be read.
        """
        ...

    def stop(self) -> None:
        """Stay as it is, also with what it holds. From any thread; a running `move` ends and returns."""
        ...


class Driver(Protocol):
    """An arm. All calls come from one thread (`stop` from any), none blocks for longer than a tick."""

    @property
    def spec(self) -> RobotSpec: ...

    @property
    def kinematics(self) -> Kinematics: ...

    @property
    def gripper(self) -> Gripper | None: ...

    def open(self) -> None:
        """Connect; the arm does not move and takes no setpoints yet.

        Raises:
            DriverError: it cannot; the message says what to do.
        """
        ...

    def enable(self) -> None:
        """Hold the present position with torque and take setpoints from now on.

        Raises:
            DriverError: it is not open, or it reports a fault.
        """
        ...

    def read(self) -> Measurement:
        """The newest measurement.

        Raises:
            DriverError: there is none or the arm reports a fault.
        """
        ...

    def write(self, setpoint: Array | Pose) -> None:
        """Where the arm shall be at the next tick: joints [n], or a pose for a cartesian driver.

        While it is enabled, the arm is told so at every tick.

        Raises:
            DriverError: the arm did not take it, as it takes nothing that is not finite.
        """
        ...

    def stop(self) -> None:
        """Come to rest in the arm's own shortest safe way; setpoints are ignored until `enable`."""
        ...

    def recover(self) -> None:
        """Clear what the arm calls an error; only ever called for an operator who gave a reason.

        It stays at rest until `enable`; where there is no error, nothing happens.

        Raises:
            DriverError: it persists.
        """
        ...

    def close(self) -> None:
        """Leave the arm at rest and held, then disconnect. Safe to call twice."""
        ...


@runtime_checkable
class ResettableScene(Protocol):
    """What a driver may be besides: a simulated scene whose episodes begin where somebody says."""

    def reset(self, start: int) -> None:
        """Begin anew; only while the arm is not enabled, between two ticks, and as long as it takes.

        Raises:
            ValueError: there is no such beginning.
            DriverError: it cannot.
        """
        ...
