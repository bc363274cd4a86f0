"""Configuration of a robosuite task: the fields of `configs/task/<name>.yaml`."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final

PHYSICS_HZ: Final = 500
"""Steps of robosuite's physics per second."""


@dataclass
class TaskConfig:
    """A task: arguments for robosuite, and what is observed."""

    name: str = "${.env}"
    """Short name of the task, used in paths and messages; by default the name of its file."""
    env: str = "???"
    """Name of the robosuite environment class; everything else has a default."""
    robots: list[str] = field(default_factory=list)
    """Robot models: one, or for two arms [Panda,Panda] or one robot that has two; [] for Pandas."""
    controller: str = "OSC_POSE"
    """Arm controller: OSC_POSE (6 pose deltas) or OSC_POSITION (3 position deltas)."""
    input_type: str = "delta"
    """Meaning of arm actions, as in robosuite: `delta`, a motion of the hand, or `absolute`, its pose in the
    frame of the arm's base."""
    control_freq: int = 20
    """Control steps per second; each is a whole number of robosuite's steps of 2 ms."""
    horizon: int = 0
    """Control steps after which an episode is truncated; 0 for the environment's default."""
    model_seed: int = 0
    """Seed for the random parts of the model (object sizes), drawn once when it is built."""
    state_keys: list[str] = field(default_factory=list)
    """Raw observations that make up `state`, in order; [] for poses and openings of the hands and all
    other observations of the scene except images."""
    cameras: list[str] = field(default_factory=list)
    """Cameras of the environment whose images are observed."""
    image_size: list[int] = field(default_factory=lambda: [84, 84])
    """Height and width of observed images, in pixels."""
    render: str = "quick"
    """How observed images look: `quick` has no shadows, reflections or smoothed edges; `robosuite` is
    robosuite's own rendering, several times slower."""
    randomize: list[str] = field(default_factory=list)
    """What of the appearance of images each reset draws at random: camera, light and texture, within the
    limits of `eval under=[…]` (docs/evaluation.md)."""
    instructions: list[str] = field(default_factory=list)
    """Instructions, one of which each reset draws and which are observed; [] for all of a scene that has
    several, and for none otherwise. One alone is allowed for any environment."""
    env_args: dict[str, Any] = field(default_factory=dict)
    """Further arguments of robosuite's constructor."""

    def __post_init__(self) -> None:
        if self.name == "${.env}":
            self.name = self.env
        if self.input_type not in ("delta", "absolute"):
            raise ValueError(f"task.input_type={self.input_type}: choose delta or absolute")
        if len(self.image_size) != 2 or min(self.image_size) < 1:
            raise ValueError(f"task.image_size={self.image_size}: give height and width, [84,84]")
        if self.control_freq < 1:
            raise ValueError(
                f"task.control_freq={self.control_freq}: give control steps per second, 20 is usual"
            )
        for name in ("cameras", "state_keys"):
            given = getattr(self, name)
            if twice := [one for one in given if given.count(one) > 1]:
                raise ValueError(f"task.{name}: {twice[0]} is given twice")
        for name in ("horizon", "model_seed"):
            if getattr(self, name) < 0:
                raise ValueError(f"task.{name}={getattr(self, name)}: it must not be negative")
        if self.render not in ("quick", "robosuite"):
            raise ValueError(f"task.render={self.render}: choose quick or robosuite")


def without_cameras(task: TaskConfig) -> TaskConfig:
    """The same task without images, for a scene that is only simulated."""
    return replace(task, cameras=[], randomize=[])


def render_of(environment: Mapping[str, Any]) -> str | None:
    """Render profile of the environment that a description is of; None without cameras."""
    if not environment.get("observation_spec", {}).get("cameras"):
        return None
    return environment.get("render", "robosuite")  # older descriptions have no profile
