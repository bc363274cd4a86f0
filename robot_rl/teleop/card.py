"""What an operator has to know before the arm moves."""

from hardware.spec import RobotSpec
from hardware.teleop.device import STALE_DISENGAGE_MS, STALE_HOLD_MS, Device
from hardware.teleop.motion import Speed


def operator_card(robot: RobotSpec, address: str, device: Device, speed: Speed, recorded: str) -> str:
    """The card, several lines."""
    width = max(len(key) for key, _ in device.card)
    limits = robot.limits
    linear, angular = min(speed.linear, limits.linear_velocity), min(speed.angular, limits.angular_velocity)
    lines = [
        f"{robot.name} at {address}, by {device.name}",
        *(f"  {key:<{width}}  {meaning}" for key, meaning in device.card),
        f"Full speed is {linear:g} m/s, {angular:g} rad/s. Without the clutch nothing moves. A silent device "
        f"holds the arm after {STALE_HOLD_MS} ms, and after {STALE_DISENGAGE_MS} ms the clutch counts anew.",
        "The software e-stop is no substitute for the one that is wired to the arm: know where that is.",
        recorded,
    ]
    return "\n".join(lines)
