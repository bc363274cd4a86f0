"""Client that swings one joint until it is killed: for tests and benchmarks of a lost client.

`python -m robot_rl.hardware.swing_client ADDRESS [KEYS]`; the arm has to be armed. It prints `commanding`
after its first command, and the error if the server ends it.
"""

import math
import sys
import time
from pathlib import Path

from robot_rl.hardware.client import RobotClient, RobotError
from robot_rl.hardware.protocol.security import load_client_keys

WIDTH = 0.1
"""Amplitude, rad."""
SECONDS = 2.0
"""Period of a swing, s."""
RATE = 50.0
"""Commands per second."""
REFUSED = 3
"""Exit code after a command was refused or not answered."""


def main() -> int:
    """Swing; returns an exit code."""
    keys = load_client_keys(Path(sys.argv[2])) if len(sys.argv) > 2 else None
    try:
        with RobotClient(sys.argv[1], "swing", "policy", keys=keys, timeout=30.0) as robot:
            joints = list(robot.state(math.inf).q)
            middle = joints[0]
            with robot.lease("script"):
                begun = time.monotonic()
                number = 0
                while True:
                    number += 1
                    passed = time.monotonic() - begun
                    joints[0] = middle + WIDTH * math.sin(2 * math.pi * passed / SECONDS)
                    robot.command("joint_position", joints, ttl_ms=1000)
                    if number == 1:
                        print("commanding", flush=True)
                    time.sleep(1 / RATE)
    except RobotError as error:
        print(f"{type(error).__name__}: {error}", flush=True)
        return REFUSED


if __name__ == "__main__":
    sys.exit(main())
