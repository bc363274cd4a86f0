"""Checks of the machine that runs a robot's server: priority, kernel, CPU governor, memory, encryption."""

import platform
import resource
from collections.abc import Iterator, Sequence
from pathlib import Path

import zmq

from robot_rl.hardware.realtime import MissingRight, missing_rights
from robot_rl.robot.checks.installation import Check

_MEMLOCK = 102_400 * 1024
"""Lockable memory that Franka's manual requires, bytes."""


def machine_checks(driver: str) -> Iterator[Check]:
    """Checks for the server of a real arm."""
    yield from check_rights(missing_rights())
    yield check_kernel(needed=driver == "franka")
    yield check_governor()
    if driver == "franka":
        yield check_memlock(resource.getrlimit(resource.RLIMIT_MEMLOCK)[0])


def check_rights(lacks: Sequence[MissingRight]) -> Iterator[Check]:
    """Check that this user may use real-time priority."""
    for lack in lacks:
        yield Check("real-time", False, lack.what, lack.fix)
    if not lacks:
        yield Check("real-time", True, "the control loop may use real-time priority and keep the cores awake")


def check_kernel(needed: bool, root: Path = Path("/sys"), version: str = "") -> Check:
    """Check for a PREEMPT_RT kernel, if the arm's library requires one."""
    version = version or platform.version()
    flag = root / "kernel" / "realtime"
    realtime = "PREEMPT_RT" in version or (flag.is_file() and flag.read_text().strip() == "1")
    detail = f"{platform.release()}, {'real-time' if realtime else 'not a real-time kernel'}"
    if not realtime and not needed:
        detail += ", which this arm does not need"
    fix = "sudo pro enable realtime-kernel   (Ubuntu; elsewhere a kernel with PREEMPT_RT), then reboot"
    return Check("kernel", realtime or not needed, detail, fix)


def check_governor(root: Path = Path("/sys")) -> Check:
    """Check that the processor keeps its clock rate."""
    files = sorted(root.glob("devices/system/cpu/cpu[0-9]*/cpufreq/scaling_governor"))
    if not files:
        return Check("cpu governor", True, "not visible (a virtual machine?)", known=False)
    governors = sorted({file.read_text().strip() for file in files})
    fix = "sudo cpupower frequency-set -g performance"
    return Check("cpu governor", governors == ["performance"], ", ".join(governors), fix)


def check_memlock(limit: int) -> Check:
    """Check that enough memory can be locked for Franka's library."""
    unlimited = limit == resource.RLIM_INFINITY
    detail = "unlimited" if unlimited else f"{limit / 1024**2:.0f} MiB of {_MEMLOCK / 1024**2:.0f}"
    line = f"echo '@robot - memlock {_MEMLOCK // 1024}' >> /etc/security/limits.d/robot.conf"
    fix = f"as root: {line}; then log in again"
    return Check("locked memory", unlimited or limit >= _MEMLOCK, detail, fix)


def check_encryption() -> Check:
    """Check that libzmq supports encryption, which network addresses require."""
    detail = f"libzmq {zmq.zmq_version()}, pyzmq {zmq.__version__}, "
    curve = zmq.has("curve")
    fix = "python -m pip install --force-reinstall --only-binary :all: pyzmq"
    return Check("encryption", curve, detail + ("with CURVE" if curve else "without CURVE"), fix)
