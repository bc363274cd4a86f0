"""Process that runs ur_rtde for one arm.

It is separate from the server because ur_rtde keeps reconnecting by itself: it reloads its script without the
watchdog, and its threads outlive the object. A process can be killed. It also keeps the library's blocking
calls and polling threads out of the server. If the server has real-time priority, so have all its threads.

Started by `ur_client.py` with the file descriptors of its two sockets as arguments; it exits when the first
one is closed.
"""

import contextlib
import os
import signal
import socket
import sys
import threading
import time
import traceback
from collections.abc import Callable

import msgspec
from scipy.spatial.transform import Rotation

from robot_rl.hardware.drivers.driver import needed
from robot_rl.hardware.drivers.ur_messages import (
    PACKAGE,
    PROTECTIVE_STOP,
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
    fault,
)
from robot_rl.hardware.realtime import CONTROL, can_set_realtime_priority

MAX_MESSAGE = 4096

_VARIABLES = (
    "timestamp",
    "actual_q",
    "actual_qd",
    "actual_TCP_pose",
    "actual_TCP_force",
    "robot_mode",
    "safety_mode",
    "runtime_state",
    "speed_scaling",
)
_PLAYING = 2
# The library checks these two but does not use them.
_UNUSED_SPEED, _UNUSED_ACCELERATION = 0.5, 0.5
_STEP = 0.01
_PROGRAM_STARTS, _STOP_RELEASES, _TOOL_SETTLES, _LAST_STOP = 5.0, 3.0, 0.1, 1.0


class Refused(Exception):
    """The arm refused a command; the text says why."""


class UrLink:
    """A connected arm whose control script is running."""

    def __init__(self, options: UrOptions, period: float) -> None:
        self._options = options
        self._period = period
        self._receive = needed("rtde_receive", PACKAGE).RTDEReceiveInterface(
            options.host, -1.0, list(_VARIABLES)
        )
        self._check_ready()
        self._control = needed("rtde_control", PACKAGE).RTDEControlInterface(options.host)
        x, y, z, *quaternion = options.tool
        if not self._control.setTcp([x, y, z, *Rotation.from_quat(quaternion).as_rotvec()]):
            raise Refused("the arm did not accept its tool")
        # Wait until states have the new tool.
        time.sleep(_TOOL_SETTLES)
        self.trouble = ""

    def state(self) -> UrState:
        receive = self._receive
        return UrState(
            connected=receive.isConnected(),
            time=receive.getTimestamp(),
            q=tuple(receive.getActualQ()),
            dq=tuple(receive.getActualQd()),
            tool=tuple(receive.getActualTCPPose()),
            force=tuple(receive.getActualTCPForce()),
            robot_mode=receive.getRobotMode(),
            safety_mode=receive.getSafetyMode(),
            playing=self.playing(),
            speed_scaling=receive.getSpeedScaling(),
            trouble=self.trouble,
        )

    def playing(self) -> bool:
        return bool(self._receive.getRuntimeState() == _PLAYING)

    def start(self) -> None:
        """Start the control script, if it does not run, with the controller's watchdog.

        Raises:
            Refused: if the arm is not ready.
        """
        self._check_ready()
        self.trouble = ""
        if not self.playing():
            self._control.reuploadScript()
            self._await(self.playing, _PROGRAM_STARTS, "the control script did not start")
        if not self._control.setWatchdog(1 / self._options.watchdog):
            raise Refused("the controller did not set its watchdog")

    def follow(self, message: Follow) -> None:
        """Send a setpoint to servoj, unless it is too old."""
        if self.trouble or time.monotonic_ns() - message.t > self._options.watchdog * 1e9:
            return
        options = self._options
        if not self._control.servoJ(
            list(message.q),
            _UNUSED_SPEED,
            _UNUSED_ACCELERATION,
            self._period,
            options.lookahead,
            options.gain,
        ):
            self.trouble = "the controller did not accept a setpoint"

    def halt(self) -> None:
        """Brake; without a running script the arm has already stopped."""
        if self.playing() and not self._control.servoStop(self._options.deceleration) and self.playing():
            self.trouble = "the arm was told to stop and did not answer"

    def feed(self) -> None:
        if self.playing():
            self._control.kickWatchdog()

    def recover(self) -> None:
        """Release a protective stop, which the controller allows after five seconds.

        Raises:
            Refused: if it does not, or another fault has to be cleared at the arm.
        """
        if self._protected():
            dashboard = needed("dashboard_client", PACKAGE).DashboardClient(self._options.host)
            dashboard.connect()
            dashboard.unlockProtectiveStop()
            dashboard.closeSafetyPopup()
            dashboard.disconnect()
            self._await(lambda: not self._protected(), _STOP_RELEASES, "the protective stop stays")
        self._check_ready()
        self.trouble = ""

    def quit(self) -> None:
        if self.playing():
            self.halt()
            self._control.stopScript()

    def _protected(self) -> bool:
        return bool(self._receive.getSafetyMode() == PROTECTIVE_STOP)

    def _check_ready(self) -> None:
        if why := fault(self._receive.getRobotMode(), self._receive.getSafetyMode()):
            raise Refused(why)

    @staticmethod
    def _await(condition: Callable[[], bool], seconds: float, otherwise: str) -> None:
        end = time.monotonic() + seconds
        while not condition():
            if time.monotonic() > end:
                raise Refused(otherwise)
            time.sleep(_STEP)


def _serve_states(link: UrLink, own: socket.socket) -> None:
    while own.recv(MAX_MESSAGE):
        own.send(msgspec.msgpack.encode(link.state()))
    # The command thread brakes the arm and ends the process, unless the library blocks it.
    time.sleep(_LAST_STOP)
    os._exit(0)


def _serve_commands(link: UrLink, own: socket.socket) -> None:
    """Serve commands until the server closes the socket."""
    decoder = msgspec.msgpack.Decoder(Command)
    following = False
    try:
        while data := own.recv(MAX_MESSAGE):
            command: Command = decoder.decode(data)
            match command:
                case Follow():
                    following = True
                    link.follow(command)
                case Halt():
                    following = False
                    link.halt()
                case Feed():
                    link.feed()
                case _:
                    own.send(msgspec.msgpack.encode(_answer(link, command)))
    finally:
        # The server has ended, or the library failed: there will be no more setpoints.
        if following:
            link.halt()


def _answer(link: UrLink, command: Start | Recover | Quit) -> Done:
    try:
        match command:
            case Start():
                link.start()
            case Recover():
                link.recover()
            case Quit():
                link.quit()
    except Exception as error:
        return Done(error=" ".join(str(error).split()))
    return Done()


def main(commands: str, states: str) -> None:
    """Connect and serve on the sockets with these file descriptors."""
    # Ctrl-C, `systemctl stop` and a closed terminal reach the server too. It brakes the arm, which needs this
    # process, and then closes the socket.
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    if can_set_realtime_priority():
        # Inherited by the library's threads, for which the library's own option has no effect.
        os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(CONTROL))
    own, own_states = socket.socket(fileno=int(commands)), socket.socket(fileno=int(states))
    order = msgspec.msgpack.decode(own.recv(MAX_MESSAGE), type=Order)
    try:
        link = UrLink(order.options, order.period)
    except Exception as error:
        own.send(msgspec.msgpack.encode(Done(error=" ".join(str(error).split()) or repr(error))))
        os._exit(1)
    own.send(msgspec.msgpack.encode(Done()))
    threading.Thread(target=_serve_states, args=(link, own_states), daemon=True).start()
    try:
        with contextlib.suppress(OSError):
            _serve_commands(link, own)
    except Exception:
        traceback.print_exc()
    finally:
        # Exit without cleanup: the library's threads may be in any state.
        os._exit(0)


if __name__ == "__main__":
    main(*sys.argv[1:])
