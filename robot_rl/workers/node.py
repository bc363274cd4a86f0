"""Checks of a worker's machine before it simulates: installed software, plugins, OpenGL."""

import os
from collections.abc import Mapping, Sequence

from robot_rl.envs.task import TaskConfig
from robot_rl.graphics import try_backend
from robot_rl.hardware.plugins import load_plugins
from robot_rl.launchers.software import check_software


def prepare_worker(task: TaskConfig, plugins: Sequence[str], software: Mapping[str, str]) -> None:
    """Check this machine, and import plugins.

    Args:
        task: task of the worker's environments.
        plugins: names of modules to import.
        software: what the command's machine has installed, as `installed_software` says.

    Raises:
        ValueError: if this machine has other software, or cannot render the task's cameras.
    """
    check_software(software)
    load_plugins(plugins)
    # In a child process, since a broken driver may kill it.
    if task.cameras and (problem := try_backend(backend := os.environ.get("MUJOCO_GL", "")).problem):
        raise ValueError(
            f"{os.uname().nodename} cannot render (MUJOCO_GL={backend}): {problem}; `robot-rl doctor` there "
            "says what to do"
        )
