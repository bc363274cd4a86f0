"""What the operator sees in the terminal: the card of controls, lines and a status line."""

import json
import queue
import shutil
import sys
import threading
from collections.abc import Callable
from dataclasses import asdict
from typing import Any, Final, Self

from robot_rl.cli.compose import load_group
from robot_rl.envs.task import TaskConfig
from robot_rl.errors import UserError
from robot_rl.hardware.spec import RobotSpec
from robot_rl.hardware.teleop.device import STALE_DISENGAGE_MS, STALE_HOLD_MS, Device
from robot_rl.hardware.teleop.motion import Speed

_REFRESH: Final = 0.2


def operator_card(robot: RobotSpec, address: str, device: Device, speed: Speed, recorded: str) -> str:
    """Format the operator's card: controls, speed and safety notes, several lines."""
    width = max(len(key) for key, _ in device.controls)
    limits = robot.limits
    linear, angular = min(speed.linear, limits.linear_velocity), min(speed.angular, limits.angular_velocity)
    lines = [
        f"{robot.name} at {address}, by {device.name}",
        *(f"  {key:<{width}}  {meaning}" for key, meaning in device.controls),
        f"Full speed is {linear:g} m/s, {angular:g} rad/s. Nothing moves without the clutch. A silent device "
        f"holds the arm after {STALE_HOLD_MS} ms; after {STALE_DISENGAGE_MS} ms the clutch must be pressed "
        "again.",
        "The software e-stop does not replace the one that is wired to the arm: know where that is.",
        recorded,
    ]
    return "\n".join(lines)


def task_words(task: TaskConfig) -> list[str]:
    """Command-line words that select this task: its name, and the options that differ from its file."""
    try:
        default, words = load_group("task", task.name, TaskConfig), [f"task={task.name}"]
    except UserError:
        default, words = TaskConfig(env=task.env), [f"task.env={task.env}"]
    values, known = asdict(task), asdict(default)
    for key, value in values.items():
        if value == known[key]:
            continue
        if isinstance(value, dict):
            words += [f"task.{key}.{name}={_word(one)}" for name, one in value.items()]
        else:
            words.append(f"task.{key}={_word(value)}")
    return words


def _word(value: Any) -> str:
    """Format a value for the command line, where names in a list need no quotes."""
    if isinstance(value, str) and value.isidentifier():
        return value
    if isinstance(value, list):
        return f"[{','.join(map(_word, value))}]"
    return json.dumps(value)


class TerminalScreen:
    """Prints lines and a status line that is updated in place; without a terminal, only the lines."""

    def __init__(self, also: Callable[[str], None]) -> None:
        """Create the screen; permanent lines also go to `also`."""
        self._also = also
        self._lines: queue.SimpleQueue[str | None] = queue.SimpleQueue()
        self._status = ""
        self._thread = threading.Thread(target=self._run, name="screen", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._lines.put(None)
        self._thread.join(timeout=1.0)

    def say(self, line: str) -> None:
        """Print a permanent line."""
        if line:
            self._also(line)
            self._lines.put(line)

    def show(self, status: str) -> None:
        """Update the status line, truncated to the width; drawn a few times per second."""
        self._status = status[: shutil.get_terminal_size().columns - 1]

    def _run(self) -> None:
        terminal = sys.stdout.isatty()
        start, shown = "\r\033[K" if terminal else "", ""
        while True:
            try:
                line = self._lines.get(timeout=_REFRESH)
            except queue.Empty:
                if terminal and self._status != shown:
                    shown = self._status
                    print(f"{start}{shown}", end="", flush=True)
                continue
            if line is None:
                if shown:
                    print(flush=True)
                return
            print(f"{start}{line}", flush=True)
            shown = ""
