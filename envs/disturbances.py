"""Disturbances of a simulated task: in what an episode differs from those that a policy was trained in.

Each is a short function, and its first line states its magnitude. Random numbers come from the generator of
the episode.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Final

import mujoco
import numpy as np
from numpy.typing import NDArray

from robot_rl.envs.observation import IMAGE_PREFIX, Observation
from robot_rl.envs.task import PHYSICS_HZ, TaskConfig

Rng = np.random.Generator

DELAY: Final = 2
"""Control steps by which `delay` is late."""
_PRIMITIVE: Final = tuple(
    int(kind)
    for kind in (
        mujoco.mjtGeom.mjGEOM_SPHERE,
        mujoco.mjtGeom.mjGEOM_CAPSULE,
        mujoco.mjtGeom.mjGEOM_ELLIPSOID,
        mujoco.mjtGeom.mjGEOM_CYLINDER,
        mujoco.mjtGeom.mjGEOM_BOX,
    )
)
APPEARANCE_FIELDS: Final = (
    *("cam_pos", "cam_quat", "light_pos", "light_ambient", "light_diffuse", "light_specular"),
    *("mat_rgba", "geom_rgba"),
)
"""Arrays of the model that only images show and disturbances change."""
MODEL_FIELDS: Final = (
    *APPEARANCE_FIELDS,
    *("geom_size", "geom_pos", "geom_rbound", "geom_aabb", "bvh_aabb"),
    *("body_mass", "body_inertia", "body_ipos"),
    *("body_subtreemass", "body_invweight0", "dof_invweight0", "dof_M0", "cam_poscom0", "light_poscom0"),
)
"""Arrays of the model that disturbances change; MuJoCo derives the last ones from the masses."""
_DEFAULT_RGBA: Final = (0.5, 0.5, 0.5, 1.0)
"""Colour of a geom in MuJoCo that has been given none."""
_HEADLIGHT: Final = ("ambient", "diffuse", "specular")


@dataclass(frozen=True)
class Scene:
    """What a disturbance changes: the model, and its state."""

    model: mujoco.MjModel
    data: mujoco.MjData
    cameras: Sequence[str]
    """Observed cameras."""

    @property
    def objects(self) -> NDArray[np.integer]:
        """Joints of the bodies that move freely [N]."""
        return np.flatnonzero(self.model.jnt_type == mujoco.mjtJoint.mjJNT_FREE)

    def bodies(self, joint: int) -> NDArray[np.integer]:
        """Bodies of the object of a free joint."""
        return np.flatnonzero(self.model.body_rootid == self.model.jnt_bodyid[joint])

    def geoms(self, joint: int) -> NDArray[np.integer]:
        """Geoms of the object of a free joint."""
        return np.flatnonzero(np.isin(self.model.geom_bodyid, self.bodies(joint)))


class NominalModel:
    """Values of a model before it was changed, to which `restore` sets it back."""

    def __init__(self, model: mujoco.MjModel, fields: Sequence[str]) -> None:
        """Keep the values of the arrays named by `fields`, and the headlight's."""
        self._arrays = [getattr(model, name) for name in fields]
        self._arrays += [getattr(model.vis.headlight, name) for name in _HEADLIGHT]
        self._values = [array.copy() for array in self._arrays]

    def restore(self) -> None:
        for array, value in zip(self._arrays, self._values, strict=True):
            array[:] = value


def camera(scene: Scene, rng: Rng) -> None:
    """Each observed camera is moved by up to 2 cm along each axis, and turned by up to 2°."""
    for name in scene.cameras:
        at = scene.model.camera(name).id
        scene.model.cam_pos[at] += rng.uniform(-0.02, 0.02, 3)
        axis = rng.normal(size=3)
        turn, turned = np.zeros(4), np.zeros(4)
        angle = rng.uniform(0, math.radians(2))
        mujoco.mju_axisAngle2Quat(turn, axis / np.linalg.norm(axis), angle)
        mujoco.mju_mulQuat(turned, scene.model.cam_quat[at], turn)
        scene.model.cam_quat[at] = turned


def light(scene: Scene, rng: Rng) -> None:
    """All lights together are 0.4 to 1.4 times as bright, and each is moved by up to 0.5 m."""
    model, headlight = scene.model, scene.model.vis.headlight
    bright = rng.uniform(0.4, 1.4)
    for colour in (model.light_ambient, model.light_diffuse, model.light_specular):
        colour *= bright
    for colour in (headlight.ambient, headlight.diffuse, headlight.specular):
        colour *= bright
    model.light_pos[:] += rng.uniform(-0.5, 0.5, model.light_pos.shape)


def texture(scene: Scene, rng: Rng) -> None:
    """Red, green and blue of each surface and texture are multiplied by 0.5 to 1."""
    model = scene.model
    # A geom shows its material's colour, if it has one, until its own differs from MuJoCo's default.
    shows_own = (model.geom_matid < 0) | (model.geom_rgba != _DEFAULT_RGBA).any(1)
    model.mat_rgba[:, :3] *= rng.uniform(0.5, 1.0, (model.nmat, 3))
    model.geom_rgba[shows_own, :3] *= rng.uniform(0.5, 1.0, (model.ngeom, 3))[shows_own]


def size(scene: Scene, rng: Rng) -> None:
    """Objects are 0.9 to 1.1 times as large, with the same mass; not those that are meshes."""
    model, changed = scene.model, False
    for joint in scene.objects:
        geoms, bodies = scene.geoms(joint), scene.bodies(joint)
        factor = rng.uniform(0.9, 1.1)
        if not np.isin(model.geom_type[geoms], _PRIMITIVE).all():
            continue
        changed = True
        for lengths in (model.geom_size, model.geom_pos, model.geom_rbound, model.geom_aabb):
            lengths[geoms] *= factor
        model.body_ipos[bodies] *= factor
        model.body_inertia[bodies] *= factor**2
        for body in bodies:
            first = model.body_bvhadr[body]
            model.bvh_aabb[first : first + model.body_bvhnum[body]] *= factor
    if not changed:
        raise ValueError("under=size: the task has no object of simple shapes, whose size can be changed")
    mujoco.mj_setConst(model, mujoco.MjData(model))


def mass(scene: Scene, rng: Rng) -> None:
    """Objects are 0.5 to 2 times as heavy."""
    for joint in scene.objects:
        factor = math.exp(rng.uniform(-math.log(2), math.log(2)))
        for inertia in (scene.model.body_mass, scene.model.body_inertia):
            inertia[scene.bodies(joint)] *= factor
    # Contacts are as stiff as for bodies of these masses.
    mujoco.mj_setConst(scene.model, mujoco.MjData(scene.model))


def push(scene: Scene, rng: Rng) -> None:
    """At each step, with a probability of 2 %, the velocity of the objects changes by 0.5 m/s sideways."""
    hit, angle = rng.random() < 0.02, rng.uniform(0, 2 * math.pi)
    if not hit:
        return
    for joint in scene.objects:
        first = scene.model.jnt_dofadr[joint]
        scene.data.qvel[first : first + 2] += (0.5 * math.cos(angle), 0.5 * math.sin(angle))


def removed(scene: Scene, joints: NDArray[np.integer]) -> None:
    """The object that the instruction names, or all objects without one, are 3 m away."""
    scene.data.qpos[scene.model.jnt_qposadr[joints]] += 3


def delay(seen: Sequence[Observation], given: Observation | None, rng: Rng) -> Observation:
    """Observations are 2 control steps old."""
    del given, rng
    return seen[max(len(seen) - 1 - DELAY, 0)]


def drop(seen: Sequence[Observation], given: Observation | None, rng: Rng) -> Observation:
    """With a probability of 20 %, an observation is the one that was given before."""
    lost = rng.random() < 0.2
    return given if lost and given is not None else seen[-1]


def noise(seen: Sequence[Observation], given: Observation | None, rng: Rng) -> Observation:
    """Gaussian noise on the state, of 0.005 in its units, and on images, of 8 of 255."""
    del given
    noisy = dict(seen[-1])
    noisy["state"] = (noisy["state"] + rng.normal(0, 0.005, noisy["state"].shape)).astype(np.float32)
    for name in noisy:
        if name.startswith(IMAGE_PREFIX):
            image = noisy[name] + rng.normal(0, 8, noisy[name].shape)
            noisy[name] = image.round().clip(0, 255).astype(np.uint8)
    return noisy


def rate(task: TaskConfig) -> TaskConfig:
    """The policy acts at 1.25 times the control rate: each action lasts 0.8 times as long."""
    frequency = round(1.25 * task.control_freq)
    if PHYSICS_HZ % frequency:
        raise ValueError(
            f"under=rate: {frequency} control steps per second are no whole number of substeps each; "
            "it is for tasks of 4, 20 or 100 steps per second"
        )
    horizon = round(task.horizon * frequency / task.control_freq)
    return replace(task, control_freq=frequency, horizon=horizon)


def render(task: TaskConfig) -> TaskConfig:
    """Images are those of the other one of the 2 renderers, `task.render=quick` or `robosuite`."""
    return replace(task, render="quick" if task.render == "robosuite" else "robosuite")


@dataclass(frozen=True)
class Disturbance:
    """A disturbance, by when it acts; exactly one function is given."""

    task: Callable[[TaskConfig], TaskConfig] | None = None
    """Before the environment is built."""
    model: Callable[[Scene, Rng], None] | None = None
    """At the beginning of an episode."""
    start: Callable[[Scene, NDArray[np.integer]], None] | None = None
    """In its first state, given the free joints of the objects that the episode is about."""
    step: Callable[[Scene, Rng], None] | None = None
    """Before each control step."""
    observe: Callable[[Sequence[Observation], Observation | None, Rng], Observation] | None = None
    """What the policy is given, from the observations of the last steps, oldest first, and from what it was
    given before."""
    seen: bool = False
    """Whether only images show it."""
    every_frame: bool = False
    """Whether a decision may read images of any step before it."""
    moves: bool = False
    """Whether it needs objects that move freely."""

    @property
    def text(self) -> str:
        """What it does, and how strongly."""
        function = self.task or self.model or self.start or self.step or self.observe
        return (getattr(function, "__doc__", None) or "").splitlines()[0].removesuffix(".")


DISTURBANCES: Final[dict[str, Disturbance]] = {
    "camera": Disturbance(model=camera, seen=True),
    "light": Disturbance(model=light, seen=True),
    "texture": Disturbance(model=texture, seen=True),
    "render": Disturbance(task=render, seen=True),
    "size": Disturbance(model=size),
    "mass": Disturbance(model=mass, moves=True),
    "delay": Disturbance(observe=delay, every_frame=True),
    "drop": Disturbance(observe=drop, every_frame=True),
    "push": Disturbance(step=push, moves=True),
    "removed": Disturbance(start=removed, moves=True),
    "noise": Disturbance(observe=noise),
    "rate": Disturbance(task=rate),
}


def check_disturbances(names: Sequence[str], task: TaskConfig) -> None:
    """Check the names of disturbances of a task.

    Raises:
        ValueError: if one is unknown or named twice, or only images would show it and there are none.
    """
    for name in names:
        if name not in DISTURBANCES:
            raise ValueError(f"under={name}: choose from {', '.join(DISTURBANCES)}")
        if names.count(name) > 1:
            raise ValueError(f"under={name}: it is there twice")
        if DISTURBANCES[name].seen and not task.cameras:
            raise ValueError(f"under={name}: task {task.name} observes no camera, which alone would show it")
        if DISTURBANCES[name].seen and task.randomize:
            raise ValueError(
                f"under={name}: the policy's task has a random appearance already "
                f"(task.randomize=[{','.join(task.randomize)}])"
            )
