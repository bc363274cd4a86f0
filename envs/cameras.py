"""Images that an environment observes, drawn by us, when and where robosuite would observe its own."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
from robosuite.utils.observables import Observable, sensor

from robot_rl.envs.renderer import Renderer

if TYPE_CHECKING:
    from robot_rl.envs.robosuite_env import RobosuiteEnv


def observe_camera(env: "RobosuiteEnv", camera: str) -> Renderer:
    """Give robosuite's environment the observable `<camera>_image` that it would have itself.

    It samples as robosuite's does and holds an image as OpenGL has it, the lowest row first.

    Returns:
        what draws the images; to be closed when the environment is.

    Raises:
        ValueError: the model has no such camera.
    """
    renderer = Renderer(env, camera, *env.task.image_size, quick=True)

    @sensor(modality="image")
    def image(cache: Mapping[str, Any]) -> np.ndarray:
        return renderer.frame()[::-1]

    env.sim.add_observable(Observable(f"{camera}_image", image, sampling_rate=env.task.control_freq))
    return renderer
