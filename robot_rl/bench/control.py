"""Latency of a robot's server, and the time until it holds the arm after its commander is lost.

Everything is measured through the sockets: a server process with the simulated Panda and all its checks, and
clients in other processes. All use CLOCK_MONOTONIC.
"""

import math
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path

import numpy as np
import zmq

from robot_rl.bench.echo import echo_trips, wake_lateness
from robot_rl.hardware.child_process import start_guarded
from robot_rl.hardware.client import NoAnswer, RobotClient
from robot_rl.hardware.protocol.arrays import decode_image
from robot_rl.hardware.protocol.codec import decode_server
from robot_rl.hardware.protocol.endpoints import CHANNELS, parse
from robot_rl.hardware.protocol.messages import Event, Loop, State
from robot_rl.hardware.protocol.security import ClientKeys, load_client_keys, make_client_keys
from robot_rl.hardware.protocol.sockets import ClientSockets
from robot_rl.hardware.realtime import COMMANDS, realtime_priority

_PATIENCE = 60.0
"""s to wait for a server to start, for an event or for an image."""
_RATE = 100.0
"""Commands per second."""


@dataclass(frozen=True)
class ControlFigures:
    """Measured latencies and rates."""

    round_trip_us: dict[str, float] = field(default_factory=dict)
    """From sending a command to its answer: p50 and p99 over a Unix socket, `curve_p99` with keys over
    loopback TCP."""
    loop_lateness_us: dict[str, float] = field(default_factory=dict)
    """Delay of the ticks' begin; a fraction `overrun_fraction` is more than half a period late."""
    command_loss_to_hold_ms: dict[str, float] = field(default_factory=dict)
    """From the signal that ends or stops the commander to mode HOLD, including the lease."""
    hold_to_soft_stop_ms: float = math.nan
    """From HOLD to the latched fault."""
    state_rate_hz: float = math.nan
    """States per second received by a subscriber."""
    image_age_ms_p99: float | None = None
    """From an image's capture to its arrival at a subscriber; None where nothing can be rendered."""
    machine: dict[str, float] = field(default_factory=dict)
    """The machine's own latency without a robot: `echo_us_…` is the round trip of a message between two
    processes, `wake_us_…` the wake-up delay of a thread with real-time priority. No server can be faster."""

    def plain(self) -> dict[str, object]:
        """For JSON."""
        return asdict(self)


def measure_control(seconds: float, folder: Path, *, images: bool) -> ControlFigures:
    """Measure each figure for about `seconds`; `folder` must be empty and have a short path."""
    address = f"ipc://{folder / 'r'}"
    with serving(address), RobotClient(address, "bench", "operator") as robot:
        started = _loop(robot)
        trips = _round_trips(robot, seconds)
        # At once: its percentiles are of the newest 2000 ticks.
        loop = _loop(robot)
        rate = _state_rate(address, seconds)
        held = {name: _hold(robot, address, end) for name, end in _ENDS.items()}
    return ControlFigures(
        round_trip_us={
            "p50": _percentile(trips, 50),
            "p99": _percentile(trips, 99),
            "curve_p99": _percentile(_curve_trips(seconds, folder), 99),
        },
        loop_lateness_us={
            "p50": loop.late_us_p50,
            "p99": loop.late_us_p99,
            "overrun_fraction": (loop.overruns - started.overruns) / (loop.ticks - started.ticks),
        },
        command_loss_to_hold_ms={name: hold for name, (hold, _) in held.items()},
        hold_to_soft_stop_ms=max(stop for _, stop in held.values()),
        state_rate_hz=rate,
        image_age_ms_p99=_image_age(seconds, folder) if images else None,
        machine=_machine(seconds, folder),
    )


_ENDS = {"sigkill": signal.SIGKILL, "sigstop": signal.SIGSTOP}


@contextmanager
def serving(address: str, *arguments: str, keys: ClientKeys | None = None) -> Iterator[None]:
    """Context with a running server of the simulated Panda."""
    command = [sys.executable, "-m", "robot_rl", "robot", "driver=sim_panda", f"address={address}"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    server = start_guarded([*command, *arguments], stdout=subprocess.DEVNULL, environment=environment)
    try:
        give_up = time.monotonic() + _PATIENCE
        while True:
            try:
                with RobotClient(address, "bench", "observer", keys=keys) as robot:
                    robot.state(1.0)
                break
            except NoAnswer:
                if server.poll() is not None or time.monotonic() > give_up:
                    raise
        yield
    finally:
        server.terminate()
        try:
            server.wait(_PATIENCE)
        finally:
            server.kill()


def _loop(robot: RobotClient) -> Loop:
    loop = robot.state(math.inf).loop
    assert loop is not None
    return loop


def _round_trips(robot: RobotClient, seconds: float) -> list[float]:
    """Round trips in us of commands that hold the arm where it is."""
    robot.arm()
    trips: list[float] = []
    # As `robot-rl deploy` does.
    with robot.lease("script"), realtime_priority(COMMANDS):
        here = robot.state(math.inf).q
        due = time.monotonic_ns()
        end = due + round(seconds * 1e9)
        while due < end:
            begun = time.monotonic_ns()
            robot.command("joint_position", here)
            trips.append((time.monotonic_ns() - begun) / 1e3)
            # Random intervals, so that commands arrive at every phase of a tick.
            due = max(due + round(random.uniform(0.5, 1.5) * 1e9 / _RATE), begun)
            time.sleep(max(0, due - time.monotonic_ns()) * 1e-9)
    robot.disarm()
    return trips


def _curve_trips(seconds: float, folder: Path) -> list[float]:
    client = make_client_keys(folder / "keys", "bench", "operator")
    keys = load_client_keys(client)
    port = random.randrange(20_000, 30_000 - len(CHANNELS))
    address = f"tcp://127.0.0.1:{port}"
    with (
        serving(address, f"keys={folder / 'keys'}", keys=keys),
        RobotClient(address, "bench", "operator", keys=keys) as robot,
    ):
        return _round_trips(robot, seconds)


def _state_rate(address: str, seconds: float) -> float:
    with zmq.Context() as context:
        socket = ClientSockets(context, parse(address)).state(every=True)
        first: State | None = None
        count, begun = 0, 0
        while first is None or time.monotonic_ns() < begun + seconds * 1e9:
            if not socket.poll(1000):
                raise NoAnswer("no state came for a second")
            message = decode_server(socket.recv())
            assert isinstance(message, State)
            if first is None:
                first, begun = message, time.monotonic_ns()
            else:
                count += 1
        passed = time.monotonic_ns() - begun
        socket.close()
    return count / (passed * 1e-9)


def _hold(robot: RobotClient, address: str, end: int) -> tuple[float, float]:
    """ms from the end of a commander to HOLD, and from there to the fault."""
    robot.arm()
    since = robot.events()[-1].seq
    swing = subprocess.Popen(
        [sys.executable, "-m", "robot_rl.hardware.swing_client", address], stdout=subprocess.PIPE, text=True
    )
    try:
        assert swing.stdout is not None
        if "commanding" not in (line := swing.stdout.readline()):
            raise NoAnswer(f"the commander ended: {line}")
        time.sleep(1.0)
        ended = time.monotonic_ns()
        swing.send_signal(end)
        fault = _event(robot, "fault by", since)
        hold = _event(robot, "hold by lease_lost", since)
    finally:
        swing.kill()
        swing.communicate()
    if hold.tm < ended:
        raise NoAnswer("the commander lost its lease before it was stopped: the machine is too busy")
    robot.acknowledge("measured")
    return (hold.tm - ended) / 1e6, (fault.tm - hold.tm) / 1e6


def _event(robot: RobotClient, text: str, since: int) -> Event:
    give_up = time.monotonic() + _PATIENCE
    while time.monotonic() < give_up:
        for event in robot.events(since):
            if text in event.text:
                return event
        time.sleep(0.05)
    raise NoAnswer(f"no event with {text!r} in {_PATIENCE:g} s")


def _image_age(seconds: float, folder: Path) -> float:
    address = f"ipc://{folder / 'i'}"
    ages: list[float] = []
    with serving(address, "cameras=[front]"), zmq.Context() as context:
        socket = ClientSockets(context, parse(address)).image("front")
        # The camera's process takes a while to start.
        give_up = time.monotonic() + _PATIENCE
        end = math.inf
        while time.monotonic() < min(end, give_up):
            if socket.poll(1000):
                frame, _ = decode_image(socket.recv())
                if end == math.inf:
                    end = give_up = time.monotonic() + seconds
                ages.append((time.monotonic_ns() - frame.t_capture) / 1e6)
        socket.close()
    if not ages:
        raise NoAnswer("no image came")
    return _percentile(ages, 99)


def _machine(seconds: float, folder: Path) -> dict[str, float]:
    echo = echo_trips(f"ipc://{folder / 'e'}", seconds, _RATE)
    wake = wake_lateness(seconds, _RATE)
    return {
        f"{name}_p{percent}": _percentile(values, percent)
        for name, values in (("echo_us", echo), ("wake_us", wake))
        for percent in (50, 99)
    }


def _percentile(values: list[float], percent: int) -> float:
    return float(np.percentile(values, percent))
