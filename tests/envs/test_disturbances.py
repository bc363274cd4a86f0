"""Disturbances: their stated magnitudes, seeds, what they leave alone, and tasks that they are not for."""

import math
from collections.abc import Callable
from dataclasses import replace

import mujoco
import numpy as np
import pytest

from robot_rl.cli.compose import load_group
from robot_rl.envs import disturbances
from robot_rl.envs.disturbances import DISTURBANCES, MODEL_FIELDS, Scene, check_disturbances
from robot_rl.envs.disturbed_env import DisturbedEnv
from robot_rl.envs.robosuite_env import RobosuiteEnv
from robot_rl.envs.task import TaskConfig

XML = """
<mujoco>
  <asset><material name="wood" rgba=".8 .6 .4 1"/></asset>
  <worldbody>
    <light pos="0 0 2" diffuse=".6 .6 .6"/>
    <camera name="front" pos="1 0 1" quat=".5 .5 .5 .5"/>
    <camera name="unused" pos="0 1 1"/>
    <geom name="table" type="plane" size="1 1 .1" material="wood"/>
    <body name="box" pos="0 0 .1">
      <freejoint/>
      <geom name="box" type="box" size=".02 .03 .04" pos=".01 0 0" mass=".5"/>
      <geom name="ball" type="sphere" size=".02" mass=".1"/>
    </body>
    <body name="arm"><joint name="hinge"/><geom name="link" type="box" size=".1 .1 .1" mass="2"/></body>
  </worldbody>
</mujoco>
"""
WITHOUT_OBJECT = "<mujoco><worldbody><geom type='plane' size='1 1 .1'/></worldbody></mujoco>"
TASK = load_group("task", "lift", TaskConfig)


def scene(xml: str = XML) -> Scene:
    model = mujoco.MjModel.from_xml_string(xml)
    return Scene(model, mujoco.MjData(model), ["front"])


def rng(seed: int = 0) -> np.random.Generator:
    return np.random.default_rng(seed)


def changed(
    change: Callable[[Scene, np.random.Generator], None], seed: int = 0
) -> tuple[Scene, Scene, set[str]]:
    """The scene before and after a change, and the names of the arrays that it changed."""
    before, after = scene(), scene()
    change(after, rng(seed))
    names = {name for name in MODEL_FIELDS if not np.array_equal(at(before, name), at(after, name))}
    return before, after, names


def drawn_colours(where: Scene) -> np.ndarray:
    """Colours [N, 4] in which MuJoCo draws the geoms; a material's or the geom's."""
    model, drawn = where.model, mujoco.MjvScene(where.model, 100)
    mujoco.mj_forward(model, where.data)
    everything = int(mujoco.mjtCatBit.mjCAT_ALL)
    mujoco.mjv_updateScene(model, where.data, mujoco.MjvOption(), None, mujoco.MjvCamera(), everything, drawn)
    shown = [geom for geom in drawn.geoms[: drawn.ngeom] if geom.objtype == mujoco.mjtObj.mjOBJ_GEOM]
    assert len(shown) == model.ngeom
    return np.array([geom.rgba for geom in shown])


def at(where: Scene, name: str) -> np.ndarray:
    return getattr(where.model, name)


def test_every_disturbance_states_its_magnitude() -> None:
    for name, one in DISTURBANCES.items():
        assert any(letter.isdigit() for letter in one.text), name
        functions = [one.task, one.model, one.start, one.step, one.observe]
        assert sum(function is not None for function in functions) == 1


def test_observed_cameras_move_and_turn() -> None:
    for seed in range(20):
        before, after, names = changed(disturbances.camera, seed)
        assert names == {"cam_pos", "cam_quat"}
        moved = at(after, "cam_pos") - at(before, "cam_pos")
        assert 0 < np.abs(moved[0]).max() <= 0.02
        cosine = abs(at(before, "cam_quat")[0] @ at(after, "cam_quat")[0])
        assert 2 * math.acos(min(cosine, 1.0)) <= math.radians(2) + 1e-6
        assert np.linalg.norm(at(after, "cam_quat")[0]) == pytest.approx(1)
        assert not moved[1].any()


def test_light_and_colours_change_within_bounds() -> None:
    before, after, names = changed(disturbances.light)
    assert {"light_pos", "light_diffuse"} <= names <= {"light_pos", "light_diffuse", "light_specular"}
    ratio = at(after, "light_diffuse") / at(before, "light_diffuse")
    assert 0.4 <= ratio.min() == pytest.approx(ratio.max())
    assert ratio.max() <= 1.4
    headlight = after.model.vis.headlight.diffuse / before.model.vis.headlight.diffuse
    assert headlight == pytest.approx(ratio[0], rel=1e-5)
    before, after, names = changed(disturbances.texture)
    assert names == {"mat_rgba", "geom_rgba"}
    ratio = drawn_colours(after) / drawn_colours(before)
    assert (ratio[:, :3] >= 0.5).all()
    assert (ratio[:, :3] < 1).all()
    assert (ratio[:, 3] == 1).all()


def test_objects_alone_get_another_size_and_mass() -> None:
    before, after, names = changed(disturbances.size)
    assert names >= {"geom_size", "geom_pos", "geom_rbound", "geom_aabb", "body_inertia", "bvh_aabb"}
    assert "body_mass" not in names
    ratio = at(after, "geom_size")[1] / at(before, "geom_size")[1]
    assert 0.9 <= ratio[0] <= 1.1
    assert ratio == pytest.approx(ratio[0])
    larger = mujoco.MjModel.from_xml_string(
        XML.replace(".02 .03 .04", " ".join(str(float(x)) for x in at(after, "geom_size")[1]))
    )
    assert after.model.geom("box").rbound == pytest.approx(larger.geom("box").rbound)
    before, after, names = changed(disturbances.mass)
    assert names >= {"body_mass", "body_inertia", "body_subtreemass", "body_invweight0", "dof_invweight0"}
    assert not [name for name in names if name.startswith("geom")]
    weights = at(after, "body_mass")[1] * np.array([0.5, 0.1]) / 0.6
    heavier = XML.replace('mass=".5"', f'mass="{weights[0]}"').replace('mass=".1"', f'mass="{weights[1]}"')
    compiled = mujoco.MjModel.from_xml_string(heavier)
    for name in names:
        np.testing.assert_allclose(at(after, name), getattr(compiled, name), rtol=1e-6, atol=1e-12)
    ratio = at(after, "body_mass")[1:] / at(before, "body_mass")[1:]
    assert 0.5 <= ratio[0] <= 2
    assert ratio[1] == 1  # the arm


def test_objects_are_pushed_now_and_then() -> None:
    where, draws, pushes = scene(), rng(), 0
    for _ in range(2000):
        where.data.qvel[:] = 0
        disturbances.push(where, draws)
        if where.data.qvel.any():
            pushes += 1
            assert np.linalg.norm(where.data.qvel[:2]) == pytest.approx(0.5)
            assert not where.data.qvel[2:].any()
    assert 20 < pushes < 70


def test_observations_are_late_lost_or_noisy() -> None:
    seen = [{"state": np.full(3, step, np.float32)} for step in range(4)]
    assert disturbances.delay(seen[-3:], None, rng()) is seen[1]
    assert disturbances.delay(seen[:1], None, rng()) is seen[0]
    draws = rng()
    kept = [disturbances.drop(seen, seen[0], draws) is seen[-1] for _ in range(1000)]
    assert 0.75 < np.mean(kept) < 0.85
    assert all(disturbances.drop(seen, None, draws) is seen[-1] for _ in range(20))
    image = np.full((40, 40, 3), 250, np.uint8)
    noisy = disturbances.noise([{"state": np.zeros(4000, np.float32), "images.front": image}], None, rng())
    assert noisy["state"].std() == pytest.approx(0.005, rel=0.1)
    assert noisy["images.front"].dtype == np.uint8
    assert image.min() == 250
    assert noisy["images.front"].std() > 3


def test_what_a_task_does_not_have_is_refused() -> None:
    door = load_group("task", "door", TaskConfig)
    for name in ("mass", "push", "removed"):
        # Before anything is evaluated.
        with pytest.raises(ValueError, match=f"under={name}: the task has no object that moves freely"):
            DisturbedEnv(door, name, 0)
    with pytest.raises(ValueError, match="no object of simple shapes"):
        disturbances.size(scene(WITHOUT_OBJECT), rng())
    with pytest.raises(ValueError, match="no whole number of substeps"):
        disturbances.rate(replace(TASK, control_freq=50))
    faster = disturbances.rate(TASK)
    assert (faster.control_freq, faster.horizon) == (25, 1.25 * TASK.horizon)
    with pytest.raises(ValueError, match="under=fog: choose from camera, light"):
        check_disturbances(["fog"], TASK)
    with pytest.raises(ValueError, match="under=light: task lift observes no camera"):
        check_disturbances(["light"], TASK)
    with pytest.raises(ValueError, match="under=mass: it is there twice"):
        check_disturbances(["mass", "mass"], TASK)
    check_disturbances(list(DISTURBANCES), replace(TASK, cameras=["agentview"]))


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=() if name == "mass" else pytest.mark.full) for name in DISTURBANCES]
)
def test_the_same_episode_is_disturbed_in_the_same_way(name: str) -> None:
    """Whatever was before it; other seeds and other initial states are disturbed in another way."""
    task = load_group("task", "lift_image", TaskConfig) if DISTURBANCES[name].seen else TASK
    task = replace(task, image_size=[24, 24])
    plain = RobosuiteEnv(task)
    starts = []
    for seed in (0, 1):
        plain.reset(seed=seed)
        starts.append(plain.get_state())
    plain.close()
    env, other = DisturbedEnv(task, name, 0), DisturbedEnv(task, name, 1)
    # A push is rare.
    steps = 300 if name == "push" else 40
    actions = rng().uniform(-1, 1, (steps, len(env.action_spec))).astype(np.float32)

    def episode(where: DisturbedEnv, start: np.ndarray) -> np.ndarray:
        """All that was observed, and the model."""
        obs, _ = where.reset(options={"state": start})
        given = [at(where._scene, field) for field in MODEL_FIELDS]
        for action in actions:
            given.extend(obs.values())
            obs, *_ = where.step(action)
        return np.concatenate([value.ravel().astype(float) for value in given])

    first = episode(env, starts[0])
    assert not np.array_equal(episode(env, starts[1]), first)
    np.testing.assert_array_equal(episode(env, starts[0]), first)
    if name not in ("delay", "rate", "render", "removed"):  # which draw no random numbers
        assert not np.array_equal(episode(other, starts[0]), first)
    env.close()
    other.close()


def test_a_removed_object_is_observed_where_it_is_from_the_first_step_on() -> None:
    env = DisturbedEnv(TASK, "removed", 0)
    obs, _ = env.reset(seed=0)
    model, data = env._scene.model, env._scene.data
    cube = data.body(model.body("cube_main").id).xpos
    np.testing.assert_allclose(env.raw["cube_pos"], cube, atol=1e-12)
    assert cube[0] > 1
    at = list(env.observation_spec.state_keys).index("cube_pos")
    first = sum(env.observation_spec.state_dims[:at])
    np.testing.assert_allclose(obs["state"][first : first + 3], cube, rtol=1e-6)
    env.close()
