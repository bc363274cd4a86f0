from pathlib import Path

import msgspec
import numpy as np
import pytest

from robot_rl.hardware.cameras.settings import CameraSettings, OpenCV, RealSense
from robot_rl.hardware.clock import SteppedClock
from robot_rl.hardware.drivers import DRIVERS, make_driver
from robot_rl.hardware.drivers.sim import SimOptions
from robot_rl.hardware.robot_file import RobotConfig, checked_struct, load_camera, load_robot

CONFIGS = Path(__file__).resolve().parents[2] / "configs" / "robot"
FILES = sorted(CONFIGS.glob("*.yaml"))


def _edited(tmp_path: Path, old: str, new: str) -> Path:
    """The simulated Panda's file with something else in it."""
    text = (CONFIGS / "sim_panda.yaml").read_text(encoding="utf-8")
    assert old in text
    path = tmp_path / "robot.yaml"
    path.write_text(text.replace(old, new, 1), encoding="utf-8")
    return path


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_every_robot_that_is_shipped_is_one_and_named_as_its_file(path: Path) -> None:
    config = load_robot(path)
    assert config.spec.name == path.stem
    assert config.spec.driver in DRIVERS
    assert config.folder == CONFIGS


def test_there_are_the_simulated_robots() -> None:
    assert {"sim_panda", "sim_ur5e"} <= {path.stem for path in FILES}


def test_the_pandas_limits_are_below_its_makers() -> None:
    """Franka's data sheet of the Panda."""
    limits = load_robot(CONFIGS / "sim_panda.yaml").spec.limits
    lower = np.array([-2.8973, -1.7628, -2.8973, -3.0718, -2.8973, -0.0175, -2.8973])
    upper = np.array([2.8973, 1.7628, 2.8973, -0.0698, 2.8973, 3.7525, 2.8973])
    assert (limits.joint_lower > lower).all()
    assert (limits.joint_upper < upper).all()
    assert (np.array(limits.joint_velocity) <= 0.5 * np.array([2.175] * 4 + [2.61] * 3)).all()
    assert (np.array(limits.joint_acceleration) <= 0.5 * np.array([15, 7.5, 10, 12.5, 15, 20, 20])).all()
    jerk = np.array([7500, 3750, 5000, 6250, 7500, 10000, 10000])
    assert (np.array(limits.joint_jerk) <= 0.011 * jerk).all()


@pytest.mark.parametrize(
    ("old", "new", "says"),
    [
        ("joint_velocity:", "joint_velocty:", "no key limits.joint_velocty; did you mean joint_velocity?"),
        ("driver: sim", "diver: sim", "no key diver; did you mean driver?"),
        ("  width: 0.08", "  wide: 0.08", "no key gripper.wide; did you mean width?"),
        ("rate: 100.0", "rate: 100.0\nxyzzy: 1", "no key xyzzy; the keys are name, driver"),
        ("rate: 100.0", "rate: 100.0\nrate: 200.0", "the key rate is given twice"),
        ("linear_jerk: 30.0", "linear_jerk: 30.0\n  linear_jerk: 60.0", "the key linear_jerk is given twice"),
        ("rate: 100.0", "rate: fast", "Expected `float`, got `str` - at `$.rate`"),
        ("rate: 100.0", "", "missing required field `rate`"),
        ("space: joint", "space: jiont", "Invalid enum value 'jiont'"),
        ("[1.08, 1.08, 1.08,", "[1.08, 1.08,", "joint_velocity has 6 numbers for 7 joints"),
        ("[1.08, 1.08, 1.08,", "[.nan, 1.08, 1.08,", "joint_velocity must be finite"),
        ("[1.08, 1.08, 1.08,", "[-1.08, 1.08, 1.08,", "joint_velocity must be finite and above 0"),
        ("home: [0.0", "home: [2.9", "home"),
        ("[joint1, joint2", "[joint1, joint1", "joints must be named, each once"),
        ("force: 20.0", "force: 0.0", "force"),
        ("cube: 7", "cube: 0", "a sensor must have 1 to 1024 values"),
        ("cube: 7", "cube: 2000", "a sensor must have 1 to 1024 values"),
        ("cube: 7", "{a: 1024, b: 1024, c: 1024, d: 1024, e: 1}", "its sensors have 4097 values"),
        ("options:\n  arm: panda", "options: panda", "options must be a map"),
        ("name: sim_panda", "name: [sim_panda", "while parsing"),
    ],
)
def test_a_file_with_a_mistake_is_refused_by_name(tmp_path: Path, old: str, new: str, says: str) -> None:
    path = _edited(tmp_path, old, new)
    with pytest.raises(ValueError, match=r"robot\.yaml") as refused:
        load_robot(path)
    assert says in str(refused.value)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize("text", ["", "- sim_panda", "sim_panda", "!!python/object/apply:os.getcwd []"])
def test_what_is_no_robot_at_all_is_refused(tmp_path: Path, text: str) -> None:
    path = tmp_path / "robot.yaml"
    path.write_text(text)
    with pytest.raises(ValueError, match=r"robot\.yaml"):
        load_robot(path)


def test_the_same_robot_has_the_same_hash_however_it_is_written(tmp_path: Path) -> None:
    spec = load_robot(CONFIGS / "sim_panda.yaml").spec
    same = load_robot(_edited(tmp_path, "rate: 100.0", "rate: 100")).spec
    other = load_robot(_edited(tmp_path, "rate: 100.0", "rate: 50.0")).spec
    assert spec.sha256 == same.sha256 != other.sha256


CAMERAS = """rate: 100.0
cameras:
- spec: {name: front, serial: "0123", width: 640, height: 480, rate: 30}
  source: {type: realsense, stream: depth}
- spec: {name: wrist, serial: usb-cam, width: 640, height: 480, rate: 30}
  source: {type: opencv}
  encoding: jpeg
"""


def test_the_cameras_of_a_robot_are_in_its_file_and_clients_are_told_of_them(tmp_path: Path) -> None:
    robot = load_robot(_edited(tmp_path, "rate: 100.0", CAMERAS))
    assert [camera.spec.name for camera in robot.cameras] == ["front", "wrist"]
    assert robot.cameras[0].source == RealSense(stream="depth")
    assert robot.cameras[1] == CameraSettings(spec=robot.spec.cameras[1], source=OpenCV(), encoding="jpeg")
    assert robot.spec.cameras == tuple(camera.spec for camera in robot.cameras)


@pytest.mark.parametrize(
    ("old", "new", "says"),
    [
        ("stream: depth", "strem: depth", "no key cameras[0].source.strem; did you mean stream?"),
        ("encoding: jpeg", "encodign: jpeg", "no key cameras[1].encodign; did you mean encoding?"),
        ("type: opencv", "type: openvc", "cameras: Invalid value 'openvc'"),
        ("name: wrist", "name: a/b", "cameras: "),
        ('serial: "0123"', 'serial: ""', "camera front needs a serial"),
        ("width: 640", "width: wide", "cameras: Expected `int`"),
    ],
)
def test_a_mistake_in_a_camera_is_refused_by_name(tmp_path: Path, old: str, new: str, says: str) -> None:
    assert old in CAMERAS
    with pytest.raises(ValueError, match=r"robot\.yaml") as refused:
        load_robot(_edited(tmp_path, "rate: 100.0", CAMERAS.replace(old, new, 1)))
    assert says in str(refused.value)


def test_options_of_a_driver_are_as_strict() -> None:
    with pytest.raises(ValueError, match=r"no key options\.am; did you mean arm\?"):
        checked_struct({"am": "panda"}, SimOptions, "options")
    with pytest.raises(ValueError, match="options: Expected `str`"):
        checked_struct({"arm": 3}, SimOptions, "options")


def test_a_driver_that_is_not_there_is_named_with_the_nearest() -> None:
    spec = msgspec.structs.replace(load_robot(CONFIGS / "sim_panda.yaml").spec, driver="simm")
    with pytest.raises(ValueError, match=r"no driver 'simm'; did you mean sim\?"):
        make_driver(RobotConfig(spec=spec), SteppedClock())


@pytest.mark.parametrize(
    ("old", "new", "says"),
    [
        ("arm: panda", "arm: pandar", "no simulated arm 'pandar'"),
        ("arm: panda", "arm: ur5e", "the simulated ur5e has space: joint and joints:"),
        ("arm: panda", "arms: panda", "did you mean arm?"),
        ("joint_lower: [-2.84", "joint_lower: [-3.84", "go beyond the panda's own"),
        ("sensors:\n  cube: 7", "sensors:\n  ball: 7", "sensors"),
        ("workspace_lower: [0.2", "workspace_lower: [0.5", "outside the workspace"),
        ("width: 0.08", "width: 0.2", "opens 0.08 m"),
    ],
)
def test_a_file_that_does_not_suit_the_simulated_arm_is_refused(
    tmp_path: Path, old: str, new: str, says: str
) -> None:
    config = load_robot(_edited(tmp_path, old, new))
    with pytest.raises(ValueError) as refused:  # noqa: PT011 (what it says is looked at below)
        make_driver(config, SteppedClock())
    assert says in str(refused.value)


def test_a_key_that_a_cameras_file_has_twice_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "front.yaml"
    spec = 'spec: {name: front, serial: "1", width: 84, height: 84, rate: 30}\n'
    file.write_text(f"{spec}source: {{type: realsense}}\ncapture: [640, 480]\n")
    assert load_camera(file).device_spec.width == 640
    file.write_text(f"{spec}{spec}source: {{type: realsense}}\n")
    with pytest.raises(ValueError, match=r"front\.yaml: .*spec"):
        load_camera(file)
