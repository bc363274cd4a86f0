"""Whether what is said of a robot can be."""

import math
from collections.abc import Iterable

import msgspec

from robot_rl.hardware.spec import RobotSpec


def check_spec(spec: RobotSpec) -> None:
    """Named joints, numbers for each, limits that leave room, a rest that is inside.

    Raises:
        ValueError: what is wrong with it.
    """
    limits, n = spec.limits, len(spec.joints)
    if not n or len(set(spec.joints)) != n:
        raise ValueError(f"{spec.name}: joints must be named, each once")
    per_joint = {
        "home": spec.home,
        "joint_lower": limits.joint_lower,
        "joint_upper": limits.joint_upper,
        "joint_velocity": limits.joint_velocity,
        "joint_acceleration": limits.joint_acceleration,
        "joint_jerk": limits.joint_jerk,
    }
    for name, values in per_joint.items():
        if len(values) != n:
            raise ValueError(f"{spec.name}: {name} has {len(values)} numbers for {n} joints")
    positive = {
        **{name: values for name, values in per_joint.items() if name in _POSITIVE},
        **{name: (getattr(limits, name),) for name in _POSITIVE - per_joint.keys()},
        "rate": (spec.rate,),
    }
    for name, values in positive.items():
        if not _all_positive(values):
            raise ValueError(f"{spec.name}: {name} has to be finite and above 0, not {values}")
    for name, low, high in (
        ("joint", limits.joint_lower, limits.joint_upper),
        ("workspace", limits.workspace_lower, limits.workspace_upper),
    ):
        if not all(a < b for a, b in zip(low, high, strict=True)):
            raise ValueError(f"{spec.name}: {name}_lower {low} is not below {name}_upper {high}")
    if not all(
        low <= q <= high
        for low, q, high in zip(limits.joint_lower, spec.home, limits.joint_upper, strict=True)
    ):
        raise ValueError(f"{spec.name}: home {spec.home} is outside joint_lower and joint_upper")
    if not spec.modes:
        raise ValueError(f"{spec.name}: it has no command mode")
    if spec.space == "cartesian" and "joint_position" in spec.modes:
        raise ValueError(f"{spec.name}: a cartesian driver takes no joint_position; take it out of modes")
    if spec.gripper is not None and not _all_positive(msgspec.structs.astuple(spec.gripper)):
        raise ValueError(f"{spec.name}: width, force and speed of the gripper must be above 0")
    if any(size <= 0 for size in spec.sensors.values()):
        raise ValueError(f"{spec.name}: a sensor has at least one number")


_POSITIVE = {
    "joint_velocity",
    "joint_acceleration",
    "joint_jerk",
    "linear_velocity",
    "linear_acceleration",
    "linear_jerk",
    "angular_velocity",
    "angular_acceleration",
    "angular_jerk",
    "lead_joint",
    "lead_linear",
    "lead_angular",
    "first_joint",
    "first_linear",
    "first_angular",
}


def _all_positive(values: Iterable[float]) -> bool:
    return all(math.isfinite(value) and value > 0 for value in values)
