"""What the drivers of real arms promise before an arm is there."""

import subprocess
import sys
from typing import Any

import msgspec
import pytest

from robot_rl.hardware.clock import MonotonicClock
from robot_rl.hardware.drivers import franka, ur
from robot_rl.hardware.robot_file import RobotConfig, load_robot
from tests.hardware.drivers.cases import CONFIGS

MAKERS = {"franka": franka.make, "ur5e": ur.make}


def changed(name: str, spec: dict[str, Any] | None = None, **options: Any) -> RobotConfig:
    own = load_robot(CONFIGS / f"{name}.yaml")
    return RobotConfig(
        spec=msgspec.structs.replace(own.spec, **(spec or {})), options={**own.options, **options}
    )


@pytest.mark.parametrize(
    ("name", "module", "package"),
    [
        ("franka", "franky", "franky-control"),
        ("ur5e", "rtde_control", "ur_rtde"),
        ("ur5e", "dashboard_client", "ur_rtde"),
    ],
)
def test_a_missing_library_is_named_with_what_to_install(
    monkeypatch: pytest.MonkeyPatch, name: str, module: str, package: str
) -> None:
    if module == "dashboard_client":
        pytest.importorskip("rtde_control", reason="of the same package, and looked for first")
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(ValueError, match=rf"needs {module} .*: pip install {package}$") as raised:
        MAKERS[name](changed(name), MonotonicClock())
    assert "\n" not in str(raised.value)


def test_the_drivers_can_be_imported_without_their_libraries() -> None:
    check = (
        "import sys, robot_rl.hardware.drivers.franka, robot_rl.hardware.drivers.ur,"
        "robot_rl.hardware.drivers.ur_process;"
        "sys.exit(bool({'franky', 'rtde_control', 'rtde_receive', 'dashboard_client'} & set(sys.modules)))"
    )
    assert subprocess.run([sys.executable, "-c", check]).returncode == 0


@pytest.mark.parametrize("name", MAKERS)
def test_home_is_inside_of_the_workspace(name: str) -> None:
    pytest.importorskip("franky" if name == "franka" else "rtde_control")
    driver = MAKERS[name](changed(name), MonotonicClock())
    position = driver.kinematics.forward(driver.spec.home).position
    assert (position > driver.spec.limits.workspace_lower).all()
    assert (position < driver.spec.limits.workspace_upper).all()


@pytest.mark.parametrize(
    ("name", "change", "message"),
    [
        ("franka", {"spec": {"space": "cartesian"}}, "space: joint"),
        ("franka", {"spec": {"sensors": {}}}, "has sensors"),
        ("franka", {"watchdog": 0.01}, "3 ticks or more"),
        ("franka", {"tool": [0, 0, 0, 0, 0, 0, 2]}, "quaternion xyzw of length 1"),
        ("franka", {"tool": [0, 0, 0]}, "options"),
        ("franka", {"stifness": [1] * 7}, "did you mean stiffness"),
        ("franka", {"spec": {"joints": ("a", "b")}}, "7 joints, not 2"),
        ("ur5e", {"spec": {"sensors": {"x": 1}}}, "has sensors"),
        ("ur5e", {"watchdog": 0.01}, "3 ticks or more"),
        ("ur5e", {"arm": "ur6"}, "there are franka, ur5e"),
        ("ur5e", {"gain": 50}, "100 … 2000"),
    ],
)
def test_a_file_that_does_not_suit_the_arm_is_refused(
    name: str, change: dict[str, Any], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        MAKERS[name](changed(name, **change), MonotonicClock())
