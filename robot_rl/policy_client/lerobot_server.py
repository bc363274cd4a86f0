"""A LeRobot policy behind `robot-rl serve`."""

from typing import Final

LEROBOT: Final = "robot-rl/lerobot"
"""What the metadata of such a server calls it."""
