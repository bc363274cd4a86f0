"""A robot behind its server as an environment: a simulated task over real sockets, in real time."""

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
import yaml
from scipy.spatial.transform import Rotation

from robot_rl.envs.action import ActionDim, ActionSpec, spec_from_list
from robot_rl.envs.observation import ObservationSpec
from robot_rl.envs.real_arm import RealArmEnv
from robot_rl.envs.robosuite_env import RobosuiteEnv
from robot_rl.envs.robot_action import RobotAction, moved_by
from robot_rl.envs.robot_state import HAND_AT_HOME, RobotState
from robot_rl.envs.task import TaskConfig
from robot_rl.envs.task_driver import TaskDriver
from robot_rl.hardware.client import RobotClient
from robot_rl.hardware.clock import MonotonicClock
from robot_rl.hardware.connection import RequestRefused, RobotError
from robot_rl.hardware.core.core import CoreSettings
from robot_rl.hardware.protocol.clock_sync import boot_id
from robot_rl.hardware.protocol.endpoints import parse
from robot_rl.hardware.protocol.messages import Mode, State
from robot_rl.hardware.server import RobotServer
from robot_rl.hardware.spec import RobotSpec
from tests.hardware.unhurried import extend_leases

PATIENCE = 30.0
"""s; for what takes milliseconds on an idle machine."""
STILL = np.array([0, 0, 0, 0, 0, 0, -1], np.float32)


def lift() -> TaskConfig:
    with open("configs/task/lift.yaml") as file:
        return TaskConfig(**yaml.safe_load(file))


@pytest.fixture(autouse=True)
def unhurried(monkeypatch: pytest.MonkeyPatch) -> None:
    """No lease is lost and no command is too late, however busy the machine is."""
    extend_leases(monkeypatch.setattr)


class Bridge:
    """A server in a thread."""

    def __init__(self, scene: TaskDriver, directory: Path) -> None:
        self.address = f"ipc://{directory}"
        self._scene = scene
        self._made = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self._thread.start()
        assert self._made.wait(PATIENCE)
        assert self._thread.is_alive()

    def _run(self) -> None:
        settings = CoreSettings(lease_ms=1000, boot_id=boot_id())
        try:
            self._server = RobotServer(self._scene, parse(self.address), settings)
        finally:
            self._made.set()
        self._server.run()

    def client(self, role: str = "policy") -> RobotClient:
        return RobotClient(self.address, role, role, timeout=PATIENCE)  # type: ignore[arg-type]

    def close(self) -> None:
        self._server.close_soon()
        self._thread.join(PATIENCE)
        assert not self._thread.is_alive()


@pytest.fixture(scope="module")
def plain() -> RobosuiteEnv:
    return RobosuiteEnv(lift())


@pytest.fixture(scope="module")
def scene() -> TaskDriver:
    return TaskDriver(lift(), MonotonicClock())


@pytest.fixture
def bridge(scene: TaskDriver, tmp_path: Path) -> Iterator[Bridge]:
    bridge = Bridge(scene, tmp_path / "robot")
    yield bridge
    bridge.close()


@pytest.fixture
def client(bridge: Bridge) -> Iterator[RobotClient]:
    with bridge.client() as client:
        yield client


@contextmanager
def limited(
    scene: TaskDriver, directory: Path, monkeypatch: pytest.MonkeyPatch, **changed: Any
) -> Iterator[RobotClient]:
    """A client of the scene with other limits."""
    limits = msgspec.structs.replace(scene.spec.limits, **changed)
    monkeypatch.setattr(scene, "_spec", msgspec.structs.replace(scene.spec, limits=limits))
    bridge = Bridge(scene, directory / "robot")
    try:
        with bridge.client() as client:
            yield client
    finally:
        bridge.close()


def make(client: RobotClient, plain: RobosuiteEnv, **changed: Any) -> RealArmEnv:
    environment = {**plain.describe(), **changed}

    def prepare(number: int) -> None:
        client.reset_scene(number)

    return RealArmEnv(client, environment, prepare=prepare, max_age_ms=PATIENCE * 1e3)


@pytest.fixture
def env(client: RobotClient, plain: RobosuiteEnv) -> RealArmEnv:
    return make(client, plain, horizon=1000)


class Picker:
    """Lifts the cube by what is observed alone."""

    def __init__(self) -> None:
        self._closing = 0

    def act(self, state: np.ndarray) -> np.ndarray:
        to_cube = state[-3:]
        aside = float(np.linalg.norm(to_cube[:2]))
        action = np.zeros(7, np.float32)
        if self._closing or (aside < 0.01 and abs(to_cube[2]) < 0.01):
            self._closing += 1
            action[2], action[6] = (1.0 if self._closing > 20 else 0.0), 1.0
            return action
        down = to_cube[2] if aside < 0.02 else max(to_cube[2], -0.1) + 0.08
        action[:3] = np.clip(np.array([*to_cube[:2], down]) / 0.05, -1, 1)
        action[6] = -1.0
        return action


def test_a_controller_that_sees_observations_alone_lifts_the_cube_over_the_bridge(
    env: RealArmEnv, client: RobotClient
) -> None:
    obs, info = env.reset(seed=4)
    assert not info["success"]
    picker, steps = Picker(), 0
    while True:
        action = picker.act(obs["state"])
        obs, reward, terminated, truncated, info = env.step(action)
        steps += 1
        assert (info["interrupted"], info["refused"]) == ("", "")
        assert np.array_equal(info["applied_action"], action) or info["clipped"]
        assert info["ages_ms"].keys() == {"state", "gripper"}
        assert info["ages_ms"]["state"] >= 0
        if terminated or truncated:
            break
    assert (terminated, info["success"], reward) == (True, True, 1.0)
    assert steps > 20
    # Nobody holds the lease between episodes, so nothing is lost while a learner thinks.
    assert client.sample().mode == "armed"
    with pytest.raises(ValueError, match="reset"):
        env.step(STILL)
    env.close()
    assert client.sample().mode == "idle"


def test_the_observation_is_the_one_of_the_simulation(env: RealArmEnv, plain: RobosuiteEnv) -> None:
    for seed in (5, 6):
        obs, _ = env.reset(seed=seed)
        expected, _ = plain.reset(seed=seed)
        assert obs["state"].dtype == np.float32
        assert env.observation_space.contains(obs)
        # The arm has been held for a moment, and the cube has settled.
        assert np.allclose(obs["state"], expected["state"], atol=5e-3)
    env.close()


def test_an_episode_ends_at_its_horizon(client: RobotClient, scene: TaskDriver, plain: RobosuiteEnv) -> None:
    env = make(client, plain, horizon=3)
    env.reset(seed=0)
    ends = [env.step(STILL)[2:4] for _ in range(3)]
    assert ends == [(False, False), (False, False), (False, True)]
    assert env.describe()["real_robot"] == {"name": "lift", "spec_sha256": scene.spec.sha256}
    env.close()


def test_who_acts_slowly_delays_the_observation_and_is_told_so(env: RealArmEnv) -> None:
    env.reset(seed=0)
    begun = time.monotonic()
    env.step(STILL)
    assert time.monotonic() - begun >= 0.045
    time.sleep(0.2)
    begun = time.monotonic()
    *_, info = env.step(STILL)
    assert info["late_ms"] > 90
    # A new rhythm begins there, whatever else held up this process meanwhile.
    env.step(STILL)
    assert time.monotonic() - begun >= 0.045
    env.close()


def test_an_arm_at_rest_is_not_moved_by_an_old_observation(env: RealArmEnv, client: RobotClient) -> None:
    env.reset(seed=0)
    before = client.sample().position
    time.sleep(1.2)
    with pytest.raises(RobotError, match=r"\d s after its observation, .* the arm was not moved"):
        env.step(np.array([1.0, 0, 0, 0, 0, 0, 0], np.float32))
    assert np.allclose(client.sample().position, before, atol=1e-4)
    env.reset(seed=0)
    env.step(STILL)
    env.close()


def test_a_person_who_takes_the_arm_ends_the_episode(env: RealArmEnv, bridge: Bridge) -> None:
    env.reset(seed=0)
    assert not env.step(STILL)[3]
    with bridge.client("operator") as operator:
        operator.acquire("human", preempt=True)
        obs, reward, terminated, truncated, info = env.step(STILL)
        assert (terminated, truncated, reward) == (False, True, 0.0)
        assert info["refused"] == "no_lease"
        assert "no_lease" in info["interrupted"]
        assert np.array_equal(info["applied_action"], np.zeros(7))
        assert env.observation_space.contains(obs)
        operator.release()
    env.reset(seed=0)
    assert not env.step(STILL)[4]["interrupted"]
    env.close()


def test_a_fault_ends_the_episode_and_stays_until_a_person_has_looked(
    env: RealArmEnv, client: RobotClient, bridge: Bridge
) -> None:
    env.reset(seed=0)
    env.step(STILL)
    client.stop("a hand in the way")
    info = env.step(STILL)[4]
    assert "fault" in info["interrupted"]
    with pytest.raises(RequestRefused, match="operator"):
        env.reset(seed=0)
    with bridge.client("operator") as operator:
        operator.acknowledge("the hand is gone")
    env.reset(seed=0)
    assert not env.step(STILL)[4]["interrupted"]
    env.close()


def test_what_a_limit_leaves_of_an_action_is_what_was_applied(
    scene: TaskDriver, plain: RobosuiteEnv, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    floor = float(scene.kinematics.forward(np.array(scene.spec.home)).position[2] - 0.04)
    with limited(scene, tmp_path, monkeypatch, workspace_lower=(-0.6, -1.0, floor)) as client:
        env = make(client, plain)
        env.reset(seed=0)
        down = np.array([0.2, 0, -1, 0, 0, 0, -1], np.float32)
        for _ in range(60):
            *_, info = env.step(down)
            if info["clipped"]:
                break
        assert info["clipped"] == ("workspace_lower",)
        assert info["applied_action"][0] == pytest.approx(0.2, abs=1e-3)
        assert -1.0 < info["applied_action"][2] < 0.9
        env.close()


def test_an_episode_may_begin_with_a_long_action_though_a_first_command_has_to_be_short(
    scene: TaskDriver, plain: RobosuiteEnv, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with limited(scene, tmp_path, monkeypatch, first_linear=0.01, first_angular=0.05) as client:
        env = make(client, plain)
        for number in range(2):
            env.reset(seed=number)
            *_, info = env.step(np.array([1, 0, 0, 0, 0, 0, -1], np.float32))
            assert (info["refused"], info["clipped"]) == ("", ())
        env.close()


def test_actions_are_checked_before_anything_moves(env: RealArmEnv) -> None:
    env.reset(seed=0)
    for action, message in ((np.zeros(6), "shape"), (np.full(7, np.nan), "not finite")):
        with pytest.raises(ValueError, match=message):
            env.step(action)
    env.close()


# ---- what a robot must have ----------------------------------------------------------------------


def observed(**sizes: int) -> ObservationSpec:
    return ObservationSpec(tuple(sizes), tuple(sizes.values()))


@pytest.mark.parametrize(
    ("changed", "sizes", "message"),
    [
        ({}, {"kettle_pos": 3}, "does not measure 'kettle_pos'"),
        ({}, {"cube_pos": 2}, "has 3 numbers, not 2"),
        ({"calibration": {}}, {"robot0_eef_quat": 4}, HAND_AT_HOME),
        ({"gripper": None, "sensors": {}}, {"robot0_gripper_qpos": 2}, "no gripper"),
    ],
)
def test_a_robot_that_does_not_measure_what_is_observed_is_refused(
    scene: TaskDriver, changed: dict, sizes: dict[str, int], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        RobotState(msgspec.structs.replace(scene.spec, **changed), observed(**sizes))


def test_the_fingers_follow_from_the_opening_where_no_sensor_has_them(
    bridge: Bridge, scene: TaskDriver
) -> None:
    spec = msgspec.structs.replace(scene.spec, sensors={})
    senses = RobotState(spec, observed(robot0_gripper_qpos=2, robot0_joint_pos=7))
    with bridge.client() as client:
        while (state := client.state(PATIENCE)).gripper is None:
            pass
    raw = senses.raw(state)
    assert np.allclose(raw["robot0_gripper_qpos"], state.sensors["robot0_gripper_qpos"], atol=1e-3)
    assert np.array_equal(raw["robot0_joint_pos"], state.q)
    with pytest.raises(RobotError, match="has not been read"):
        senses.raw(msgspec.structs.replace(state, gripper=None))


def actions(plain: RobosuiteEnv) -> ActionSpec:
    return spec_from_list([asdict(dim) for dim in plain.action_spec])


STATE = State(
    src="server",
    seq=1,
    tm=1,
    t_sample=0,
    q=(0.0,) * 7,
    dq=(0.0,) * 7,
    position=(0.5, 0.1, 0.3),
    quaternion=(1, 0, 0, 0),
    mode=Mode.IDLE,
)


def test_an_action_may_be_a_pose_in_the_base_frame(scene: TaskDriver) -> None:
    posing = RobosuiteEnv(replace(lift(), input_type="absolute"))
    moves = RobotAction(scene.spec, actions(posing), "cartesian_pose")
    assert moves.absolute
    assert posing.poses
    # A tenth of a full delta up, turned by 0.05 rad about z, from where the arm is.
    there = moved_by(STATE, [0, 0, 0.005, 0, 0, 0.05])
    turn = Rotation.from_quat(there[3:]).as_rotvec()
    action = posing.poses.of_commands(np.array([*there[:3], *turn, 1.0]))
    posing.close()
    move, opening = moves.command(action, STATE)
    assert move == pytest.approx([0, 0, 0.005, 0, 0, 0.05], abs=1e-6)
    assert opening == 0.0
    assert np.allclose(moves.applied(np.zeros_like(action), move, STATE)[:9], action[:9], atol=1e-6)
    # Axes that span no plane leave the rotation.
    move, _ = moves.command(np.array([*action[:3], 0, 0, 0, 0, 0, 0, 1], np.float32), STATE)
    assert move == pytest.approx([0, 0, 0.005, 0, 0, 0], abs=1e-6)


def test_an_action_is_a_move_in_the_base_frame_and_an_opening(scene: TaskDriver, plain: RobosuiteEnv) -> None:
    state = STATE
    moves = RobotAction(scene.spec, actions(plain))
    action = np.array([1, -0.5, 0, 0, 0, 0.5, 1], np.float32)
    move, opening = moves.command(action, state)
    assert move == pytest.approx([0.05, -0.025, 0, 0, 0, 0.25])
    assert opening == 0.0
    assert moves.command(-action, state)[1] == 1.0
    assert moves.command(np.zeros(7, np.float32), state)[1] is None
    assert np.allclose(moves.applied(action, move, state), action)
    assert np.allclose(moves.applied(action, [0.02, 0, 0, 0, 0, 0], state), [0.4, 0, 0, 0, 0, 0, 1])


def world(dim: ActionDim) -> ActionDim:
    return replace(dim, frame="world")


@pytest.mark.parametrize("kind", ["frame", "arms", "mode", "gripper"])
def test_actions_that_a_robot_does_not_take_are_refused(
    scene: TaskDriver, plain: RobosuiteEnv, kind: str
) -> None:
    robot: RobotSpec = scene.spec
    given = actions(plain)
    message = {
        "frame": "'world'",
        "arms": "more than one",
        "mode": "not cartesian_delta",
        "gripper": "no gripper",
    }
    if kind == "frame":
        given = (world(given[0]), *given[1:])
    elif kind == "arms":
        given = (*given, *given)
    elif kind == "mode":
        robot = msgspec.structs.replace(robot, modes=("cartesian_pose",))
    else:
        robot = msgspec.structs.replace(robot, gripper=None)
    with pytest.raises(ValueError, match=message[kind]):
        RobotAction(robot, given)


@pytest.mark.parametrize("role", ["policy", "operator"])
def test_an_arm_that_another_client_has_taken_is_left_to_it(
    role: str, plain: RobosuiteEnv, bridge: Bridge
) -> None:
    with (
        bridge.client(role) as client,
        RobotClient(bridge.address, "person", "operator", timeout=PATIENCE) as person,
    ):
        env = make(client, plain)
        env.reset(seed=0)
        env.step(STILL)
        client.release()
        with person.lease("human"):
            person.command("cartesian_delta", [0.0] * 6)
            env.close()
            with pytest.raises(RequestRefused, match="person has taken the arm"):
                env.reset(seed=1)
            newest = person.sample()
            assert (newest.mode, newest.lease_holder) == (Mode.HUMAN, "person")
        env.close()
        assert person.sample().mode is Mode.IDLE


def test_an_interrupted_step_is_no_success(plain: RobosuiteEnv, client: RobotClient, bridge: Bridge) -> None:
    env = RealArmEnv(
        client, plain.describe(), prepare=client.reset_scene, judge=lambda *_: True, max_age_ms=PATIENCE * 1e3
    )
    env.reset(seed=0)
    with bridge.client("operator") as operator:
        operator.acquire("human", preempt=True)
        _, reward, terminated, truncated, info = env.step(STILL)
        assert (terminated, truncated, reward, info["success"]) == (False, True, 0.0, False)
        operator.release()
    env.close()


def test_a_person_takes_over_from_a_moving_arm(
    scene: TaskDriver, plain: RobosuiteEnv, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The arm is behind its goal by more than a first command may be away: it brakes, then it follows."""
    with limited(scene, tmp_path, monkeypatch, first_linear=0.005, first_angular=0.05) as client:
        env = make(client, plain, horizon=1000)
        env.reset(seed=0)
        for _ in range(5):
            env.step(np.array([0, 1, 0, 0, 0, 0, -1], np.float32))
        env.commander = "human"
        refused = [
            env.step(np.array([0, -0.25, 0, 0, 0, 0, -1], np.float32))[4]["refused"] for _ in range(15)
        ]
        assert refused[0] == "jump"
        assert refused[-1] == ""
        env.close()
