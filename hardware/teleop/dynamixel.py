"""Reads the angles of Dynamixel motors (X series, protocol 2.0) on one serial line."""

import math
import termios
from collections.abc import Sequence
from typing import Any, Final

from robot_rl.hardware.clock import MonotonicClock
from robot_rl.hardware.drivers.driver import needed
from robot_rl.hardware.teleop.device import DeviceError

_PRESENT_POSITION: Final = (132, 4)
"""Address and bytes."""
_TURN: Final = 4096
_READ_TIMEOUT: Final = 0.005
"""Read timeout of the serial line, s."""
_UNPLUGGED: Final = (OSError, termios.error)
"""Exceptions that an unplugged line raises."""


class NoReading(Exception):
    """A motor did not answer, or its answer is unreadable; the message names the motor and the reason."""


class Dynamixels:
    """A group of motors that are read together. For one thread."""

    def __init__(self, path: str, baudrate: int, ids: Sequence[int]) -> None:
        """Open the serial line.

        Raises:
            DeviceError: if it cannot be opened.
        """
        sdk = needed("dynamixel_sdk", "dynamixel-sdk")
        self._path, self._ids, self._success = path, ids, sdk.COMM_SUCCESS
        self._port = _port(sdk, path)
        self._packets = sdk.PacketHandler(2.0)
        try:
            opened = self._port.setBaudRate(baudrate)
        except PermissionError:
            raise DeviceError(f"{path}: permission denied; {_FIX}") from None
        except _UNPLUGGED as error:
            reason = getattr(error, "strerror", None) or error
            fix = _FIX if "ermission" in str(error) else "is the leader plugged in?"
            raise DeviceError(f"{path}: {str(reason).lower()}; {fix}") from None
        if not opened:
            raise DeviceError(f"device.baudrate={baudrate}: Dynamixel motors do not support it")

    def read(self) -> list[float]:
        """Read the angle of each motor, rad, relative to the motor's zero.

        Raises:
            NoReading: if a motor cannot be read.
            DeviceError: if the line has disappeared.
        """
        try:
            sent = self._packets.syncReadTx(
                self._port, *_PRESENT_POSITION, list(self._ids), len(self._ids), False
            )
            if sent != self._success:
                raise NoReading(f"the line accepts no data ({self._packets.getTxRxResult(sent)})")
            return [self._angle(motor) for motor in self._ids]
        except _UNPLUGGED:
            raise DeviceError(f"the leader is gone from {self._path}: plug it in and start again") from None

    def close(self) -> None:
        """Close the line. Safe to call twice."""
        if self._port.is_open:
            self._port.closePort()

    def _angle(self, motor: int) -> float:
        data, result, error = self._packets.readRx(self._port, motor, _PRESENT_POSITION[1])
        if result != self._success:
            raise NoReading(f"motor {motor}: {self._packets.getTxRxResult(result)}")
        if error:
            raise DeviceError(
                f"the leader's motor {motor} reports error {error:#04x}; switch its power off and on"
            )
        return int.from_bytes(bytes(data), "little", signed=True) * math.tau / _TURN


def _port(sdk: Any, path: str) -> Any:
    class Port(sdk.PortHandler):
        """Blocks for bytes instead of polling, and measures timeouts by the monotonic clock."""

        def setupPort(self, cflag_baud: int) -> bool:
            done = super().setupPort(cflag_baud)
            self.ser.timeout = _READ_TIMEOUT
            return bool(done)

        def getCurrentTime(self) -> float:
            return MonotonicClock().now() * 1e-6

    return Port(path)


_FIX: Final = "as root: usermod -aG dialout <you>, then log in again"
