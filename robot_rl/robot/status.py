"""Prints the status of a served robot."""

import sys
import threading

from robot_rl.hardware.protocol.messages import State

_LINE_EVERY = 10.0
"""Seconds between lines of plain text while nothing changes."""
_REFRESH = 0.2


class StatusPrinter:
    """Prints the robot's status from a background thread: a blocked terminal must not delay control."""

    def __init__(self) -> None:
        self._state: State | None = None
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name="status", daemon=True)

    def __enter__(self) -> None:
        self._thread.start()

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join(timeout=1.0)

    def show(self, state: State) -> None:
        self._state = state

    def _run(self) -> None:
        terminal = sys.stdout.isatty()
        said, waited = "", 0.0
        while not self._ended.wait(_REFRESH):
            state = self._state
            if state is None:
                continue
            waited += _REFRESH
            about = f"{state.mode}{f', {state.fault}' if state.fault else ''}"
            if terminal:
                print(f"\r\033[K{_line(about, state)}", end="", flush=True)
            elif about != said or waited >= _LINE_EVERY:
                print(_line(about, state), flush=True)
                said, waited = about, 0.0
        if terminal:
            print()


def _line(about: str, state: State) -> str:
    parts = [about]
    if state.lease_holder:
        parts.append(f"commanded by {state.lease_holder}")
    if state.position:
        parts.append("tool at " + " ".join(f"{value:.3f}" for value in state.position) + " m")
    if state.gripper:
        parts.append(f"gripper {state.gripper.opening:.2f} open")
    if state.loop and state.loop.ticks:
        parts.append(
            f"ticks {state.loop.late_us_p99 / 1e3:.1f} ms late (p99), {state.loop.overruns} overruns"
        )
    return "; ".join(parts)
