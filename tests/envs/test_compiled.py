"""The compiled control loop gives the same results as robosuite's own from the same state and actions."""

import contextlib
import io
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import mujoco
import numpy as np
import pytest
import robosuite
from robosuite.controllers import load_part_controller_config
from robosuite.controllers.composite.composite_controller_factory import refactor_composite_controller_config
from robosuite.environments.base import MujocoEnv
from robosuite.utils.buffers import DeltaBuffer

from robot_rl.envs.compiled import NotCompilable, compile_control
from robot_rl.envs.compiled.arm import Arm

TOLERANCE = 1e-9
ROBOTS = ("Sawyer", "UR5e", "IIWA", "Kinova3")


def make(task: str = "Lift", robots: object = "Panda", seed: int = 0, **options: object) -> MujocoEnv:
    if task.startswith("TwoArm") and isinstance(robots, str):
        robots = [robots] * 2
    defaults = {"reward_shaping": True, "ignore_done": True, "hard_reset": False, "seed": seed}
    np.random.seed(seed)
    with contextlib.redirect_stdout(io.StringIO()):
        env = robosuite.make(
            task,
            robots=robots,
            **defaults | options,
            has_renderer=False,
            has_offscreen_renderer=False,
            use_camera_obs=False,
        )
    env.reset()
    return env


def pair(task: str = "Lift", robots: object = "Panda", **options: object) -> tuple[MujocoEnv, MujocoEnv]:
    stock, ours = make(task, robots, **options), make(task, robots, **options)
    assert np.array_equal(stock.sim.data.qpos, ours.sim.data.qpos)
    compile_control(ours)
    return stock, ours


def actions(env: MujocoEnv, steps: int, seed: int = 0) -> np.ndarray:
    low, high = env.action_spec
    return np.random.default_rng(seed).uniform(low, high, (steps, env.action_dim))


def assert_close(stock: object, ours: object, where: str) -> None:
    a, b = np.asarray(stock, dtype=float), np.asarray(ours, dtype=float)
    assert a.shape == b.shape, where
    assert np.allclose(a, b, rtol=0, atol=TOLERANCE), f"{where}: {np.abs(a - b).max():.1e}"


def assert_parity(stock: MujocoEnv, ours: MujocoEnv, commands: np.ndarray) -> None:
    for i, command in enumerate(commands):
        expected, got = stock.step(command), ours.step(command)
        assert list(expected[0]) == list(got[0])
        for name, value in expected[0].items():
            assert_close(value, got[0][name], f"step {i}, {name}")
        assert_close(expected[1], got[1], f"step {i}, reward")
        assert expected[2] == got[2]
        assert stock._check_success() == ours._check_success()
        assert_close(stock.sim.data.qpos, ours.sim.data.qpos, f"step {i}, qpos")
        assert_close(stock.sim.data.qvel, ours.sim.data.qvel, f"step {i}, qvel")


@pytest.mark.parametrize(
    "task",
    [
        task if task == "Lift" else pytest.param(task, marks=pytest.mark.full)
        for task in sorted(robosuite.ALL_ENVIRONMENTS)
    ],
)
def test_parity(task: str) -> None:
    stock, ours = pair(task)
    assert_parity(stock, ours, actions(ours, 200))


def test_bits_are_kept_through_mesh_contacts() -> None:
    stock, ours = pair("Lift")
    down = 0.4 * actions(ours, 60)
    down[:, 2], down[:, 6] = -1.0, 1.0
    touched = 0
    for command in down:
        stock.step(command)
        ours.step(command)
        touched = max(touched, ours.sim.data.ncon)
        assert np.array_equal(stock.sim.data.qpos, ours.sim.data.qpos)
    assert touched > 4  # more than the cube's own contact with the table


@pytest.mark.full
@pytest.mark.parametrize("robot", ROBOTS)
def test_parity_of_every_robot(robot: str) -> None:
    stock, ours = pair("Lift", robot)
    assert_parity(stock, ours, actions(ours, 200))


@pytest.mark.full
def test_parity_of_one_robot_with_two_arms() -> None:
    stock, ours = pair("TwoArmLift", ["Baxter"], env_configuration="single-robot")
    assert_parity(stock, ours, actions(ours, 100))


CONTROLLERS = [
    pytest.param("OSC_POSITION", {}, marks=pytest.mark.full),
    ("OSC_POSE", {"input_ref_frame": "world"}),
    ("OSC_POSE", {"input_type": "absolute"}),
    ("OSC_POSE", {"uncouple_pos_ori": False, "kp": 80, "damping_ratio": 0.7}),
    ("OSC_POSITION", {"input_type": "absolute", "input_ref_frame": "world"}),
    pytest.param("JOINT_POSITION", {}, marks=pytest.mark.full),
    ("JOINT_POSITION", {"input_type": "absolute"}),
    ("JOINT_TORQUE", {"output_max": 5.0, "output_min": -5.0}),
    ("OSC_POSE", {"impedance_mode": "variable", "damping_ratio_limits": [0.5, 2], "kp_limits": [50, 300]}),
    ("OSC_POSITION", {"impedance_mode": "variable_kp", "kp_limits": [50, 300]}),
    ("JOINT_POSITION", {"impedance_mode": "variable", "damping_ratio_limits": [0.5, 2]}),
]


def controller(kind: str, **options: object) -> dict:
    part = load_part_controller_config(default_controller=kind) | options
    return refactor_composite_controller_config(part, "Panda", ["right"])


@pytest.mark.parametrize(("kind", "options"), CONTROLLERS)
def test_controllers(kind: str, options: dict) -> None:
    stock, ours = pair(controller_configs=controller(kind, **options))
    assert_parity(stock, ours, actions(ours, 25))


def test_goals_from_the_last_goal() -> None:
    stock, ours = pair()
    for env in (stock, ours):
        env.robots[0].part_controllers["right"].set_goal_update_mode("desired")
    assert_parity(stock, ours, actions(ours, 20))


def test_gains_may_change_between_steps() -> None:
    stock, ours = pair()
    for kp in (150.0, 60.0):
        for env in (stock, ours):
            env.robots[0].part_controllers["right"].kp = np.full(6, kp)
        assert_parity(stock, ours, actions(ours, 5))


GRIPPER_STATE = ("goal_qvel", "vels")
ARM_STATE = (
    *(
        "goal_pos",
        "goal_ori",
        "ref_pos",
        "ref_ori_mat",
        "ref_pos_vel",
        "ref_ori_vel",
        "J_full",
        "J_pos",
        "J_ori",
    ),
    *("joint_pos", "joint_vel", "mass_matrix", "torques", "origin_pos", "origin_ori", "new_update"),
)


def test_what_robosuite_remembers_is_the_same() -> None:
    stock, ours = pair("TwoArmLift")
    assert_parity(stock, ours, actions(ours, 15))
    assert (stock.timestep, stock.cur_time, stock.done) == (ours.timestep, ours.cur_time, ours.done)
    for robot, other in zip(stock.robots, ours.robots, strict=True):
        for name, part in robot.part_controllers.items():
            attributes = GRIPPER_STATE if "gripper" in name else ARM_STATE
            for attribute in attributes:
                mine = other.part_controllers[name]
                assert_close(getattr(part, attribute), getattr(mine, attribute), f"{name}.{attribute}")
        for arm in robot.arms:
            grippers = robot.gripper[arm], other.gripper[arm]
            assert_close(*(gripper.current_action for gripper in grippers), "current_action")
            for buffer in ("forcetorques", "pose", "vel", "acc"):
                a, b = (getattr(r, f"recent_ee_{buffer}")[arm] for r in (robot, other))
                assert_same_buffer(a, b, f"recent_ee_{buffer}")
            rings = robot.recent_ee_vel_buffer[arm], other.recent_ee_vel_buffer[arm]
            assert_close(rings[0].buf, rings[1].buf, "recent_ee_vel_buffer")
            assert (rings[0].ptr, rings[0]._size) == (rings[1].ptr, rings[1]._size)
        for buffer in ("recent_qpos", "recent_actions"):
            assert_same_buffer(getattr(robot, buffer), getattr(other, buffer), buffer)
    for name, observable in stock._observables.items():
        mine = ours._observables[name]
        assert observable._time_since_last_sample == mine._time_since_last_sample
        assert observable._sampled == mine._sampled
    assert stock._obs_cache.keys() == ours._obs_cache.keys()


def assert_same_buffer(stock: DeltaBuffer, ours: DeltaBuffer, name: str) -> None:
    assert_close(stock.current, ours.current, name)
    assert_close(stock.last, ours.last, name)


@pytest.mark.parametrize("hard", [False, True])
def test_resets(hard: bool) -> None:
    stock, ours = pair(hard_reset=hard, horizon=6, ignore_done=False)
    for seed in (1, 2):
        assert_parity(stock, ours, actions(ours, 6, seed))
        assert stock.done
        for env in (stock, ours):
            with pytest.raises(ValueError, match="terminated episode"):
                env.step(np.zeros(env.action_dim))
        first, second = stock.reset(), ours.reset()
        for name in first:
            assert_close(first[name], second[name], name)
        assert_close(stock.reward(None), ours.reward(None), "reward before a step")


def test_observables_with_other_rates_delays_and_noise() -> None:
    stock, ours = pair()
    for env in (stock, ours):
        env.modify_observable("robot0_eef_pos", "sampling_rate", 130)
        env.modify_observable("robot0_joint_vel", "sampling_rate", 7)
        env.modify_observable("cube_pos", "delayer", lambda: 0.013)
        env.modify_observable("robot0_gripper_qpos", "corrupter", lambda value: value + 1.0)
    assert_parity(stock, ours, actions(ours, 30))


def test_only_what_is_asked_for() -> None:
    stock, ours = make(), make()
    control = compile_control(ours)
    control.observe_only(["robot0_eef_pos", "gripper_to_cube_pos"])
    assert ours.enabled_observables == {"robot0_eef_pos", "cube_pos", "gripper_to_cube_pos"}
    for command in actions(ours, 10):
        expected, got = stock.step(command)[0], ours.step(command)[0]
        assert {"robot0_eef_pos", "gripper_to_cube_pos"} <= got.keys()
        assert "cube_pos" not in got
        for name in ("robot0_eef_pos", "gripper_to_cube_pos"):
            assert_close(expected[name], got[name], name)
    with pytest.raises(ValueError, match="no observable 'cube_poss'"):
        control.observe_only(["cube_poss"])


def test_dependencies_that_go_through_the_cache() -> None:
    """PickPlace's relative quaternion is left in the cache by another sensor."""
    stock, ours = make("PickPlaceCan"), make("PickPlaceCan")
    compile_control(ours).observe_only(["Can_to_robot0_eef_quat"])
    for command in actions(ours, 5):
        expected, got = stock.step(command)[0], ours.step(command)[0]
        assert_close(expected["Can_to_robot0_eef_quat"], got["Can_to_robot0_eef_quat"], "quat")


def test_bad_actions_move_nothing() -> None:
    env = make()
    compile_control(env)
    env.step(np.zeros(7))
    before = env.sim.get_state().flatten()
    for action, message in (
        (np.zeros(6), "shape"),
        (np.zeros((1, 7)), "shape"),
        (np.full(7, np.nan), "not finite"),
        (np.full(7, np.inf), "not finite"),
    ):
        with pytest.raises(ValueError, match=message):
            env.step(action)
        assert np.array_equal(before, env.sim.get_state().flatten())
        assert env.timestep == 1


def rollout(env: MujocoEnv) -> np.ndarray:
    return np.array([env.step(command)[0]["robot0_joint_pos"] for command in actions(env, 40)])


def test_threads_change_nothing() -> None:
    alone = make()
    compile_control(alone)
    expected = rollout(alone)
    together = [make() for _ in range(3)]
    for env in together:
        compile_control(env)
    with ThreadPoolExecutor(3) as pool:
        for got in pool.map(rollout, together):
            assert np.array_equal(expected, got)


def test_detach() -> None:
    stock, ours = make(), make()
    compile_control(ours).detach()
    assert ours.step.__func__ is MujocoEnv.step
    assert ours.check_contact.__func__ is MujocoEnv.check_contact
    assert_parity(stock, ours, actions(ours, 3))


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"lite_physics": False}, "lite_physics"),
        ({"controller_configs": controller("OSC_POSE", interpolation="linear")}, "interpolates"),
    ],
)
def test_not_compilable(options: dict, reason: str) -> None:
    env = make(**options)
    with pytest.raises(NotCompilable, match=reason):
        compile_control(env)
    env.step(np.zeros(env.action_dim))


def test_a_model_with_plugins_is_refused() -> None:
    model = mujoco.MjModel.from_xml_string(
        "<mujoco><extension><plugin plugin='mujoco.pid'><instance name='pid'/></plugin></extension>"
        "<worldbody><body><joint name='j'/><geom size='.1'/></body></worldbody>"
        "<actuator><plugin plugin='mujoco.pid' instance='pid' joint='j'/></actuator></mujoco>"
    )
    env = make()
    compile_control(env).detach()
    env.sim.model._model = model
    with pytest.raises(NotCompilable, match="the model has plugins"):
        compile_control(env)


def test_a_callback_is_refused() -> None:
    env = make()
    mujoco.set_mjcb_control(lambda model, data: None)
    try:
        with pytest.raises(NotCompilable, match="callback"):
            compile_control(env)
    finally:
        mujoco.set_mjcb_control(None)
    env.step(np.zeros(env.action_dim))


def test_torques_that_are_not_robosuites_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    env = make()
    right = Arm.reference_torques
    monkeypatch.setattr(Arm, "reference_torques", lambda arm: right(arm) * (1 + 1e-14))
    with pytest.raises(NotCompilable, match="rounds differently"):
        compile_control(env)
    assert not {"step", "check_contact"} & vars(env).keys()
    monkeypatch.setattr(Arm, "reference_torques", lambda arm: right(arm) + 0.1)
    with pytest.raises(NotCompilable, match="not robosuite's torques"):
        compile_control(make())


def test_another_mujoco_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    env = make()
    monkeypatch.setattr(mujoco, "__version__", "3.10.0")
    with pytest.raises(NotCompilable, match=r"3\.10\.0"):
        compile_control(env)


def test_compiled_code_comes_from_the_disk() -> None:
    """A second process loads the loop that this one compiled."""
    compile_control(make())
    script = (
        "from tests.envs.test_compiled import make\n"
        "from robot_rl.envs.compiled import arithmetic, compile_control, worker_pool\n"
        "from robot_rl.envs.compiled.lapack import verify\n"
        "env = make()\n"
        "compile_control(env)\n"
        "before = len(arithmetic.move.signatures), len(arithmetic.scale.signatures)\n"
        "env.step(env.action_spec[0])\n"
        "assert before == (len(arithmetic.move.signatures), len(arithmetic.scale.signatures)) == (1, 1)\n"
        "for function in (worker_pool.work, verify.same_on, arithmetic.move, arithmetic.grip):\n"
        "    assert function.stats.cache_hits and not function.stats.cache_misses, function\n"
    )
    root = Path(__file__).parents[2]
    done = subprocess.run(
        [sys.executable, "-c", script], cwd=root, capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr
    assert "compiling" not in done.stderr
