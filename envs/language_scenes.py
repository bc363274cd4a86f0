"""Scenes of robosuite with several instructions, which the words alone tell apart.

Each is a robosuite environment that succeeds when the current instruction is done; what else was moved does
not matter.
"""

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import numpy as np
from robosuite.environments.manipulation.nut_assembly import NutAssembly
from robosuite.environments.manipulation.pick_place import PickPlace
from robosuite.environments.manipulation.stack import Stack


class LanguageScene:
    """Mixin of environments with several instructions; `goal` is the index of the current one."""

    INSTRUCTIONS: ClassVar[tuple[str, ...]]
    goal: int = 0
    rng: np.random.Generator
    """robosuite's generator of everything random."""

    @property
    def instruction(self) -> str:
        """The current instruction."""
        return self.INSTRUCTIONS[self.goal]

    @property
    def named(self) -> Any:
        """The object that the instruction tells to move, a `robosuite.models.objects.MujocoObject`."""
        raise NotImplementedError

    def get_own_state(self) -> np.ndarray:
        """The goal, as a part of the saved state; see `robot_rl.envs.simstate.KeepsState`."""
        return np.array([self.goal], float)

    def set_own_state(self, state: np.ndarray) -> None:
        goal = float(state[0])
        if goal not in range(len(self.INSTRUCTIONS)):
            raise ValueError(f"simulator state has no goal of {type(self).__name__}: {goal:g}")
        self.goal = int(goal)


class LanguagePickPlace(LanguageScene, PickPlace):
    """Milk, bread, cereal and a can in one bin; the named one belongs into its own bin."""

    INSTRUCTIONS = tuple(f"put the {name} in its bin" for name in ("milk", "bread", "cereal", "can"))

    @property
    def named(self) -> Any:
        return self.objects[self.goal]

    def _check_success(self) -> bool:
        super()._check_success()
        return bool(self.objects_in_bins[self.goal])


class LanguageNutAssembly(LanguageScene, NutAssembly):
    """A square and a round nut on a table; the named one belongs on its peg."""

    INSTRUCTIONS = ("put the square nut on its peg", "put the round nut on its peg")

    @property
    def named(self) -> Any:
        return self.nuts[self.goal]

    def _check_success(self) -> bool:
        super()._check_success()
        return bool(self.objects_on_pegs[self.goal])


class LanguageStack(LanguageScene, Stack):
    """A red and a green cube on a table; one is to be put on the other."""

    INSTRUCTIONS = ("stack the red cube on the green cube", "stack the green cube on the red cube")

    @property
    def cubes(self) -> tuple[Any, Any]:
        """The cube that is put on the other one, and that one."""
        return (self.cubeB, self.cubeA) if self.goal else (self.cubeA, self.cubeB)

    @property
    def named(self) -> Any:
        return self.cubes[0]

    def _check_success(self) -> bool:
        upper, lower = self.cubes
        body = self.cubeB_body_id if self.goal else self.cubeA_body_id
        # The height from which robosuite's own check counts a cube as lifted.
        lifted = self.sim.data.body_xpos[body][2] > self.table_offset[2] + 0.04
        return bool(
            lifted
            and self.check_contact(upper, lower)
            and not self._check_grasp(self.robots[0].gripper, upper)
        )


def instructions_of_states(environment: Mapping[str, Any], states: np.ndarray) -> list[str]:
    """The instruction of each saved state [N, K] of a scene with several; see `has_instructions`.

    Raises:
        ValueError: if a state has no valid goal.
    """
    names = [name for name, _ in environment["state_layout"]]
    column = sum(size for _, size in environment["state_layout"][: names.index("env.own")])
    known = _scene_instructions(environment)
    goals = states[:, column]
    if not np.isin(goals, np.arange(len(known))).all():
        raise ValueError(f"a saved state has no goal of {environment['env']}")
    return [known[int(goal)] for goal in goals]


def has_instructions(environment: Mapping[str, Any]) -> bool:
    """Whether an environment with this description draws one of several instructions."""
    return bool(_scene_instructions(environment))


def _scene_instructions(environment: Mapping[str, Any]) -> Sequence[str]:
    """All instructions of a scene, by the number in its saved states; none if they have no such number."""
    scene = LANGUAGE_SCENES.get(environment.get("env", ""))
    return scene.INSTRUCTIONS if scene else environment.get("scene_instructions", ())


LANGUAGE_SCENES: dict[str, type[LanguageScene]] = {
    scene.__name__: scene for scene in (LanguagePickPlace, LanguageNutAssembly, LanguageStack)
}
"""The scenes by the names under which robosuite makes them."""
