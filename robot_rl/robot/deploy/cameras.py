"""Checks that a robot has the cameras that networks were trained on."""

from robot_rl.envs.observation import ObservationSpec
from robot_rl.hardware.spec import RobotSpec


def check_cameras(robot: RobotSpec, observed: ObservationSpec, networks: str) -> None:
    """Check that the robot has the observed cameras, with images of the same size.

    Raises:
        ValueError: if it does not; the message calls the networks by `networks`.
    """
    there = {camera.name: (camera.height, camera.width) for camera in robot.cameras}
    for camera in observed.cameras:
        if camera not in there:
            has = ", ".join(there) or "none"
            raise ValueError(f"{networks} observes camera {camera!r}; the robot has {has}")
        if there[camera] != observed.image_size:
            raise ValueError(
                f"images of {camera!r} are {_format_size(there[camera])} (height × width), "
                f"{networks} was trained on {_format_size(observed.image_size)}"
            )


def _format_size(size: tuple[int, int]) -> str:
    return f"{size[0]} × {size[1]}"
