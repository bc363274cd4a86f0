"""Client of the process that runs ur_rtde, used by the driver; see `ur_process.py`."""

import socket
import subprocess
import sys
import threading
import time

import msgspec

from robot_rl.hardware.child_process import child_environment
from robot_rl.hardware.drivers.driver import Array, DriverError
from robot_rl.hardware.drivers.ur_messages import (
    ASK,
    Command,
    Done,
    Feed,
    Follow,
    Halt,
    Order,
    Quit,
    Recover,
    Start,
    UrOptions,
    UrState,
)

_MAX_MESSAGE = 4096
# Time limits of the process: to connect, to carry out a command, to return a state, s.
_CONNECT, _ANSWER, _STATE = 60.0, 15.0, 1.0


class UrClient:
    """A running process and its two sockets. For one thread, except `halt`, which is thread-safe."""

    def __init__(self, options: UrOptions, period: float) -> None:
        """Start the process and connect the arm.

        Raises:
            DriverError: if the process does not start or cannot connect.
        """
        self._commands, commands = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._states, states = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._commands.settimeout(_CONNECT)
        self._states.settimeout(_STATE)
        self._state = msgspec.msgpack.Decoder(UrState)
        # No setpoint may be sent after `halt`.
        self._lock = threading.Lock()
        self._following = False
        with commands, states:
            ends = (commands.fileno(), states.fileno())
            command = [sys.executable, "-P", "-m", "robot_rl.hardware.drivers.ur_process", *map(str, ends)]
            try:
                self._process = subprocess.Popen(
                    command, stdin=subprocess.DEVNULL, pass_fds=ends, env=child_environment()
                )
            except OSError as error:
                self._commands.close()
                self._states.close()
                raise DriverError(f"the arm's process did not start: {error}") from error
        try:
            self._send(Order(options=options, period=period))
            self._answered("cannot connect to the arm at " + options.host)
        except DriverError:
            self.kill()
            raise
        self._commands.settimeout(_ANSWER)

    def state(self) -> UrState:
        """The newest state.

        Raises:
            DriverError: if the process has ended or hangs.
        """
        try:
            self._states.send(ASK)
            data = self._states.recv(_MAX_MESSAGE)
        except OSError as error:
            raise DriverError(f"the arm's process does not answer: {error}") from error
        if not data:
            raise DriverError("the arm's process ended")
        return self._state.decode(data)

    def start(self) -> None:
        """Accept setpoints from now on. Waits only if the control script has to be loaded again.

        Raises:
            DriverError: if the arm cannot.
        """
        # Set first, so that a `halt` in the meantime wins.
        with self._lock:
            self._following = True
        self._send(Start())
        self._answered("the arm takes no setpoints")

    def follow(self, q: Array) -> None:
        """Send the setpoint `q` [6] rad for one tick from now; does nothing after `halt`.

        Raises:
            DriverError: if the process has ended or hangs.
        """
        with self._lock:
            if self._following:
                self._send(Follow(tuple(q.tolist()), time.monotonic_ns()))

    def feed(self) -> None:
        """Keep the control script running while there are no setpoints.

        Raises:
            DriverError: if the process has ended or hangs.
        """
        self._send(Feed())

    def halt(self) -> None:
        """Stop the arm.

        Raises:
            DriverError: if the process has ended or hangs; the controller's watchdog stops the arm.
        """
        with self._lock:
            self._following = False
            self._send(Halt())

    def recover(self) -> None:
        """Release a protective stop.

        Raises:
            DriverError: if the arm refuses.
        """
        self._send(Recover())
        self._answered("the arm does not recover")

    def quit(self) -> None:
        """Stop the arm, then end the control script and the process."""
        try:
            self._send(Quit())
            self._answered("the control script did not end")
        finally:
            self.kill()

    def kill(self) -> None:
        """Kill the process. The controller's watchdog stops a moving arm."""
        self._process.kill()
        self._process.wait()
        self._commands.close()
        self._states.close()

    def _send(self, message: Command | Order) -> None:
        try:
            self._commands.send(msgspec.msgpack.encode(message), socket.MSG_DONTWAIT)
        except OSError as error:
            # A process whose commands are stuck cannot be recovered; without it the watchdog stops the arm.
            self._process.kill()
            raise DriverError(f"the arm's process takes no commands: {error}") from error

    def _answered(self, what: str) -> None:
        try:
            data = self._commands.recv(_MAX_MESSAGE)
        except OSError as error:
            # A later answer would be taken for that to the next command.
            self.kill()
            raise DriverError(f"{what}: {error}") from error
        if not data:
            raise DriverError(f"{what}: its process ended")
        if why := msgspec.msgpack.decode(data, type=Done).error:
            raise DriverError(f"{what}: {why}")
