"""A random appearance of a simulated task: cameras, lights and colours that differ in every episode."""

import hashlib
from collections.abc import Callable, Mapping
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from robot_rl.envs.disturbances import APPEARANCE_FIELDS, NominalModel, Rng, Scene, camera, light, texture
from robot_rl.envs.task import TaskConfig

APPEARANCES: Final[dict[str, Callable[[Scene, Rng], None]]] = {
    "camera": camera,
    "light": light,
    "texture": texture,
}
"""What `task.randomize` names."""
_PIECE: Final = ["appearance", 1]
_NUMBERS: Final = 2**53
"""Appearances are whole numbers below it, which float64 represents exactly."""


def check_appearance(task: TaskConfig) -> None:
    """Check `task.randomize`.

    Raises:
        ValueError: if a name is unknown or given twice, or no images would show the appearance.
    """
    given = f"task.randomize=[{','.join(task.randomize)}]"
    if set(task.randomize) - set(APPEARANCES) or len(set(task.randomize)) < len(task.randomize):
        raise ValueError(f"{given}: choose from {', '.join(APPEARANCES)}, each once")
    if task.randomize and (not task.cameras or task.render != "quick"):
        raise ValueError(f"{given} is for images: add task.cameras=[…], with task.render=quick")


class RandomAppearance:
    """The appearance of an episode, drawn from a number that is the last value of the saved state.

    A state without this number, of the same task without `task.randomize`, has its own appearance:
    that of a number computed from the state.
    """

    def __init__(self, task: TaskConfig, scene: Scene, state_size: int) -> None:
        """Begin with the unchanged appearance.

        Args:
            task: the task, with a `randomize` that `check_appearance` has checked.
            scene: its model and state.
            state_size: size of a saved state without the number.
        """
        self._scene, self._size = scene, state_size
        self._changes = [APPEARANCES[name] for name in sorted(task.randomize)]
        self._nominal = NominalModel(scene.model, APPEARANCE_FIELDS)
        self._number = 0

    def draw(self, seed: int | None, rng: Rng) -> None:
        """Change the appearance for a new episode, of a seed or else from a generator."""
        own = np.random.default_rng([seed, _NUMBERS]) if seed is not None else rng
        self._show(int(own.integers(_NUMBERS)))

    def save(self, state: NDArray[np.float64]) -> NDArray[np.float64]:
        """A saved state [K] with the number of the appearance, [K + 1]."""
        return np.append(state, float(self._number))

    def restore(self, state: NDArray[np.float64]) -> NDArray[np.float64]:
        """Change the appearance to that of a saved state [K + 1] or [K], and return the state [K].

        Raises:
            ValueError: if the number of the appearance is none.
        """
        if state.shape != (self._size + 1,):
            digest = hashlib.sha256(np.ascontiguousarray(state, np.float64).tobytes()).digest()
            self._show(int.from_bytes(digest[:8], "little") % _NUMBERS)
            return state
        number = float(state[-1])
        if not (number.is_integer() and 0 <= number < _NUMBERS):
            raise ValueError(f"simulator state has the appearance {number}, which is no whole number from 0")
        self._show(int(number))
        return state[:-1]

    def _show(self, number: int) -> None:
        self._number = number
        self._nominal.restore()
        for change, rng in zip(
            self._changes, np.random.default_rng(number).spawn(len(self._changes)), strict=True
        ):
            change(self._scene, rng)


def describe_appearance(task: TaskConfig, layout: list[list[Any]]) -> dict[str, Any]:
    """What the description of an environment says of the appearance, and of the layout of its states."""
    if not task.randomize:
        return {"state_layout": layout}
    return {"randomize": sorted(task.randomize), "state_layout": [*layout, _PIECE]}


def without_appearance(environment: Mapping[str, Any]) -> dict[str, Any]:
    """The description of the same environment without a random appearance."""
    plain = dict(environment)
    if plain.pop("randomize", None):
        plain["state_layout"] = plain["state_layout"][:-1]
    return plain
