"""From what a learner says to an actor that is ready."""

from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

import torch

from robot_rl.data.compatibility import check_same_environment
from robot_rl.envs.real_arm import Judge, RealArmEnv
from robot_rl.envs.robot_state import SUCCESS
from robot_rl.envs.vector import RobosuiteVectorEnv, ThreadVectorEnv
from robot_rl.factory import load_networks, make_env, make_vector_env
from robot_rl.hardware.client import RobotClient
from robot_rl.hardware.clock import Clock, MonotonicClock
from robot_rl.hardware.protocol.messages import Role
from robot_rl.hardware.protocol.security import ClientKeys, load_client_keys, may
from robot_rl.hardware.teleop.devices import make_device
from robot_rl.hardware.teleop.motion import Speed
from robot_rl.hardware.teleop.operator_display import OperatorDisplay
from robot_rl.hil.actor import Actor
from robot_rl.hil.actor_job import ActorJob, unpack_job, unpack_policy
from robot_rl.hil.config import NOBODY, SCRIPTED, HilConfig
from robot_rl.hil.link.client import LearnerClient
from robot_rl.hil.link.messages import Welcome
from robot_rl.hil.mirror import Mirror
from robot_rl.hil.operators.device import device_settings
from robot_rl.hil.operators.operator import Nobody, Operator
from robot_rl.hil.operators.person import Person
from robot_rl.hil.operators.scripted import ScriptedOperator
from robot_rl.hil.scene import RobotScene, Scene, SimScene
from robot_rl.policies.finetuned.finetuned_policy import FinetunedPolicy
from robot_rl.robot.deploy.cameras import camera_reader
from robot_rl.robot.deploy.deployment import check_robot_fits
from robot_rl.robot.deploy.judge import classifier_judge
from robot_rl.robot.deploy.resets import RESETS, WaitUntilReady, default_reset, make_reset, ready_on_enter
from robot_rl.robot.deploy.terminal import open_terminal_keys
from robot_rl.robot.deploy.turns import Turns
from robot_rl.seeds import episode_seed

_NOT_IN_TRAINING = ("h", "q")
"""Keys of a device that mean nothing here: going home, and quitting, which is Ctrl-C."""
_TIMEOUT = 5.0
"""s for an answer of the robot; without one, it is lost."""


def make_actor(
    welcome: Welcome,
    folder: Path,
    device: torch.device,
    line: LearnerClient,
    clock: Clock,
    stop: Callable[[], bool],
    say: Callable[[str], None],
    ended: ExitStack,
) -> Actor:
    """An actor for the job of a learner.

    Args:
        welcome: what it said.
        folder: empty, for the policy's files.
        device: of the policy.
        line: greeted.
        clock: of this machine.
        stop: asked at each step whether to leave.
        say: shows a line to people.
        ended: takes what is to be undone.

    Raises:
        ValueError: what cannot work.
        RobotError: the robot does not answer.
        DeviceError: the operator's device cannot be had.
    """
    job = unpack_job(welcome.job)
    unpack_policy(welcome.files, folder)
    networks, meta = load_networks(folder, device)
    if not isinstance(networks, FinetunedPolicy):
        raise ValueError("the learner sends a base policy alone: update the older")
    envs = make_vector_env(job.task, 1)
    ended.callback(envs.close)
    check_same_environment(meta["environment"], envs.describe(), "the learner's policy", tuple(job.accept))
    # The actor must not repeat the exploration noise of an earlier actor.
    seed = episode_seed(job.seed, "actor", welcome.episode)
    policy = networks.policy(1, seed=seed, exploration=job.exploration)
    display = OperatorDisplay(job.hil.robot or "", _robot_keys(job.hil))

    def tell(line: str) -> None:
        say(line)
        display.say(line)

    operator, scene = _make_scene(job, envs, display, stop, tell, ended)
    actor = Actor(
        scene, operator, policy, networks, line, job, clock, steps=welcome.steps, stop=stop, say=tell
    )
    actor.take_weights(welcome.weights)
    return actor


def _make_scene(
    job: ActorJob,
    envs: RobosuiteVectorEnv,
    display: OperatorDisplay,
    stop: Callable[[], bool],
    say: Callable[[str], None],
    ended: ExitStack,
) -> tuple[Operator, Scene]:
    config = job.hil
    person = _person(job, envs, display, say, ended) if config.has_person else None
    if config.robot:
        robot = _robot(config, display.keys, ended)
        scene: Scene = _robot_scene(job, envs, robot, display.keys, person, stop, say, ended)
        sim = _mirror(job, robot, ended).now if config.operator == SCRIPTED else None
    else:
        assert isinstance(envs, ThreadVectorEnv)
        env = envs.envs[0]
        scene = SimScene(env, realtime=config.has_person if config.realtime is None else config.realtime)
        sim = lambda: env.sim  # noqa: E731
    if person:
        return person, scene
    if config.operator == NOBODY:
        return Nobody(), scene
    assert sim is not None
    if job.task.input_type == "absolute":
        raise ValueError("hil.operator=scripted gives deltas, and task.input_type=absolute takes poses")
    return ScriptedOperator(job.task.env, sim, config.fraction, job.seed), scene


def _person(
    job: ActorJob,
    envs: RobosuiteVectorEnv,
    display: OperatorDisplay,
    say: Callable[[str], None],
    ended: ExitStack,
) -> Person:
    config = job.hil
    device = ended.enter_context(make_device(device_settings(config.operator, config.device), display))
    for keys, does in device.controls:
        if keys not in _NOT_IN_TRAINING:
            say(f"{keys}: {does}")
    speed = Speed(config.linear, config.angular)
    clock = MonotonicClock()
    freq = job.task.control_freq
    return Person(device, display, envs.action_spec, freq, speed, clock, config.fraction, job.seed)


def _robot(config: HilConfig, keys: ClientKeys | None, ended: ExitStack) -> RobotClient:
    assert config.robot is not None
    # A person may acknowledge a fault, if the keys let them.
    acknowledges = config.has_person and (keys is None or may(keys.role, "operator"))
    role: Role = "operator" if acknowledges else "policy"
    return ended.enter_context(RobotClient(config.robot, config.name, role, keys=keys, timeout=_TIMEOUT))


def _stopper(config: HilConfig, keys: ClientKeys | None, ended: ExitStack) -> RobotClient:
    assert config.robot is not None
    name = f"{config.name}_stop"
    return ended.enter_context(RobotClient(config.robot, name, "observer", keys=keys, timeout=_TIMEOUT))


def _robot_keys(config: HilConfig) -> ClientKeys | None:
    return load_client_keys(Path(config.robot_keys)) if config.robot_keys else None


def _robot_scene(
    job: ActorJob,
    envs: RobosuiteVectorEnv,
    robot: RobotClient,
    keys: ClientKeys | None,
    person: Person | None,
    stop: Callable[[], bool],
    say: Callable[[str], None],
    ended: ExitStack,
) -> RobotScene:
    config = job.hil
    assert config.robot is not None
    environment = envs.describe()
    check_robot_fits(robot.spec, robot.lease_ms, environment)
    reset = config.reset or default_reset(robot.spec)
    if reset not in RESETS:
        raise ValueError(f"hil.reset={reset}: choose {', '.join(RESETS)}")
    ready: WaitUntilReady | None = None
    if reset == "operator":
        ready = (
            person.ready(stop, say)
            if person
            else ready_on_enter(ended.enter_context(open_terminal_keys()), stop)
        )
    prepare = make_reset(reset, robot, ready)
    period = 1 / job.task.control_freq
    frames = ended.enter_context(camera_reader(robot, config.robot, job.task.cameras, period, keys, False))
    judge: Judge | None = None
    if config.success:
        sees = ended.enter_context(classifier_judge(config.success, robot, config.robot, period, keys, False))
        judge = lambda state: bool(person and person.succeeded) or sees(state)  # noqa: E731
    elif SUCCESS not in robot.spec.sensors:
        if person is None:
            raise ValueError(
                f"the robot {robot.spec.name} does not measure success: give hil.success=…, a classifier's "
                "run, or somebody at a device has to say it"
            )
        seen = person
        judge = lambda _: seen.succeeded  # noqa: E731
    env = RealArmEnv(robot, environment, prepare=prepare, judge=judge, frames=frames)
    turns = Turns(robot, config.turns_with, first=config.first) if config.turns_with else None
    return RobotScene(env, robot, _stopper(config, keys, ended), turns)


def _mirror(job: ActorJob, robot: RobotClient, ended: ExitStack) -> Mirror:
    env = make_env(replace(job.task, cameras=[]))
    ended.callback(env.close)
    return Mirror(env, lambda: robot.state(_TIMEOUT))
