"""Observed images: their content, and that it does not depend on the context or thread that renders them."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import mujoco
import numpy as np
import pytest

from robot_rl.cli.compose import load_group
from robot_rl.data.compatibility import check_same_environment
from robot_rl.envs import offscreen
from robot_rl.envs.offscreen import coarsen
from robot_rl.envs.renderer import EnvCameraRenderer, overview
from robot_rl.envs.robosuite_env import RobosuiteEnv
from robot_rl.envs.task import TaskConfig
from robot_rl.envs.vector import ThreadVectorEnv
from robot_rl.errors import UserError
from robot_rl.factory import task_of
from robot_rl.runs import open_run

CAMERAS = ["agentview", "robot0_eye_in_hand"]


def config(name: str = "lift", **changes: Any) -> TaskConfig:
    task = load_group("task", name, TaskConfig)
    return TaskConfig(**{**vars(task), "cameras": CAMERAS, "image_size": [48, 64], **changes})


def apart(one: np.ndarray, two: np.ndarray) -> float:
    """Mean absolute difference of images, in grey levels."""
    return float(np.abs(one.astype(int) - two).mean())


def move(env: RobosuiteEnv, steps: int) -> dict[str, np.ndarray]:
    for _ in range(steps):
        obs, *_ = env.step(np.array([0.3, 0.2, -0.8, 0, 0, 0.2, 1]))
    return obs


@pytest.fixture(scope="module")
def env() -> Iterator[RobosuiteEnv]:
    env = RobosuiteEnv(config())
    yield env
    env.close()


@pytest.mark.parametrize("name", ["lift", pytest.param("door", marks=pytest.mark.full)])
def test_quick_images_show_what_robosuites_show(name: str) -> None:
    seen, states = {}, {}
    for render in ("quick", "robosuite"):
        env = RobosuiteEnv(config(name, render=render))
        env.reset(seed=0)
        seen[render] = move(env, 8)
        states[render] = env.get_state()
        assert env.observation_space.contains(seen[render])
        assert (env.sim.sim._render_context_offscreen is None) == (render == "quick")
        env.close()
    np.testing.assert_array_equal(states["quick"], states["robosuite"])
    quick, robosuite = ([seen[r][f"images.{c}"] for c in CAMERAS] for r in ("quick", "robosuite"))
    for ours, theirs, other in zip(quick, robosuite, robosuite[::-1], strict=True):
        assert apart(ours, theirs) < 10
        assert min(apart(ours, theirs[::-1]), apart(ours, theirs[:, ::-1])) > 1.5 * apart(ours, theirs)
        assert apart(ours, other) > 3 * apart(ours, theirs)


@pytest.mark.full
def test_quick_images_are_taken_at_the_instant_of_robosuites() -> None:
    """The image of a step is of its first substep, not of its end."""
    ages = []
    for render in ("quick", "robosuite"):
        env = RobosuiteEnv(config(render=render, cameras=["agentview"]))
        env.reset(seed=0)
        move(env, 3)
        observable = env.sim._observables["agentview_image"]
        times = []
        sensor = observable._sensor
        observable._sensor = lambda cache, sensor=sensor, env=env, times=times: (
            times.append(env.sim.sim.data.time),
            sensor(cache),
        )[1]
        observable._sensor.__modality__ = "image"
        for _ in range(4):
            move(env, 1)
            times.append(env.sim.sim.data.time)
        ages.append(times)
        env.close()
    assert ages[0] == ages[1]


def test_size_is_height_by_width_and_larger_buffers_change_nothing(env: RobosuiteEnv) -> None:
    obs, _ = env.reset(seed=0)
    assert {obs[f"images.{camera}"].shape for camera in CAMERAS} == {(48, 64, 3)}
    with EnvCameraRenderer(env, "agentview", 40, 30) as small:
        before = small.frame()
        with EnvCameraRenderer(env, "agentview", 200, 300) as large:
            assert large.frame().shape == (200, 300, 3)
        after = small.frame()
    assert before.shape == (40, 30, 3)
    np.testing.assert_array_equal(before, after)


@pytest.mark.full
def test_images_do_not_depend_on_the_number_of_threads() -> None:
    rng = np.random.default_rng(0)
    actions = rng.uniform(-1, 1, (4, 2, 7)).astype(np.float32)
    seen = []
    others = set(offscreen._pools)
    for threads in (1, 2):
        vector = ThreadVectorEnv([partial(RobosuiteEnv, config("stack"))] * 2, threads)
        assert (vector._pool is None) == (threads == 1)
        seen.append([vector.reset(seed=5)[0], *(vector.step(action)[0] for action in actions)])
        (key,) = offscreen._pools.keys() - others
        assert 1 <= len(offscreen._pools[key].idle) <= threads
        vector.close()
        assert set(offscreen._pools) == others
    for one, two in zip(*seen, strict=True):
        for key in one:
            np.testing.assert_array_equal(one[key], two[key])


@pytest.mark.full
def test_robosuites_own_rendering_stays_in_one_thread() -> None:
    seeing = config(render="robosuite", cameras=["agentview"])
    vector = ThreadVectorEnv([partial(RobosuiteEnv, seeing)] * 2, 2)
    assert vector._pool is None
    vector.close()


def test_images_do_not_depend_on_the_thread_nor_on_the_context(env: RobosuiteEnv) -> None:
    env.reset(seed=0)
    state = env.get_state()
    here = env.set_state(state)
    twin = RobosuiteEnv(config())
    assert len(offscreen._pools) == 1
    with ThreadPoolExecutor(1) as elsewhere:
        there = elsewhere.submit(env.set_state, state).result()
        (pool,) = offscreen._pools.values()
        idle, pool.idle = pool.idle, []
        fresh = elsewhere.submit(twin.set_state, state).result()
        pool.idle += idle
        elsewhere.submit(twin.close).result()
    again = env.set_state(state)
    for camera in CAMERAS:
        for obs in (there, fresh, again):
            np.testing.assert_array_equal(here[f"images.{camera}"], obs[f"images.{camera}"])


def test_images_of_a_restored_state_are_the_same_every_time(env: RobosuiteEnv) -> None:
    env.reset(seed=1)
    seen = move(env, 6)
    state = env.get_state()
    restored = env.set_state(state)
    assert env.observation_space.contains(restored)
    ahead = move(env, 2)
    env.reset(seed=2)
    again = env.set_state(state)
    for key, image in restored.items():
        np.testing.assert_array_equal(image, again[key])
    np.testing.assert_array_equal(move(env, 2)["images.agentview"], ahead["images.agentview"])
    # An image that was observed is older by the rest of its step.
    assert apart(restored["images.agentview"], seen["images.agentview"]) < 3


@pytest.mark.parametrize("camera", [*CAMERAS, "birdview", overview()])
def test_nothing_in_the_picture_is_left_out(env: RobosuiteEnv, camera: str | mujoco.MjvCamera) -> None:
    env.reset(seed=0)
    with EnvCameraRenderer(env, camera, 60, 90, quick=True) as view:
        some, scene = view.frame(), view._scene
        left_out = np.array([geom.type == mujoco.mjtGeom.mjGEOM_LABEL for geom in scene.geoms[: scene.ngeom]])
        invisible = np.array([geom.rgba[3] < 0 for geom in scene.geoms[: scene.ngeom]])
        mujoco.mjv_updateScene(
            *(view._model, view._data, view._options, view._untouched, view._camera),
            *(mujoco.mjtCatBit.mjCAT_ALL, scene),
        )
        np.testing.assert_array_equal(view._offscreen.draw(scene), some)
    assert invisible.any()
    assert left_out[invisible].all()
    if camera == "robot0_eye_in_hand":
        assert left_out[~invisible].mean() > 0.3


def test_coarse_meshes_fill_the_same_space(env: RobosuiteEnv) -> None:
    model = env.sim.sim.model._model
    faces, vertices = model.mesh_facenum.copy(), model.mesh_vert.copy()
    with EnvCameraRenderer(env, "agentview", 84, 84, quick=True) as view:
        view.frame()
    np.testing.assert_array_equal(model.mesh_vert, vertices)  # the environment's own is left alone
    coarsen(model := mujoco.MjModel.from_xml_string(env.sim.sim.model.get_xml()), 84)
    assert (model.mesh_facenum <= faces).all()
    assert (model.mesh_facenum > 0).all()
    assert model.mesh_facenum.sum() < 0.7 * faces.sum()
    # Pixels between a circle that fills the image and the middle of a side.
    assert 84 / 2 * (1 - np.cos(np.pi / model.vis.quality.numslices)) <= 2
    for start, count in zip(model.mesh_vertadr, model.mesh_vertnum, strict=True):
        old, new = vertices[start : start + count], model.mesh_vert[start : start + count]
        cell = 2 * np.linalg.norm(np.ptp(old, axis=0)) / 84
        assert np.abs(old - new).max() <= cell * 1.001


def test_contexts_are_shared_and_freed_with_their_last_user() -> None:
    assert len(offscreen._pools) <= 1  # the module's own environment
    before = {key: pool.users for key, pool in offscreen._pools.items()}
    freed = []
    envs = [RobosuiteEnv(config("stack")) for _ in range(2)]
    (key,) = offscreen._pools.keys() - before.keys()
    pool = offscreen._pools[key]
    assert (pool.users, len(pool.idle)) == (2 * len(CAMERAS), 1)
    free = pool.idle[0].free
    pool.idle[0].free = lambda: (freed.append(True), free())  # type: ignore[method-assign]
    envs[0].close()
    assert not freed
    envs[1].reset(seed=0)
    envs[1].close()
    envs[1].close()
    assert freed
    assert {key: pool.users for key, pool in offscreen._pools.items()} == before


def test_closed_renderer_refuses(env: RobosuiteEnv) -> None:
    view = EnvCameraRenderer(env, "agentview", 32, 32)
    view.close()
    with pytest.raises(RuntimeError, match="closed"):
        view.frame()


def test_unknown_camera_is_refused_and_leaves_nothing_behind() -> None:
    before = {key: pool.users for key, pool in offscreen._pools.items()}
    with pytest.raises(ValueError, match=r"no camera 'agentveiw'; the scene has .*agentview"):
        RobosuiteEnv(config(cameras=["agentview", "agentveiw"]))
    assert {key: pool.users for key, pool in offscreen._pools.items()} == before


def test_unknown_rendering_is_refused() -> None:
    with pytest.raises(ValueError, match=r"task\.render=nice: choose quick or robosuite"):
        config(render="nice")


def test_description_tells_the_rendering_and_rebuilds_it(env: RobosuiteEnv) -> None:
    assert env.describe()["render"] == "quick"
    for render in ("quick", "robosuite"):
        assert task_of({**env.describe(), "render": render}) == replace(env.task, render=render)


def test_other_rendering_is_refused_with_the_option_to_pass(env: RobosuiteEnv) -> None:
    here = env.describe()
    of_old = {key: value for key, value in here.items() if key != "render"}
    check_same_environment(here, here, "it")
    check_same_environment(of_old, {**here, "render": "robosuite"}, "it")
    check_same_environment(of_old, here, "it", accept=("render",))
    for recorded in (of_old, {**here, "render": "robosuite"}):
        with pytest.raises(ValueError, match=r"was robosuite, here it is quick \(task\.render=robosuite "):
            check_same_environment(recorded, here, "it")
    assert task_of(of_old).render == "robosuite"


def test_rendering_is_no_difference_without_cameras() -> None:
    described = []
    for render in ("quick", "robosuite"):
        env = RobosuiteEnv(config(render=render, cameras=[]))
        described.append(env.describe())
        env.close()
    check_same_environment(*described, "it")
    assert task_of(described[1]).render == "quick"


def test_run_from_before_there_was_a_choice_goes_on(tmp_path: Path) -> None:
    def resolved(**task: Any) -> dict[str, Any]:
        return {"seed": 0, "task": {"name": "lift", **task}}

    open_run(tmp_path / "blind", resolved(cameras=[]))
    open_run(tmp_path / "blind", resolved(cameras=[], render="quick"))
    open_run(tmp_path / "seeing", resolved(cameras=CAMERAS))
    with pytest.raises(UserError, match=r"task\.render was 'robosuite', now 'quick'"):
        open_run(tmp_path / "seeing", resolved(cameras=CAMERAS, render="quick"))
    open_run(tmp_path / "seeing", resolved(cameras=CAMERAS, render="robosuite"))
