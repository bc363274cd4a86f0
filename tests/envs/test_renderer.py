from collections.abc import Iterator

import mujoco
import numpy as np
import pytest

from robot_rl.envs.renderer import EnvCameraRenderer, overview
from robot_rl.envs.robosuite_env import RobosuiteEnv
from robot_rl.envs.task import TaskConfig


@pytest.fixture(scope="module")
def env() -> Iterator[RobosuiteEnv]:
    task = TaskConfig(name="lift", env="Lift", state_keys=["cube_pos"])
    task.cameras, task.image_size = ["agentview"], [64, 64]
    env = RobosuiteEnv(task)
    yield env
    env.close()


@pytest.mark.parametrize("camera", ["agentview", overview()])
def test_a_frame_is_a_picture(env: RobosuiteEnv, camera: str | mujoco.MjvCamera) -> None:
    env.reset(seed=0)
    with EnvCameraRenderer(env, camera, 96, 128) as renderer:
        frame = renderer.frame()
    assert frame.shape == (96, 128, 3)
    assert frame.dtype == np.uint8
    gray = frame.astype(float).mean(axis=2)
    assert gray.mean() > 30  # not black
    assert gray.std() > 10  # not one colour
    # In noise neighbours differ as much as any two pixels; in a picture far less.
    assert np.abs(np.diff(gray, axis=1)).mean() < 0.4 * gray.std()
    red = frame[..., 0].astype(int) - frame[..., 1]
    assert (red > 60).any()  # the cube


def test_frames_follow_the_state(env: RobosuiteEnv) -> None:
    env.reset(seed=0)
    start = env.get_state()
    with EnvCameraRenderer(env, "agentview", 64, 64) as renderer:
        before = renderer.frame()
        for _ in range(5):
            env.step(np.array([0, 1, -1, 0, 0, 0, 0], np.float32))
        moved = renderer.frame()
        env.set_state(start)
        again = renderer.frame()
    assert (before != moved).mean() > 0.01
    np.testing.assert_array_equal(before, again)


def test_observed_images_are_not_changed_by_a_renderer(env: RobosuiteEnv) -> None:
    env.reset(seed=0)
    state = env.get_state()
    alone = env.set_state(state)["images.agentview"]
    with EnvCameraRenderer(env, "frontview", 64, 64) as renderer:
        renderer.frame()
        beside = env.set_state(state)["images.agentview"]
        renderer.frame()
    after = env.set_state(state)["images.agentview"]
    np.testing.assert_array_equal(alone, beside)
    np.testing.assert_array_equal(alone, after)


def test_image_is_one_frame(env: RobosuiteEnv) -> None:
    env.reset(seed=0)
    with EnvCameraRenderer(env, "agentview", 64, 48) as renderer:
        np.testing.assert_array_equal(env.image("agentview", 64, 48), renderer.frame())


def test_larger_than_the_models_own_buffer(env: RobosuiteEnv) -> None:
    with EnvCameraRenderer(env, "agentview", 720, 720) as renderer:
        assert renderer.frame().shape == (720, 720, 3)


def test_an_unknown_camera_is_answered_with_those_there_are(env: RobosuiteEnv) -> None:
    with pytest.raises(ValueError, match="frontview"):
        EnvCameraRenderer(env, "agentveiw")


def test_two_environments_with_cameras_see_each_its_own_scene(env: RobosuiteEnv) -> None:
    first, _ = env.reset(seed=0)
    other = RobosuiteEnv(env.task)
    second, _ = other.reset(seed=1)
    again, _ = env.reset(seed=0)
    np.testing.assert_array_equal(first["images.agentview"], again["images.agentview"])
    twin, _ = other.reset(seed=0)
    np.testing.assert_array_equal(first["images.agentview"], twin["images.agentview"])
    assert not np.array_equal(first["images.agentview"], second["images.agentview"])
    other.close()
