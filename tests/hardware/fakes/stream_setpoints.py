"""A process to be killed: opens the arm at an address and swings its first joint."""

import importlib
import sys
import time
from math import sin

from robot_rl.hardware.clock import MonotonicClock


def main(kind: str, host: str) -> None:
    """`kind` is a module of this folder with a `config` and a `make`."""
    module = importlib.import_module(f"tests.hardware.fakes.{kind}")
    driver = module.make(module.config(host, watchdog=1.0), MonotonicClock())
    driver.open()
    driver.enable()
    q = driver.read().q
    start, phase = q[0], 0.0
    print("streaming", flush=True)
    while True:
        q[0] = start + 0.3 * sin(phase)
        driver.write(q)
        driver.read()
        phase += 0.01
        time.sleep(0.01)


if __name__ == "__main__":
    main(*sys.argv[1:])
