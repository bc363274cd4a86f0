"""Checks of the machine that runs a robot's server: priority, kernel, memory, encryption, USB cameras."""

import ctypes
import os
import platform
import resource
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import zmq

from robot_rl.hardware.cameras.settings import CameraSettings, OpenCV, RealSense
from robot_rl.hardware.realtime import MissingRight, missing_rights
from robot_rl.robot.checks.installation import Check

_MEMLOCK = 102_400 * 1024
"""Lockable memory that Franka's manual requires, bytes."""


_INTEL = "8086"
_RULES = (
    "copy librealsense's config/99-realsense-libusb.rules to /etc/udev/rules.d, then: "
    "sudo udevadm control --reload && sudo udevadm trigger"
)


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


def usb_checks(cameras: Sequence[CameraSettings]) -> Iterator[Check]:
    """Checks of all cameras; none if there are no cameras."""
    realsense = [camera for camera in cameras if isinstance(camera.source, RealSense)]
    if realsense:
        yield check_libusb()
        yield check_access()
        yield from realsense_checks([camera.spec.serial for camera in realsense])
    for camera in cameras:
        if isinstance(camera.source, OpenCV):
            yield check_video(camera.spec.name, Path(camera.source.folder) / camera.spec.serial)


def check_libusb(load: Callable[[str], object] = ctypes.CDLL) -> Check:
    """Check that libusb, which librealsense uses, can be loaded."""
    try:
        load("libusb-1.0.so.0")
    except OSError as error:
        return Check("libusb", False, str(error), "sudo apt-get install -y libusb-1.0-0")
    return Check("libusb", True, "libusb-1.0.so.0")


def check_access(devices: Path = Path("/sys/bus/usb/devices"), dev: Path = Path("/dev")) -> Check:
    """Check that this user may access each connected RealSense."""
    found = [device for device in sorted(devices.glob("*")) if _is_realsense(device)]
    if not found:
        return Check(
            "usb", False, "no RealSense is plugged in", "plug it into a USB 3 port with its own cable"
        )
    for device in found:
        bus, number = (int(_text(device / name)) for name in ("busnum", "devnum"))
        node = dev / "bus" / "usb" / f"{bus:03}" / f"{number:03}"
        if not os.access(node, os.R_OK | os.W_OK):
            return Check("usb", False, f"{node} ({_text(device / 'product')}) cannot be accessed", _RULES)
    names = ", ".join(f"{_text(device / 'product')} ({_text(device / 'speed')} Mbit/s)" for device in found)
    return Check("usb", True, names)


def realsense_checks(serials: Sequence[str], context: Any = None) -> Iterator[Check]:
    """Check that each camera is connected and has the firmware that librealsense recommends.

    Args:
        serials: serial numbers of the expected cameras.
        context: librealsense context; by default a new one.
    """
    import pyrealsense2 as rs

    def info_of(device: Any, what: Any) -> str:
        return device.get_info(what) if device.supports(what) else ""

    info = rs.camera_info
    try:
        devices = {
            info_of(device, info.serial_number): device for device in (context or rs.context()).devices
        }
    except RuntimeError as error:
        yield Check("realsense", False, f"librealsense: {error}", _RULES)
        return
    for serial in serials:
        if serial not in devices:
            there = ", ".join(sorted(devices)) or "none"
            fix = "check its cable, and the serial in the robot's file: rs-enumerate-devices -s"
            yield Check("realsense", False, f"{serial} is not connected (found: {there})", fix)
            continue
        firmware = info_of(devices[serial], info.firmware_version)
        newest = info_of(devices[serial], info.recommended_firmware_version)
        detail = f"{serial}, firmware {firmware or 'unknown'}"
        if not (firmware and newest):
            yield Check("realsense", True, detail, known=False)
            continue
        older = _numbers(firmware) < _numbers(newest)
        detail += f", {newest} is recommended" if older else ""
        yield Check("realsense", not older, detail, "rs-fw-update, or realsense-viewer")


def check_video(name: str, path: Path) -> Check:
    """Check that an OpenCV camera is connected and readable."""
    if not path.exists():
        there = ", ".join(sorted(other.name for other in path.parent.glob("*"))) or "none"
        fix = "check its cable, and the serial in the robot's file"
        return Check(f"camera {name}", False, f"there is no {path} (found: {there})", fix)
    if not os.access(path, os.R_OK | os.W_OK if path.is_char_device() else os.R_OK):
        fix = "sudo usermod -aG video $(id -un), then log in again"
        return Check(f"camera {name}", False, f"{path} cannot be accessed", fix)
    return Check(f"camera {name}", True, str(path))


def _is_realsense(device: Path) -> bool:
    return _text(device / "idVendor") == _INTEL and "RealSense" in _text(device / "product")


def _text(path: Path) -> str:
    return path.read_text().strip() if path.is_file() else ""


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in version.split(".") if part.isdigit())
