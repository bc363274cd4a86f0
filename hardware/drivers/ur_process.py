"""The process that holds ur_rtde's connection to one arm.

Apart from the server, because ur_rtde mends a lost connection by itself, again and again: it loads its script
anew, without its watchdog, and its threads outlive the object. A process can be ended. It also keeps the
library's waiting and its polling threads out of the server. Where the server's control thread runs first, all
threads that it waits for do, too.

Started by `ur_client.py` with the two ends of its sockets as arguments; it ends with the first of them.
"""

import contextlib
import os
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable

import msgspec
from scipy.spatial.transform import Rotation

from robot_rl.hardware.drivers.extras import needed
from robot_rl.hardware.drivers.ur_messages import (
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
# The library checks these two and uses neither.
_UNUSED_SPEED, _UNUSED_ACCELERATION = 0.5, 0.5
_STEP = 0.01
_PROGRAM_STARTS, _STOP_RELEASES, _TOOL_SETTLES, _LAST_STOP = 5.0, 3.0, 0.1, 1.0


class Refused(Exception):
    """The arm does not do it; the text says why."""


class UrLink:
    """A connected arm whose control script runs; nothing moves yet."""

    def __init__(self, options: UrOptions, period: float) -> None:
        self._options = options
        self._period = period
        self._receive = needed("rtde_receive", "ur").RTDEReceiveInterface(
            options.host, -1.0, list(_VARIABLES)
        )
        self._check_ready()
        self._control = needed("rtde_control", "ur").RTDEControlInterface(options.host)
        x, y, z, *quaternion = options.tool
        if not self._control.setTcp([x, y, z, *Rotation.from_quat(quaternion).as_rotvec()]):
            raise Refused("the arm did not take its tool")
        # So that the first state is one with the new tool.
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
        """Have the script running, and stopped by the controller when nothing feeds it.

        Raises:
            Refused: the arm is not able to.
        """
        self._check_ready()
        self.trouble = ""
        if not self.playing():
            self._control.reuploadScript()
            self._await(self.playing, _PROGRAM_STARTS, "the control script did not start")
        if not self._control.setWatchdog(1 / self._options.watchdog):
            raise Refused("the controller did not set its watchdog")

    def follow(self, message: Follow) -> None:
        """Servo there, unless it was said too long ago."""
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
            self.trouble = "the controller took no setpoint"

    def halt(self) -> None:
        """Brake; where no script runs the arm has stopped already."""
        if self.playing() and not self._control.servoStop(self._options.deceleration) and self.playing():
            self.trouble = "the arm was told to stop and did not answer"

    def feed(self) -> None:
        if self.playing():
            self._control.kickWatchdog()

    def recover(self) -> None:
        """Release a protective stop, which the controller allows five seconds after it.

        Raises:
            Refused: it does not, or something else is wrong that only a person at the arm can put right.
        """
        if self._protected():
            dashboard = needed("dashboard_client", "ur").DashboardClient(self._options.host)
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
    # The thread of the commands brakes the arm and ends the process, unless the library keeps it waiting.
    time.sleep(_LAST_STOP)
    os._exit(0)


def _serve_commands(link: UrLink, own: socket.socket) -> None:
    """Until the server says so or is gone."""
    decoder = msgspec.msgpack.Decoder(Command)
    following = False
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
    # The server is gone, and with it the setpoints.
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
    """Connect and serve, on the sockets with these file descriptors."""
    # Ctrl-C is the server's to answer: it stops the arm first.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    if can_set_realtime_priority():
        # Inherited by the library's threads, on which its own option for this has no effect.
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
    with contextlib.suppress(OSError):
        _serve_commands(link, own)
    # Not by returning: the library's threads may be in any state.
    os._exit(0)


if __name__ == "__main__":
    main(*sys.argv[1:])
