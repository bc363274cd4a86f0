"""The public API in Python."""

import os
import subprocess
import sys

SEES = """
from robot_rl import make_env
env = make_env("lift_image")
obs, _ = env.reset(seed=0)
print(int(obs["images.agentview"].max()) > 0)
"""


def test_a_program_without_a_display_sees_images() -> None:
    """As with the commands, MuJoCo's backend is chosen before it is imported."""
    without = {name: value for name, value in os.environ.items() if name not in ("DISPLAY", "MUJOCO_GL")}
    done = subprocess.run([sys.executable, "-c", SEES], env=without, capture_output=True, text=True)
    assert done.stdout.split() == ["True"], done.stderr
