"""What an operator has to know before the arm moves."""

import json
from dataclasses import asdict
from typing import Any

from robot_rl.cli.compose import load_group
from robot_rl.envs.task import TaskConfig
from robot_rl.errors import UserError
from robot_rl.hardware.spec import RobotSpec
from robot_rl.hardware.teleop.device import STALE_DISENGAGE_MS, STALE_HOLD_MS, Device
from robot_rl.hardware.teleop.motion import Speed


def operator_card(robot: RobotSpec, address: str, device: Device, speed: Speed, recorded: str) -> str:
    """The card, several lines."""
    width = max(len(key) for key, _ in device.controls)
    limits = robot.limits
    linear, angular = min(speed.linear, limits.linear_velocity), min(speed.angular, limits.angular_velocity)
    lines = [
        f"{robot.name} at {address}, by {device.name}",
        *(f"  {key:<{width}}  {meaning}" for key, meaning in device.controls),
        f"Full speed is {linear:g} m/s, {angular:g} rad/s. Without the clutch nothing moves. A silent device "
        f"holds the arm after {STALE_HOLD_MS} ms, and after {STALE_DISENGAGE_MS} ms the clutch counts anew.",
        "The software e-stop is no substitute for the one that is wired to the arm: know where that is.",
        recorded,
    ]
    return "\n".join(lines)


def task_words(task: TaskConfig) -> list[str]:
    """The words of a command line that mean this task: its name, and what is otherwise than in its file."""
    try:
        usual, words = load_group("task", task.name, TaskConfig), [f"task={task.name}"]
    except UserError:
        usual, words = TaskConfig(env=task.env), [f"task.env={task.env}"]
    values, known = asdict(task), asdict(usual)
    for key, value in values.items():
        if value == known[key]:
            continue
        if isinstance(value, dict):
            words += [f"task.{key}.{name}={_word(one)}" for name, one in value.items()]
        else:
            words.append(f"task.{key}={_word(value)}")
    return words


def _word(value: Any) -> str:
    """As on a command line, where names in a list need no quotes."""
    if isinstance(value, str) and value.isidentifier():
        return value
    if isinstance(value, list):
        return f"[{','.join(map(_word, value))}]"
    return json.dumps(value)
