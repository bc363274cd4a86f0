"""Cameras of a MuJoCo scene."""

import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import zmq

from robot_rl.hardware.cameras.device import CameraError, RawFrame, WrongCamera
from robot_rl.hardware.cameras.settings import Sim
from robot_rl.hardware.cameras.sim import SimCamera
from robot_rl.hardware.cameras.simulated_scene import RenderFeed
from robot_rl.hardware.clock import MonotonicClock
from robot_rl.hardware.drivers.sim import make
from robot_rl.hardware.robot_file import load_robot
from robot_rl.hardware.spec import CameraSpec

ROOT = Path(__file__).resolve().parents[3]
SCENE = """
<mujoco>
  <worldbody>
    <light pos="0 0 3"/>
    <camera name="top" pos="0 0 2"/>
    <camera name="side" pos="0 -2 0" xyaxes="1 0 0 0 0 1"/>
    <body name="ball"><joint type="slide" axis="1 0 0"/><geom size="0.2" rgba="1 0 0 1"/></body>
  </worldbody>
</mujoco>
"""
WAIT = 60.0


@pytest.fixture
def scene(tmp_path: Path) -> Path:
    path = tmp_path / "scene.xml"
    path.write_text(SCENE)
    return path


@pytest.fixture
def endpoint(tmp_path: Path) -> str:
    return f"ipc://{tmp_path}/feed"


@pytest.fixture
def feed(endpoint: str) -> Iterator[RenderFeed]:
    feed = RenderFeed(zmq.Context.instance(), endpoint)
    yield feed
    feed.close()


def camera(scene: Path, endpoint: str, serial: str = "top", rate: float = 20.0) -> SimCamera:
    spec = CameraSpec(name="front", serial=serial, width=80, height=60, rate=rate)
    return SimCamera(spec, Sim(scene=str(scene), feed=endpoint))


def show(sim: SimCamera, feed: RenderFeed, t: int, *qpos: float) -> RawFrame:
    """What the camera sees of a state: shown until it does, for who just came misses what is shown once."""
    deadline = time.monotonic() + WAIT
    while time.monotonic() < deadline:
        feed.send(t, qpos)
        if (frame := sim.next_frame(0.2)) and frame.t_device == t:
            return frame
    raise AssertionError("nothing was seen")


def middle(image: np.ndarray) -> float:
    """Column of the red ball."""
    red = image[..., 0].astype(int) - image[..., 1] > 60
    assert red.any()
    return float(np.nonzero(red)[1].mean())


def test_it_shows_the_state_of_the_feed_with_its_time(scene: Path, endpoint: str, feed: RenderFeed) -> None:
    sim = camera(scene, endpoint)
    sim.open()
    assert sim.serial == "top"
    left, right = show(sim, feed, 1000, -0.4), show(sim, feed, 2000, 0.4)
    assert (left.t_device, left.clock) == (1000, "monotonic")
    assert right.number > left.number
    assert left.image.shape == (60, 80, 3)
    assert middle(left.image) < 35 < 45 < middle(right.image)
    sim.close()
    sim.close()


def test_without_a_new_state_there_is_no_image(scene: Path, endpoint: str, feed: RenderFeed) -> None:
    sim = camera(scene, endpoint)
    sim.open()
    show(sim, feed, 1000, 0.0)
    # Drawing may have let another copy of it arrive.
    while frame := sim.next_frame(0.5):
        assert frame.t_device == 1000
    began = time.monotonic()
    assert sim.next_frame(0.3) is None
    assert time.monotonic() - began >= 0.25
    sim.close()


def test_it_keeps_the_cameras_rate_however_often_the_feed_shows(
    scene: Path, endpoint: str, feed: RenderFeed
) -> None:
    sim = camera(scene, endpoint, rate=10.0)
    sim.open()
    began = time.monotonic()
    numbers = [show(sim, feed, 1000, 0.0).number]
    while len(numbers) < 8:
        assert time.monotonic() < began + WAIT
        feed.send(time.monotonic_ns(), (0.1,))
        if frame := sim.next_frame(0.005):
            numbers.append(frame.number)
    assert numbers == sorted(set(numbers))
    assert len(numbers) <= (time.monotonic() - began) * 10 + 1
    # Numbers follow the time: an image that was not drawn is missing among them.
    assert numbers[-1] <= (time.monotonic() - began) * 10
    sim.close()


def test_a_camera_that_the_scene_has_not_is_refused_with_those_that_it_has(
    scene: Path, endpoint: str
) -> None:
    with pytest.raises(WrongCamera, match="no camera 'wrist'; it has top, side"):
        camera(scene, endpoint, "wrist").open()


def test_a_scene_that_is_not_there_or_is_none_is_refused(tmp_path: Path, endpoint: str) -> None:
    with pytest.raises(WrongCamera, match="there is no scene"):
        camera(tmp_path / "none.xml", endpoint).open()
    (tmp_path / "bad.xml").write_text("<mujoco><wordbody/></mujoco>")
    with pytest.raises(WrongCamera, match=r"bad\.xml"):
        camera(tmp_path / "bad.xml", endpoint).open()


@pytest.mark.parametrize("qpos", [(0.0, 0.0), (float("nan"),)])
def test_the_state_of_another_scene_is_not_drawn(
    scene: Path, endpoint: str, feed: RenderFeed, qpos: tuple[float, ...]
) -> None:
    sim = camera(scene, endpoint)
    sim.open()
    with pytest.raises(WrongCamera, match="use the scene that the simulated arm uses"):
        show(sim, feed, 1000, *qpos)
    sim.close()


def test_what_is_no_state_is_an_error_of_the_camera(scene: Path, tmp_path: Path) -> None:
    endpoint = f"ipc://{tmp_path}/other"
    sim = camera(scene, endpoint)
    sim.open()
    with zmq.Context.instance().socket(zmq.PUB) as other:
        other.setsockopt(zmq.LINGER, 0)
        other.bind(endpoint)
        deadline = time.monotonic() + WAIT

        def listen() -> None:
            while time.monotonic() < deadline:
                other.send(b"\xc1")
                sim.next_frame(0.1)

        with pytest.raises(CameraError, match="does not publish scene states"):
            listen()
    sim.close()


def test_it_sees_what_the_simulated_arm_does(tmp_path: Path, endpoint: str, feed: RenderFeed) -> None:
    driver = make(load_robot(ROOT / "configs/robot/sim_panda.yaml"), MonotonicClock())
    path = tmp_path / "world.xml"
    path.write_text(driver.scene())
    sim = camera(path, endpoint, "front")
    sim.open()
    state = driver.render_state()
    still = show(sim, feed, state.t + 1, *state.qpos).image
    state.qpos[1] -= 0.8
    moved = show(sim, feed, state.t + 2, *state.qpos).image
    changed = (np.abs(still.astype(int) - moved) > 30).any(axis=-1).mean()
    assert 0.005 < changed < 0.5
    sim.close()
