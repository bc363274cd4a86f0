"""Builds the robot that `robot-rl robot` serves: an arm from its configuration file, or a simulated task."""

from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import NamedTuple

import msgspec

from robot_rl.assets import asset_path
from robot_rl.cli.user_files import find_file, own_files
from robot_rl.envs.task import TaskConfig
from robot_rl.errors import UserError, nearest
from robot_rl.hardware.cameras.settings import CameraSettings
from robot_rl.hardware.cameras.simulated_scene import SimCameras
from robot_rl.hardware.clock import MonotonicClock
from robot_rl.hardware.drivers import make_driver
from robot_rl.hardware.drivers.driver import Driver
from robot_rl.hardware.drivers.models import CAMERAS
from robot_rl.hardware.drivers.sim import SimDriver
from robot_rl.hardware.robot_file import load_camera, load_robot
from robot_rl.hardware.server import StateCallback
from robot_rl.hardware.spec import CameraSpec, Latency

SEEDS = "seeds"
_SIDE = 224
"""Width and height of a simulated arm's images, pixels."""
_IMAGES = 30.0
"""Images per second of a simulated arm."""


class ServedRobot(NamedTuple):
    """Driver, cameras and latency for a `RobotServer`."""

    driver: Driver
    cameras: Sequence[CameraSettings] = ()
    state_callbacks: Sequence[StateCallback] = ()
    latency: Latency = Latency()


def serve_arm(name: str, cameras: Sequence[str], ended: ExitStack) -> ServedRobot:
    """Build an arm from its configuration file.

    Args:
        name: name in `configs/robot`, or path of a robot's file.
        cameras: additional cameras: names of a simulated arm's cameras, or paths of camera files.
        ended: receives the cleanup to run when the server has ended.

    Raises:
        ValueError: if the robot or a camera does not exist or is invalid.
    """
    robot = load_robot(robot_path(name))
    given = [load_camera(Path(camera)) for camera in cameras if camera.endswith(".yaml")]
    settings = [*robot.cameras, *given]
    drawn = [_sim_camera(camera) for camera in cameras if not camera.endswith(".yaml")]
    specs = (*(camera.spec for camera in settings), *drawn)
    robot = msgspec.structs.replace(robot, spec=msgspec.structs.replace(robot.spec, cameras=specs))
    driver = make_driver(robot, MonotonicClock())
    if not drawn:
        return ServedRobot(driver, settings, latency=robot.latency)
    if not isinstance(driver, SimDriver):
        raise ValueError(f"{robot.spec.name} is not simulated: give its cameras as .yaml files")
    scene = SimCameras(driver, drawn)
    ended.callback(scene.close)
    return ServedRobot(driver, [*settings, *scene.settings], [scene.show], robot.latency)


def serve_task(
    task: TaskConfig, states: str | None, ended: ExitStack, surroundings: Path | None = None
) -> ServedRobot:
    """Build a simulated task with its cameras; its episodes begin at saved initial states.

    Args:
        task: a task with one arm.
        states: file of initial states; None for the task's own list if it has one; `SEEDS` to use episode
            numbers as seeds.
        ended: as for `serve_arm`.
        surroundings: folder of what is around the robot (`robot_rl.envs.surroundings`). With it the robot is
            as a real one: clients can neither read success or the scene nor reset it.

    Raises:
        ValueError: if the task cannot be driven or has several instructions, or the states belong to another.
    """
    # Imported here: robosuite need not be installed on a robot's machine.
    from robot_rl.envs.surroundings import Surroundings
    from robot_rl.envs.task_driver import RENDERER_FACTORY, TaskDriver
    from robot_rl.evaluation.initial_states import load_states, states_path

    driver = TaskDriver(task, MonotonicClock(), privileged=surroundings is None)
    if len(known := driver.env.task.instructions) > 1:
        raise ValueError(
            f"task {task.name!r} has several instructions, and a served one has one: "
            f"task.instructions=[{known[0]}]"
        )
    if surroundings is not None or (states is None and not states_path(driver.env.task.name).exists()):
        states = SEEDS
    if states != SEEDS:
        driver.starts = load_states(driver.env, Path(states) if states else None).states
    callbacks: list[StateCallback] = []
    if surroundings is not None:
        room = Surroundings(driver, surroundings)
        ended.callback(room.close)
        callbacks.append(room.update)
    if not driver.spec.cameras:
        return ServedRobot(driver, state_callbacks=callbacks)
    scene = SimCameras(driver, driver.spec.cameras, RENDERER_FACTORY)
    ended.callback(scene.close)
    return ServedRobot(driver, scene.settings, [scene.show, *callbacks])


def robot_path(name: str) -> Path:
    """Find a robot's file: a path, or a name in `configs/robot` of the current folder or of this package.

    Raises:
        UserError: if there is none.
    """
    known = _files("robot")
    if name in known:
        return known[name]
    if (path := find_file("driver", name)) is not None:
        return path
    if name in _files("task"):
        raise UserError(f"driver={name}: {name} is a simulated task; serve it with task={name}")
    spelled = nearest(name, known)
    hint = f"did you mean {spelled}?" if spelled else f"there are {', '.join(known)}, or give a file's path"
    raise UserError(f"driver={name}: there is no such robot; {hint}")


def _sim_camera(name: str) -> CameraSpec:
    if name not in CAMERAS:
        known = ", ".join(CAMERAS)
        raise ValueError(f"cameras={name}: the simulated arms have {known}; others are .yaml files")
    return CameraSpec(name=name, serial=name, width=_SIDE, height=_SIDE, rate=_IMAGES)


def _files(group: str) -> dict[str, Path]:
    shipped = {path.stem: path for path in sorted(asset_path("configs", group).glob("*.yaml"))}
    return {**shipped, **own_files(group)}
