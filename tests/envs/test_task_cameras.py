"""Images of a served task's cameras equal those that the environment observes."""

import time
from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pytest

from robot_rl.cli.compose import load_group
from robot_rl.envs.robosuite_env import RobosuiteEnv
from robot_rl.envs.task import TaskConfig
from robot_rl.envs.task_driver import RENDERER_FACTORY, TaskDriver
from robot_rl.hardware.cameras.sim import SimCamera
from robot_rl.hardware.cameras.simulated_scene import SimCameras
from robot_rl.hardware.clock import MS, SteppedClock

PATIENCE = 60.0
CAMERAS = ["agentview", "robot0_eye_in_hand"]


def seen(name: str) -> TaskConfig:
    return replace(load_group("task", name, TaskConfig), cameras=CAMERAS, image_size=[48, 64])


class Served:
    """A driver, its cameras as devices of this process, and the plain environment."""

    def __init__(self, name: str) -> None:
        self.clock = SteppedClock()
        self.plain = RobosuiteEnv(seen(name))
        self.driver = TaskDriver(seen(name), self.clock)
        self.cameras = SimCameras(self.driver, self.driver.spec.cameras, RENDERER_FACTORY)
        self.devices = {}
        for settings in self.cameras.settings:
            self.devices[settings.spec.name] = device = SimCamera(settings.spec, settings.source)  # type: ignore[arg-type]
            device.open()
        self.driver.open()

    def images(self) -> dict[str, np.ndarray]:
        """Of the state as it is now."""
        self.clock.advance(10 * MS)
        self.driver.read()
        wanted = self.clock.now()
        out = {}
        for name, device in self.devices.items():
            deadline = time.monotonic() + PATIENCE
            frame = None
            while frame is None or frame.t_device != wanted:
                assert time.monotonic() < deadline
                self.cameras.show(None)  # type: ignore[arg-type]
                frame = device.next_frame(0.1)
            out[name] = frame.image
        return out

    def close(self) -> None:
        for device in self.devices.values():
            device.close()
        self.cameras.close()
        self.plain.close()


# Door's images are made as Lift's, and its door is moved besides.
@pytest.fixture(params=[pytest.param("lift", marks=pytest.mark.full), "door"], scope="module")
def served(request: pytest.FixtureRequest) -> Iterator[Served]:
    served = Served(request.param)
    yield served
    served.close()


def test_images_are_those_that_the_environment_observes(served: Served) -> None:
    """Of Door also, whose door is moved in the model itself from one episode to the next."""
    first = {}
    for seed in (1, 2):
        served.driver.reset(seed)
        expected, _ = served.plain.reset(seed=seed)
        images = served.images()
        for name in CAMERAS:
            assert np.array_equal(images[name], expected[f"images.{name}"]), name
        first.setdefault("agentview", images["agentview"])
    assert not np.array_equal(first["agentview"], images["agentview"])


def test_they_show_what_the_arm_does(served: Served) -> None:
    served.driver.reset(1)
    before = served.images()
    served.driver.enable()
    served.driver.gripper.move(0.0)
    for _ in range(40):
        served.clock.advance(10 * MS)
        served.driver.read()
    after = served.images()
    served.driver.stop()
    assert not np.array_equal(before["robot0_eye_in_hand"], after["robot0_eye_in_hand"])


def test_the_spec_has_them_as_the_task_has_them(served: Served) -> None:
    assert [(camera.name, camera.height, camera.width) for camera in served.driver.spec.cameras] == [
        (name, 48, 64) for name in CAMERAS
    ]


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"cameras": ["agentveiw"]}, "has no camera 'agentveiw'; it has .*agentview"),
        ({"render": "robosuite"}, "quick"),
    ],
)
def test_cameras_that_cannot_be_served_are_refused(changed: dict, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        TaskDriver(replace(seen("lift"), **changed), SteppedClock())
