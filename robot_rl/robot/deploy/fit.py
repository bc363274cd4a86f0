"""Whether a robot is what a policy was trained for; what `RealArmEnv` does not see by itself."""

from collections.abc import Mapping
from typing import Any

from robot_rl.envs.observation import ObservationSpec
from robot_rl.envs.robot_state import TIME_LEFT
from robot_rl.envs.task import render_of
from robot_rl.hardware.spec import RobotSpec


def check_fit(robot: RobotSpec, lease_ms: int, environment: Mapping[str, Any]) -> None:
    """Cameras and pace.

    Args:
        robot: the one that shall be controlled.
        lease_ms: of its server.
        environment: that of the policy (`describe`).

    Raises:
        ValueError: what differs.
    """
    period_ms = 1e3 / environment["control_freq"]
    if period_ms >= lease_ms:
        raise ValueError(
            f"the policy acts every {period_ms:.0f} ms, and a lease ends after {lease_ms} ms of silence; "
            f"start the server with lease_ms={2 * period_ms:.0f}"
        )
    observed = ObservationSpec.from_dict(environment["observation_spec"])
    there = {camera.name: (camera.height, camera.width) for camera in robot.cameras}
    for camera in observed.cameras:
        if camera not in there:
            has = ", ".join(there) or "none"
            raise ValueError(f"the policy sees the camera {camera!r}; the robot has {has}")
        if there[camera] != observed.image_size:
            raise ValueError(
                f"images of {camera!r} are {_text(there[camera])} (height × width), "
                f"the policy has learned from {_text(observed.image_size)}"
            )
    # A simulated task serves images of one look; a real camera's is its own.
    if TIME_LEFT in robot.sensors and render_of(environment) == "robosuite":
        raise ValueError("the policy has seen images with task.render=robosuite; a served task's are quick")


def _text(size: tuple[int, int]) -> str:
    return f"{size[0]} × {size[1]}"
