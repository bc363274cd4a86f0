"""A server of the simulated Panda as a process, which writes at its end what the arm has gone through.

`python lone_server.py ADDRESS REPORT LEASE_MS HOLD [KEYS]`: a lease of 0 ms is one that no busy machine
loses, one of more than 1000 ms is longer than a user may ask for, and HOLD is `as it is` or `long`. SIGUSR1
makes the control thread busy until the next one, SIGUSR2 is a fault of the program, SIGHUP jams the gripper
until the next one, SIGWINCH leaves a few file descriptors until the next one.
"""

import json
import os
import resource
import signal
import sys
import time
from pathlib import Path

import numpy as np

from robot_rl.hardware.clock import MonotonicClock
from robot_rl.hardware.core.core import CoreSettings
from robot_rl.hardware.drivers.driver import Array, DriverError, Measurement, Pose
from robot_rl.hardware.drivers.sim import SimDriver, SimGripper
from robot_rl.hardware.protocol.clock_sync import boot_id
from robot_rl.hardware.protocol.endpoints import parse
from robot_rl.hardware.protocol.messages import Ack, Command, Refused
from robot_rl.hardware.protocol.security import load_server_keys
from robot_rl.hardware.robot_file import load_robot
from robot_rl.hardware.server import RobotServer
from tests.hardware.ready import Ready
from tests.hardware.unhurried import LONG, extend_hold, extend_leases

ROBOT = Path(__file__).parents[2] / "configs" / "robot" / "sim_panda.yaml"
LONGEST_LEASE = 1000
"""ms that a server takes as a setting."""
MOST_BUSY = 120.0
"""s after which the control thread goes on although nobody asked it to."""


class WatchedArm(SimDriver):
    """Keeps the greatest step of a setpoint, as a part of what is allowed, and when it was stopped."""

    busy = broken = False
    busy_began = busy_ended = first_stop = 0
    greatest_step = 0.0
    _last: Array | None = None

    def enable(self) -> None:
        super().enable()
        self._last = None

    def read(self) -> Measurement:
        if self.busy:
            self.busy_began = time.monotonic_ns()
            while self.busy and time.monotonic_ns() < self.busy_began + MOST_BUSY * 1e9:
                time.sleep(0.01)
            self.busy, self.busy_ended = False, time.monotonic_ns()
        if self.broken:
            raise RuntimeError("a fault of the program")
        return super().read()

    def write(self, setpoint: Array | Pose) -> None:
        assert not isinstance(setpoint, Pose)
        if self._last is not None:
            most = np.array(self.spec.limits.joint_velocity) / self.spec.rate
            self.greatest_step = max(self.greatest_step, float((np.abs(setpoint - self._last) / most).max()))
        self._last = setpoint.copy()
        super().write(setpoint)

    def stop(self) -> None:
        self.first_stop = self.first_stop or time.monotonic_ns()
        super().stop()


def main() -> None:
    address, report, lease, hold, *keys = sys.argv[1:]
    lease_ms = int(lease) or LONG
    if lease_ms > LONGEST_LEASE:
        extend_leases(lease_ms=lease_ms)
    if hold == "long":
        extend_hold()
    clock = MonotonicClock()
    driver = WatchedArm(load_robot(ROBOT).spec, "panda", clock)
    server = RobotServer(
        driver,
        parse(address),
        CoreSettings(lease_ms=min(lease_ms, LONGEST_LEASE), boot_id=boot_id()),
        keys=load_server_keys(Path(keys[0])) if keys else None,
        state_callbacks=[Ready()],
    )
    commands: list[dict[str, object]] = []
    handle = server.core.handle

    def noted(peer, message):  # type: ignore[no-untyped-def]
        arrived = clock.now()
        answer = handle(peer, message)
        if isinstance(message, Command):
            assert isinstance(answer, Ack | Refused)
            commands.append(
                {
                    "who": peer.name,
                    "lease": message.lease,
                    "seq": message.seq,
                    "age_ms": (arrived - message.t_sent) / 1e6,
                    "ttl_ms": message.ttl_ms,
                    "verdict": "ack" if isinstance(answer, Ack) else str(answer.code),
                }
            )
        return answer

    server.core.handle = noted  # type: ignore[method-assign]
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: server.close_soon())
    signal.signal(signal.SIGUSR1, lambda *_: setattr(driver, "busy", not driver.busy))
    signal.signal(signal.SIGUSR2, lambda *_: setattr(driver, "broken", True))
    signal.signal(signal.SIGHUP, lambda *_: jam(driver.gripper))
    taken: list[int] = []
    signal.signal(signal.SIGWINCH, lambda *_: take_descriptors(taken))
    try:
        server.run()
    finally:
        write_report(Path(report), driver, server, commands)


def take_descriptors(taken: list[int]) -> None:
    if taken:
        for descriptor in taken:
            os.close(descriptor)
        taken.clear()
        return
    limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    while len(os.listdir("/proc/self/fd")) < limit - 20:
        taken += [os.dup(0) for _ in range(10)]


def jam(gripper: SimGripper) -> None:
    def read() -> float:
        raise DriverError("jammed")

    if "read" in vars(gripper):
        del gripper.read
    else:
        gripper.read = read  # type: ignore[method-assign]


def write_report(
    path: Path, driver: WatchedArm, server: RobotServer, commands: list[dict[str, object]]
) -> None:
    n = len(driver.spec.joints)
    state = driver.render_state()
    path.write_text(
        json.dumps(
            {
                "speed": float(np.abs(state.qvel[:n]).max()),
                "greatest_step": driver.greatest_step,
                "busy": [driver.busy_began, driver.busy_ended],
                "first_stop": driver.first_stop,
                "commands": commands,
                "events": [[event.what, event.text] for event in server.core.events.since(0)],
            }
        )
    )


if __name__ == "__main__":
    main()
