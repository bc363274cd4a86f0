"""The doctor of a machine that is to run a robot's server: each check is shown what it is there to find."""

import ctypes
import resource
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from robot_rl.hardware.robot_file import load_robot
from robot_rl.robot.checks.arms import arm_checks, check_library, check_reachable, libfranka, ur_checks
from robot_rl.robot.checks.host import (
    check_access,
    check_encryption,
    check_governor,
    check_kernel,
    check_libusb,
    check_memlock,
    check_rights,
    check_video,
    realsense_checks,
    usb_checks,
)
from robot_rl.robot.checks.installation import Check
from robot_rl.robot.checks.robot_checks import check_here
from tests.hardware.fakes.arm_process import SimulatedArm, running
from tests.hardware.processes import ROOT

CONFIGS = ROOT / "configs" / "robot"
AS_NOBODY = """
import os, resource
from robot_rl.hardware.realtime import missing_rights
from robot_rl.robot.checks.host import check_rights
resource.setrlimit(resource.RLIMIT_RTPRIO, (0, 0))
os.setgroups([]); os.setgid(65534); os.setuid(65534)
for check in check_rights(missing_rights()):
    print(check.ok, check.name, check.fix)
"""


def test_rights_that_a_user_lacks_are_named_with_their_mend() -> None:
    ran = subprocess.run(
        [sys.executable, "-c", AS_NOBODY], cwd=ROOT, capture_output=True, text=True, check=False
    )
    lines = ran.stdout.splitlines()
    assert len(lines) == 2, ran.stderr
    assert all(line.startswith("False real-time as root: ") for line in lines)
    assert next(iter(check_rights(()))).ok


def test_a_kernel_is_a_fault_where_it_is_needed(tmp_path: Path) -> None:
    usual = "#1 SMP PREEMPT_DYNAMIC"
    assert check_kernel(False, tmp_path, usual).ok
    assert not check_kernel(True, tmp_path, usual).ok
    assert check_kernel(True, tmp_path, "#1 SMP PREEMPT_RT").ok
    (tmp_path / "kernel").mkdir()
    (tmp_path / "kernel" / "realtime").write_text("1\n")
    assert check_kernel(True, tmp_path, usual).ok


def test_a_processor_that_slows_down_is_a_fault(tmp_path: Path) -> None:
    assert not check_governor(tmp_path).known
    for number, governor in enumerate(["performance", "powersave"]):
        folder = tmp_path / "devices" / "system" / "cpu" / f"cpu{number}" / "cpufreq"
        folder.mkdir(parents=True)
        (folder / "scaling_governor").write_text(governor + "\n")
    check = check_governor(tmp_path)
    assert (check.ok, check.detail) == (False, "performance, powersave")
    (folder / "scaling_governor").write_text("performance\n")
    assert check_governor(tmp_path).ok


def test_memory_that_may_be_locked() -> None:
    assert not check_memlock(8 * 1024**2).ok
    assert "memlock 102400" in check_memlock(8 * 1024**2).fix
    assert check_memlock(100 * 1024**2).ok
    assert check_memlock(resource.RLIM_INFINITY).ok


def test_encryption(monkeypatch: pytest.MonkeyPatch) -> None:
    assert check_encryption().ok
    monkeypatch.setattr("robot_rl.robot.checks.host.zmq.has", lambda what: False)
    assert not check_encryption().ok


# ---- arms -----------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def controller() -> Iterator[SimulatedArm]:
    with running("ur_controller.py") as arm:
        yield arm


def faults(checks: Iterator[Check]) -> list[str]:
    found = list(checks)
    assert found
    assert all(check.fix for check in found if not check.ok)
    return [check.name for check in found if not check.ok]


def test_a_ur_controller_says_what_keeps_it_from_moving(
    controller: SimulatedArm, monkeypatch: pytest.MonkeyPatch
) -> None:
    # A busy machine keeps it from answering for a while.
    monkeypatch.setattr("robot_rl.robot.checks.arms._TIMEOUT", 60.0)
    controller.tell("reset")
    well = {check.name: check for check in ur_checks(controller.host)}
    assert all(check.ok for check in well.values())
    assert well["controller"].detail.endswith("URSoftware 5.12.0.1101319 (Mar 22 2022)")
    controller.tell("remote off")
    assert faults(ur_checks(controller.host)) == ["remote control"]
    controller.tell("remote on")
    controller.tell("protective_stop 0")
    assert faults(ur_checks(controller.host)) == ["arm safety"]
    controller.tell("reset")


def test_a_controller_that_is_not_there() -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        assert check_reachable("127.0.0.1", port).ok
        # It takes the connection and never says a word.
        assert faults(ur_checks("127.0.0.1", port)) == ["controller"]
    assert not check_reachable("127.0.0.1", port).ok
    assert faults(ur_checks("127.0.0.1", port)) == ["controller"]


def test_a_library_that_is_not_installed_is_named_with_what_to_install() -> None:
    check = check_library("no-such-arms-library")
    assert (check.ok, check.detail) == (False, "not installed")
    assert check.fix.endswith("-m pip install no-such-arms-library")


def test_what_only_the_arm_itself_can_tell_is_not_pretended(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("franky")
    monkeypatch.setattr("robot_rl.robot.checks.arms._FRANKA_PORT", 1)
    robot = load_robot(CONFIGS / "franka.yaml")
    robot.options["host"] = "127.0.0.1"
    checks = {check.name: check for check in arm_checks(robot)}
    assert checks["franky-control"].ok
    assert not checks["controller"].ok
    assert not checks["firmware"].known
    assert libfranka() in checks["firmware"].detail
    assert libfranka().count(".") == 2


def test_each_robot_that_is_shipped_can_be_asked_about(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        "robot_rl.robot.checks.arms.check_reachable", lambda *_: Check("controller", True, "")
    )
    monkeypatch.setattr("robot_rl.robot.checks.arms.ur_checks", lambda *_: iter(()))
    names = {path.stem: {check.name for check in check_here(path)} for path in CONFIGS.glob("*.yaml")}
    assert {"real-time", "kernel", "locked memory", "firmware"} <= names["franka"]
    assert {"real-time", "kernel", "ur_rtde"} <= names["ur5e"]
    assert names["sim_panda"] == {"robot", "encryption"}


# ---- cameras --------------------------------------------------------------------------------------------


def plugged_in(sys_folder: Path, product: str) -> None:
    """As in /sys/bus/usb/devices."""
    device = sys_folder / "2-1"
    device.mkdir(parents=True, exist_ok=True)
    about = {"idVendor": "8086", "product": product, "busnum": "2", "devnum": "7", "speed": "5000"}
    for name, text in about.items():
        (device / name).write_text(text + "\n")


def test_a_realsense_that_this_user_may_not_use(tmp_path: Path) -> None:
    devices, dev = tmp_path / "sys", tmp_path / "dev"
    devices.mkdir()
    assert "no RealSense is plugged in" in check_access(devices, dev).detail
    plugged_in(devices, "Bluetooth")
    assert not check_access(devices, dev).ok
    plugged_in(devices, "Intel(R) RealSense(TM) Depth Camera 435")
    check = check_access(devices, dev)
    assert not check.ok
    assert f"{dev}/bus/usb/002/007" in check.detail
    assert "udevadm" in check.fix
    node = dev / "bus" / "usb" / "002" / "007"
    node.parent.mkdir(parents=True)
    node.touch()
    check = check_access(devices, dev)
    assert check.ok
    assert "5000 Mbit/s" in check.detail


def test_a_library_that_the_system_lacks() -> None:
    assert check_libusb().ok
    check = check_libusb(lambda name: ctypes.CDLL(f"not-{name}"))
    assert not check.ok
    assert check.fix == "sudo apt-get install -y libusb-1.0-0"


def test_realsense_cameras_by_serial_and_firmware() -> None:
    rs = pytest.importorskip("pyrealsense2")
    context = rs.context()
    held: list[object] = []
    context.set_devices_changed_callback(lambda change: held.append(change.get_new_devices()))
    info = rs.camera_info
    for serial, firmware in (("0001", "5.12.7.100"), ("0002", "5.16.0.1"), ("0003", "")):
        device = rs.software_device()
        device.register_info(info.serial_number, serial)
        if firmware:
            device.register_info(info.firmware_version, firmware)
            device.register_info(info.recommended_firmware_version, "5.16.0.1")
        device.add_to(context)
        held.append(device)
    old, new, silent, missing = realsense_checks(["0001", "0002", "0003", "0004"], context)
    assert (old.ok, new.ok, silent.known, missing.ok) == (False, True, False, False)
    assert "5.16.0.1 is recommended" in old.detail
    assert "0004 is not connected (found: 0001, 0002, 0003)" in missing.detail


def test_cameras_of_opencv_and_of_a_robots_file(tmp_path: Path) -> None:
    assert not check_video("wrist", tmp_path / "usb-cam").ok
    (tmp_path / "usb-cam").touch()
    assert check_video("wrist", tmp_path / "usb-cam").ok
    path = tmp_path / "robot.yaml"
    cameras = f"""cameras:
- spec: {{name: wrist, serial: other-cam, width: 64, height: 48, rate: 30}}
  source: {{type: opencv, folder: {tmp_path}}}
- spec: {{name: front, serial: "0001", width: 64, height: 48, rate: 30}}
  source: {{type: realsense}}
"""
    path.write_text((CONFIGS / "sim_panda.yaml").read_text() + cameras)
    checks = {check.name: check for check in usb_checks(load_robot(path).cameras)}
    assert "(found: robot.yaml, usb-cam)" in checks["camera wrist"].detail
    assert not checks["realsense"].ok
    assert {"libusb", "usb"} <= checks.keys()
