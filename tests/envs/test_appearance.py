"""Random appearance: what it changes, that seed and state determine it, and what is refused."""

from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pytest

from robot_rl.cli.compose import load_group
from robot_rl.envs.appearance import without_appearance
from robot_rl.envs.disturbances import check_disturbances
from robot_rl.envs.disturbed_env import DisturbedEnv
from robot_rl.envs.robosuite_env import RobosuiteEnv
from robot_rl.envs.task import TaskConfig
from robot_rl.envs.task_driver import TaskDriver
from robot_rl.evaluation.initial_states import load_states
from robot_rl.factory import task_of
from robot_rl.hardware.clock import MonotonicClock

PLAIN = TaskConfig(
    **{**vars(load_group("task", "lift_image", TaskConfig)), "image_size": [32, 32], "cameras": ["agentview"]}
)
RANDOM = replace(PLAIN, randomize=["camera", "light", "texture"])
IMAGE = "images.agentview"
ACTION = np.array([0.3, 0.2, -0.8, 0, 0, 0.2, 1], np.float32)


@pytest.fixture(scope="module")
def plain() -> Iterator[RobosuiteEnv]:
    env = RobosuiteEnv(PLAIN)
    yield env
    env.close()


@pytest.fixture(scope="module")
def env() -> Iterator[RobosuiteEnv]:
    env = RobosuiteEnv(RANDOM)
    yield env
    env.close()


def test_each_reset_looks_different_and_a_seed_always_the_same(env: RobosuiteEnv) -> None:
    images = [env.reset(seed=seed)[0][IMAGE] for seed in (0, 1, 0)]
    assert np.array_equal(images[0], images[2])
    unseeded = [env.reset()[0][IMAGE] for _ in range(2)]
    for one, other in ((images[0], images[1]), (images[0], unseeded[0]), tuple(unseeded)):
        assert np.abs(one.astype(int) - other).mean() > 3


def test_appearance_leaves_scene_and_physics_alone(env: RobosuiteEnv, plain: RobosuiteEnv) -> None:
    for one in (env, plain):
        one.reset(seed=3)
        one.step(ACTION)
    assert env.get_state()[:-1].tobytes() == plain.get_state().tobytes()


def test_an_episode_goes_on_from_its_state_with_the_same_images(env: RobosuiteEnv) -> None:
    env.reset(seed=4)
    env.step(ACTION)
    state = env.get_state()
    expected = [env.step(ACTION)[0][IMAGE] for _ in range(2)]
    env.reset(seed=5)
    env.set_state(state)
    assert all(np.array_equal(env.step(ACTION)[0][IMAGE], image) for image in expected)


def test_a_list_of_states_of_the_plain_task_gives_each_state_its_appearance(
    env: RobosuiteEnv, plain: RobosuiteEnv
) -> None:
    states = load_states(env).states[:2]
    first, second, again = (env.reset(options={"state": states[at]})[0][IMAGE] for at in (0, 1, 0))
    assert np.array_equal(first, again)
    assert not np.array_equal(first, plain.reset(options={"state": states[0]})[0][IMAGE])
    assert np.abs(first.astype(int) - second).mean() > 3


def test_description_rebuilds_the_appearance(env: RobosuiteEnv, plain: RobosuiteEnv) -> None:
    description = env.describe()
    assert task_of(description) == env.task
    assert sum(size for _, size in description["state_layout"]) == env.get_state().size
    assert without_appearance(description) == plain.describe() == without_appearance(plain.describe())


def test_a_damaged_state_is_refused(env: RobosuiteEnv) -> None:
    env.reset(seed=0)
    state = env.get_state()
    for number in (-1.0, 0.5, 2.0**53, np.nan):
        with pytest.raises(ValueError, match="appearance"):
            env.set_state(np.append(state[:-1], number))
    with pytest.raises(ValueError, match="shape"):
        env.set_state(state[:-2])


def test_an_appearance_that_nothing_shows_is_refused() -> None:
    for changes, message in (
        ({"randomize": ["lights"]}, r"\[lights\]: choose from camera, light, texture"),
        ({"randomize": ["light", "light"]}, "each once"),
        ({"cameras": []}, r"is for images: add task\.cameras"),
        ({"render": "robosuite"}, r"task\.render=quick"),
    ):
        with pytest.raises(ValueError, match=message):
            RobosuiteEnv(replace(RANDOM, **changes))
    with pytest.raises(ValueError, match=r"task\.randomize is for training and evaluation"):
        TaskDriver(RANDOM, MonotonicClock())


def test_disturbances_that_only_images_show_are_for_the_plain_appearance(env: RobosuiteEnv) -> None:
    with pytest.raises(ValueError, match=r"under=light: .*random appearance already \(task\.randomize="):
        check_disturbances(["mass", "light"], RANDOM)
    check_disturbances(["mass"], RANDOM)
    heavy = DisturbedEnv(RANDOM, "mass", seed=0)
    try:
        assert np.array_equal(heavy.reset(seed=0)[0][IMAGE], env.reset(seed=0)[0][IMAGE])
    finally:
        heavy.close()


@pytest.mark.full
def test_the_other_renderer_is_a_disturbance(plain: RobosuiteEnv) -> None:
    other = RobosuiteEnv(replace(PLAIN, render="robosuite"))
    disturbed = DisturbedEnv(PLAIN, "render", seed=0)
    try:
        images = [one.reset(seed=0)[0][IMAGE] for one in (disturbed, other, plain)]
    finally:
        other.close()
        disturbed.close()
    assert np.array_equal(images[0], images[1])
    assert not np.array_equal(images[0], images[2])
