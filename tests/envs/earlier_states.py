"""Initial states as versions saved them that observed no object in the hand's frame before the first step."""

import numpy as np
from numpy.typing import NDArray

from robot_rl.envs.robosuite_env import RobosuiteEnv
from robot_rl.envs.simstate import layout

OBJECTS = {"PickPlaceCan": "Can", "NutAssemblySquare": "SquareNut"}


def as_saved_earlier(env: RobosuiteEnv, states: NDArray[np.float64]) -> NDArray[np.float64]:
    """States [N, K] with the observations that earlier versions saved; the same for other tasks."""
    earlier, begin = states.copy(), 0
    for name, size in layout(env.sim):
        if name.startswith(f"observable.{OBJECTS.get(env.task.env)}_to_robot0_eef"):
            # Behind its timer: the value, also in the cache.
            earlier[:, begin + 3 : begin + size] = 0
        begin += size
    return earlier
