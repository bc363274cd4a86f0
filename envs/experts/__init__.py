"""Scripted experts that act on the simulator's true state, one per task."""

import numpy as np

from robot_rl.envs.experts.can import CanExpert
from robot_rl.envs.experts.door import DoorExpert
from robot_rl.envs.experts.expert import Expert
from robot_rl.envs.experts.libero import LiberoExpert
from robot_rl.envs.experts.lift import LiftExpert
from robot_rl.envs.experts.pick_place import PickPlaceExpert
from robot_rl.envs.experts.square import NamedNutExpert, SquareExpert
from robot_rl.envs.experts.stack import StackExpert

EXPERTS: dict[str, type[Expert]] = {
    "Lift": LiftExpert,
    "PickPlaceCan": CanExpert,
    "NutAssemblySquare": SquareExpert,
    "Stack": StackExpert,
    "Door": DoorExpert,
    "LanguagePickPlace": PickPlaceExpert,
    "LanguageNutAssembly": NamedNutExpert,
    "LanguageStack": StackExpert,
    "libero_object": LiberoExpert,
    "libero_spatial": LiberoExpert,
}
"""Expert classes by the name of the environment; plugins may add theirs."""


def make_expert(env: str, *, noise: float, skill: float, rng: np.random.Generator) -> Expert:
    """Create the expert of an environment, `TaskConfig.env`.

    Raises:
        ValueError: if there is no expert for this environment.
    """
    if env not in EXPERTS:
        raise ValueError(
            f"{env} has no scripted expert; there are {', '.join(EXPERTS)}, and a module of "
            "plugins=[…] may add one to robot_rl.envs.experts.EXPERTS"
        )
    return EXPERTS[env](noise=noise, skill=skill, rng=rng)


__all__ = ["EXPERTS", "Expert", "make_expert"]
