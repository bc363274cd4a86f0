"""A task behind the driver interface: robosuite's trajectory, the clock's time, and no uncommanded motion."""

import threading
import time
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
import yaml
from robosuite.utils import transform_utils as T
from scipy.spatial.transform import Rotation

from robot_rl.envs.experts import make_expert
from robot_rl.envs.robosuite_env import RobosuiteEnv
from robot_rl.envs.robot_state import BASE, HAND, HAND_AT_HOME
from robot_rl.envs.task import TaskConfig
from robot_rl.envs.task_driver import TaskDriver
from robot_rl.hardware.clock import MS, MonotonicClock, SteppedClock
from robot_rl.hardware.core.cartesian_motion import CartesianLimiter
from robot_rl.hardware.core.core import CoreSettings, RobotCore
from robot_rl.hardware.core.lease import Peer
from robot_rl.hardware.drivers.driver import DriverError, Measurement, Pose
from robot_rl.hardware.protocol import messages as m
from tests.envs.stepped_bridge import Fingers

PERIOD = 10 * MS
TICKS = 5
"""Of the server in a control step of the task."""
SIDEWAYS = np.array([0.0, 0.05, 0.0])


def task(name: str) -> TaskConfig:
    with open(f"configs/task/{name}.yaml") as file:
        return TaskConfig(**yaml.safe_load(file))


class Scene:
    """A driver on a stepped clock, and the plain environment in the same state."""

    def __init__(self, name: str) -> None:
        self.env = RobosuiteEnv(task(name))
        self.env.reset(seed=3)
        # In the first step after a reset robosuite goes by what it sensed when the controller was made.
        self.env.step(np.zeros(7, np.float32))
        self.state = self.env.get_state()
        self.clock = SteppedClock()
        self.driver = TaskDriver(task(name), self.clock, starts=self.state[None])
        self.driver.open()

    def begin(self) -> Measurement:
        """Both at the same state, the arm enabled."""
        self.driver.stop()
        self.driver.reset(0)
        self.env.reset(options={"state": self.state})
        self.driver.enable()
        return self.driver.read()

    def tick(self, ticks: int = 1) -> Measurement:
        for _ in range(ticks):
            self.clock.advance(PERIOD)
            measured = self.driver.read()
        return measured

    def difference(self) -> float:
        """Largest, in positions and velocities of all joints."""
        mine, theirs = self.driver.env.sim.sim.data, self.env.sim.sim.data
        return float(max(np.abs(mine.qpos - theirs.qpos).max(), np.abs(mine.qvel - theirs.qvel).max()))


@pytest.fixture(scope="module", params=["lift", "door"])
def scene(request: pytest.FixtureRequest) -> Scene:
    return Scene(request.param)


@pytest.fixture(scope="module")
def lift() -> Scene:
    return Scene("lift")


def actions(steps: int) -> np.ndarray:
    """Down to the table and up again, the hand opening and closing."""
    rng = np.random.default_rng(0)
    out = rng.uniform(-1, 1, (steps, 7)).astype(np.float32)
    out[:, :2] *= 0.4
    out[:, 2] = np.where(np.arange(steps) < 0.6 * steps, -1, 1)
    return out


def wanted(action: np.ndarray, pose: Pose) -> Pose:
    """The goal that robosuite's controller makes of an action."""
    move = action[:6].astype(float) * [0.05, 0.05, 0.05, 0.5, 0.5, 0.5]
    turned = Rotation.from_rotvec(move[3:]) * Rotation.from_quat(pose.quaternion)
    return Pose(pose.position + move[:3], turned.as_quat())


def opening(action: np.ndarray) -> float:
    return 0.0 if action[6] > 0 else 1.0


@pytest.mark.parametrize(("turn", "bound"), [(0.0, 1e-9), (1.0, 1e-6)])
def test_goals_of_the_same_actions_give_the_trajectory_of_the_environment(
    scene: Scene, turn: float, bound: float
) -> None:
    """Not to the bit: an orientation goes through a quaternion, and robosuite turns in single precision."""
    measured = scene.begin()
    worst, went = 0.0, 0.0
    for action in actions(30) * np.array([1, 1, 1, turn, turn, turn, 1], np.float32):
        start = measured.pose.position
        scene.driver.write(wanted(action, measured.pose))
        scene.driver.gripper.move(opening(action))
        scene.env.step(action)
        measured = scene.tick(TICKS)
        worst = max(worst, scene.difference())
        went = max(went, float(np.linalg.norm(measured.pose.position - start)))
    assert went > 0.01
    assert worst < bound


@pytest.mark.parametrize("piece", [1, 5, 25])
def test_the_loop_in_pieces_has_the_bits_of_a_step(lift: Scene, piece: int) -> None:
    lift.begin()
    env, other = lift.env, lift.driver.env
    env.set_state(lift.state)
    other.set_state(lift.state)
    assert other.control is not None
    contacts = 0
    for action in actions(60):
        env.step(action)
        move = action.astype(float)[:6] * [0.05, 0.05, 0.05, 0.5, 0.5, 0.5]
        other.control.advance(0)
        (arm,) = other.control.arms
        position, matrix = arm.pose()
        arm.set_pose_goal(position + move[:3], np.dot(T.quat2mat(T.axisangle2quat(move[3:])), matrix))
        other.control.grip(action.astype(float))
        for _ in range(25 // piece):
            other.control.advance(piece)
        assert lift.difference() == 0.0
        contacts = max(contacts, env.sim.sim.data.ncon)
    assert contacts > 4


def test_sensors_and_calibration_give_the_state_that_the_environment_observes(scene: Scene) -> None:
    measured = scene.begin()
    spec = scene.driver.spec
    base, hand = np.array(spec.calibration[BASE]), np.array(spec.calibration[HAND])
    in_world = Rotation.from_quat(base[3:])
    for action in actions(10):
        scene.driver.write(wanted(action, measured.pose))
        scene.driver.gripper.move(opening(action))
        scene.env.step(action)
        measured = scene.tick(TICKS)
        assert scene.env.control is not None
        scene.env.control.advance(0)
        observed = scene.env.sense()
        quaternion = (
            in_world * Rotation.from_quat(measured.pose.quaternion) * Rotation.from_quat(hand)
        ).as_quat()
        quaternion *= np.sign(quaternion @ spec.calibration[HAND_AT_HOME])
        got = {
            **measured.sensors,
            "robot0_eef_pos": base[:3] + in_world.apply(measured.pose.position),
            "robot0_eef_quat": quaternion,
        }
        assert {name: len(values) for name, values in measured.sensors.items()} == spec.sensors
        for key in scene.env.observation_spec.state_keys:
            assert np.allclose(got[key], observed[key], rtol=0, atol=1e-6), key
    assert measured.sensors["success"] == [0.0]
    left = scene.env.task.horizon / scene.env.task.control_freq - 0.5
    assert measured.sensors["time_left"] == pytest.approx([left])


def test_kinematics_is_of_the_point_and_in_the_frame_of_the_setpoints(lift: Scene) -> None:
    measured = lift.begin()
    lift.driver.write(wanted(actions(1)[0], measured.pose))
    measured = lift.tick(20)
    pose = lift.driver.kinematics.forward(measured.q)
    assert np.allclose(pose.position, measured.pose.position, atol=1e-9)
    assert abs(pose.quaternion @ measured.pose.quaternion) == pytest.approx(1.0)
    joints = lift.driver.kinematics.inverse(measured.pose, np.array(lift.driver.spec.home))
    assert joints is not None
    reached = lift.driver.kinematics.forward(joints)
    assert np.allclose(reached.position, measured.pose.position, atol=1e-4)


def test_a_stepped_clock_gives_the_same_bits_however_often_it_is_read(lift: Scene) -> None:
    ends = []
    for pattern in ([10] * 30, [20] * 15, [2] * 150, [7, 13] * 15):
        measured = lift.begin()
        goal = wanted(actions(1)[0], measured.pose)
        lift.driver.write(goal)
        lift.driver.gripper.move(0.0)
        for milliseconds in pattern:
            lift.clock.advance(milliseconds * MS)
            measured = lift.driver.read()
        data = lift.driver.env.sim.sim.data
        ends.append(np.concatenate([data.qpos, data.qvel, *measured.sensors.values()]))
        assert lift.driver.gripper.read() < 0.4
    assert all(np.array_equal(ends[0], end) for end in ends[1:])


def test_time_that_cannot_be_made_up_for_is_dropped(lift: Scene) -> None:
    measured = lift.begin()
    left, dropped = measured.sensors["time_left"][0], lift.driver.dropped_ns
    lift.clock.advance(1000 * MS)
    measured = lift.driver.read()
    assert measured.t == lift.clock.now()
    assert lift.driver.dropped_ns - dropped == 950 * MS
    assert left - measured.sensors["time_left"][0] == pytest.approx(0.05)


def test_it_lives_in_real_time() -> None:
    clock = MonotonicClock()
    driver = TaskDriver(task("lift"), clock)
    driver.open()
    driver.enable()
    first, dropped = driver.read(), driver.dropped_ns
    times = [first.t]
    while clock.now() - first.t < 300 * MS or len(times) < 4:
        measured = driver.read()
        assert measured.t <= clock.now()
        times.append(measured.t)
        time.sleep(0.01)
    assert all(later >= earlier for earlier, later in pairwise(times))
    passed = (measured.t - first.t - (driver.dropped_ns - dropped)) * 1e-9
    left = first.sensors["time_left"][0] - measured.sensors["time_left"][0]
    assert left == pytest.approx(passed, abs=0.1)


def test_nothing_moves_before_the_arm_is_enabled(lift: Scene) -> None:
    lift.driver.stop()
    lift.driver.reset(0)
    before = lift.driver.read()
    lift.driver.write(wanted(actions(1)[0], before.pose))
    after = lift.tick(20)
    assert after.t == lift.clock.now()
    assert np.array_equal(before.q, after.q)
    assert all(np.array_equal(before.sensors[name], after.sensors[name]) for name in before.sensors)


def test_a_gripper_moves_also_while_the_arm_is_not_enabled(lift: Scene) -> None:
    lift.driver.stop()
    lift.driver.reset(0)
    before = lift.driver.read()
    lift.driver.gripper.move(0.0)
    after = lift.tick(80)
    assert lift.driver.gripper.read() < 0.05
    assert np.linalg.norm(after.pose.position - before.pose.position) < 2e-3


def test_enabling_holds_the_arm_where_it_is(lift: Scene) -> None:
    start = lift.begin()
    end = lift.tick(100)
    # The null space is drawn to the rest pose, the tool point stays.
    assert np.linalg.norm(end.pose.position - start.pose.position) < 2e-3


def test_enabling_leaves_the_gripper_as_an_evaluation_finds_it(lift: Scene) -> None:
    """Without a goal the opening stays, as in an environment whose action is 0."""
    lift.driver.stop()
    # A reset by a seed, as a teleoperator's: what `lift` has saved is a state after a step.
    lift.driver.starts = None
    lift.driver.reset(5)
    begun = lift.driver.gripper.read()
    assert begun == pytest.approx(0.52, abs=0.01)
    lift.driver.enable()
    for _ in range(20):
        lift.tick(5)
        assert lift.driver.gripper.read() == pytest.approx(begun, abs=0.03)
    lift.driver.starts = lift.state[None]


def test_stop_from_another_thread_brings_it_to_rest_and_ends_setpoints(lift: Scene) -> None:
    measured = lift.begin()
    for _ in range(30):
        lift.driver.write(Pose(measured.pose.position + SIDEWAYS, measured.pose.quaternion))
        measured = lift.tick()
    assert np.abs(measured.dq).max() > 0.1
    thread = threading.Thread(target=lift.driver.stop)
    thread.start()
    thread.join()
    at = measured.pose.position
    for _ in range(100):
        lift.driver.write(Pose(measured.pose.position + SIDEWAYS, measured.pose.quaternion))
        last, measured = measured.pose, lift.tick()
    assert np.linalg.norm(measured.pose.position - last.position) < 1e-4
    assert np.linalg.norm(measured.pose.position - at) < 0.03
    lift.driver.enable()
    lift.driver.write(Pose(measured.pose.position + SIDEWAYS, measured.pose.quaternion))
    assert np.linalg.norm(lift.tick(10).pose.position - measured.pose.position) > 0.01


def test_the_gripper_goes_to_openings(lift: Scene) -> None:
    lift.begin()
    gripper = lift.driver.gripper
    for goal, tolerance in ((1.0, 0.04), (0.0, 0.04), (0.5, 0.07)):
        gripper.move(goal)
        lift.tick(80)
        assert gripper.read() == pytest.approx(goal, abs=tolerance)
    gripper.move(1.0)
    lift.tick(20)
    gripper.stop()
    lift.tick(80)
    held = gripper.read()
    assert 0.6 < held < 0.95
    lift.tick(20)
    assert gripper.read() == pytest.approx(held, abs=0.02)
    with pytest.raises(DriverError, match="between 0 and 1"):
        gripper.move(1.5)


def test_a_scene_is_reset_only_while_the_arm_is_not_enabled(lift: Scene) -> None:
    lift.begin()
    with pytest.raises(ValueError, match="disarmed"):
        lift.driver.reset(0)
    lift.driver.stop()
    lift.tick()
    with pytest.raises(ValueError, match="there are 1 saved states"):
        lift.driver.reset(1)
    lift.driver.reset(0)


def test_a_number_is_a_scene() -> None:
    driver = TaskDriver(task("lift"), SteppedClock())
    driver.open()
    cubes = []
    for start in (4, 5, 4):
        driver.reset(start)
        cubes.append(driver.read().sensors["cube_pos"])
    assert np.array_equal(cubes[0], cubes[2])
    assert not np.array_equal(cubes[0], cubes[1])
    plain = RobosuiteEnv(task("lift"))
    plain.reset(seed=4)
    assert np.allclose(plain.raw["cube_pos"], cubes[0], atol=1e-9)


def test_a_failed_simulation_is_a_fault_and_restarts_when_acknowledged(lift: Scene) -> None:
    before = lift.begin()
    lift.driver.env.sim.sim.data.qvel[0] = np.nan
    for _ in range(2):
        with pytest.raises(DriverError, match="acknowledged"):
            lift.tick()
    with pytest.raises(DriverError, match="acknowledged"):
        lift.driver.enable()
    lift.driver.stop()
    lift.driver.recover()
    after = lift.tick(3)
    assert np.array_equal(after.q, before.q)
    assert np.array_equal(after.sensors["cube_pos"], before.sensors["cube_pos"])
    # Where there is nothing to mend, nothing is.
    lift.begin()
    lift.tick(20)
    lift.driver.recover()
    assert lift.driver.read().sensors["time_left"] < before.sensors["time_left"]


def test_what_it_does_not_take(lift: Scene) -> None:
    measured = lift.begin()
    with pytest.raises(DriverError, match="poses"):
        lift.driver.write(measured.q)
    with pytest.raises(DriverError, match="not finite"):
        lift.driver.write(Pose(np.full(3, np.nan), measured.pose.quaternion))
    lift.driver.close()
    lift.driver.close()
    for call in (lift.driver.read, lift.driver.enable, lambda: lift.driver.write(measured.pose)):
        with pytest.raises(DriverError, match="open the driver first"):
            call()
    lift.driver.open()
    assert np.isfinite(lift.driver.read().q).all()


GRIPPERS = ("Robotiq85Gripper", "RethinkGripper", "Robotiq140Gripper", "XArm7Gripper", "BDGripper")


@pytest.mark.parametrize(
    ("robot", "gripper"),
    [
        ("UR5e", "default"),
        *(pytest.param("Panda", name, marks=pytest.mark.full) for name in GRIPPERS),
        *(
            pytest.param(name, "default", marks=pytest.mark.full)
            for name in ("Sawyer", "IIWA", "Kinova3", "XArm7", "Jaco")
        ),
    ],
)
def test_every_arm_with_a_gripper_is_driven(robot: str, gripper: str) -> None:
    changed = replace(
        task("lift"), robots=[robot], env_args={"gripper_types": gripper}, input_type="absolute"
    )
    clock = SteppedClock()
    driver = TaskDriver(changed, clock)
    assert driver.spec.gripper
    assert driver.gripper
    driver.open()
    for goal in (1.0, 0.0, 1.0):
        driver.gripper.move(goal)
        for _ in range(1200 if robot == "Jaco" else 300):  # whose gripper takes ten seconds
            clock.advance(10 * MS)
            driver.read()
        assert driver.gripper.read() == pytest.approx(goal, abs=0.12)


def test_an_arm_without_a_gripper_is_driven() -> None:
    driver = TaskDriver(TaskConfig(env="Wipe"), SteppedClock())
    assert driver.spec.gripper is None
    assert driver.gripper is None
    driver.open()
    driver.enable()
    assert np.isfinite(driver.read().q).all()


@pytest.mark.filterwarnings("ignore:task .* runs on robosuite's own control loop")
@pytest.mark.parametrize(
    ("changed", "rate", "message"),
    [
        ({"env_args": {"lite_physics": False}}, 100.0, "compiled"),
        ({"env_args": {"gripper_types": "InspireLeftHand"}}, 100.0, "takes 6 numbers; what can"),
        ({"env": "TwoArmLift", "state_keys": []}, 100.0, "has 2 arms: one arm can be served"),
        ({"controller": "JOINT_POSITION"}, 100.0, "choose OSC_POSE"),
        ({}, 30.0, "whole number of substeps"),
    ],
)
def test_a_task_that_cannot_be_driven_is_refused(changed: dict, rate: float, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        TaskDriver(replace(task("lift"), **changed), SteppedClock(), rate=rate)


@pytest.mark.parametrize("step", [0.02, 0.05])
def test_limits_let_the_moves_of_a_policy_through(lift: Scene, step: float) -> None:
    measured = lift.begin()
    limiter = CartesianLimiter(lift.driver.spec)
    limiter.reset(measured)
    goal = Pose(measured.pose.position + np.array([step, 0, 0]), measured.pose.quaternion)
    reached = [limiter.step(goal, measured).setpoint.position[0] for _ in range(TICKS)]
    part = (np.array(reached) - measured.pose.position[0]) / step
    assert 0.5 < part[0] < 1.0
    assert np.allclose(part[1:], 1.0)


def test_a_controller_of_the_simulation_solves_the_task_through_the_bridge(lift: Scene) -> None:
    """Each action is a command of one lease; the motion layer with all its limits moves the arm."""
    driver, clock = lift.driver, lift.clock
    core = RobotCore(driver, CoreSettings(), clock, "session", Fingers(driver, clock))
    peer = Peer("expert", "policy", "process")
    seq = iter(range(1, 10**6))

    def ask(message: type[m.Message], **fields: object) -> m.ServerMessage:
        answer = core.handle(peer, message(src=peer.src, seq=next(seq), tm=clock.now(), **fields))  # type: ignore[arg-type]
        assert not isinstance(answer, m.Refused), answer
        return answer

    driver.close()
    core.open()
    driver.reset(0)
    core.tick()
    ask(m.Arm, spec_sha256=driver.spec.sha256)
    lease = ask(m.AcquireLease, kind="policy")
    assert isinstance(lease, m.Done)
    expert = make_expert("Lift", noise=0.1, skill=1.0, rng=np.random.default_rng(0))
    expert.reset(driver.env.sim)
    state, steps = core.tick(), 0
    while not state.sensors["success"][0]:
        assert state.sensors["time_left"][0] > 0
        action = expert.act(driver.env.sim)
        move = np.array([*0.05 * action[:3], *0.5 * action[3:6]], float)
        ask(
            m.Command,
            lease=lease.lease,
            mode="cartesian_delta",
            data=tuple(move.tolist()),
            gripper=opening(action),
            t_sent=clock.now(),
        )
        for _ in range(TICKS):
            clock.advance(PERIOD)
            state = core.tick()
            assert state.mode == "policy"
        steps += 1
    assert 20 < steps < 120
    core.close()
    driver.open()
