"""Creates the actor for the job that a learner sends."""

from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch

from robot_rl.data.compatibility import check_same_environment
from robot_rl.envs.action import repeated_in_hold
from robot_rl.envs.observation import Observation
from robot_rl.envs.real_arm import RealArmEnv
from robot_rl.envs.robosuite_env import RobosuiteEnv
from robot_rl.envs.robot_state import SUCCESS
from robot_rl.envs.robot_task import NO_SIMULATION, RobotTask
from robot_rl.envs.vector import TaskVectorEnv, ThreadVectorEnv
from robot_rl.factory import make_vector_env
from robot_rl.hardware.cameras.reader import camera_reader
from robot_rl.hardware.client import RobotClient
from robot_rl.hardware.clock import Clock, MonotonicClock
from robot_rl.hardware.protocol.messages import Role
from robot_rl.hardware.protocol.security import ClientKeys, load_own_keys
from robot_rl.hardware.teleop.motion import Speed
from robot_rl.hardware.teleop.operator_display import OperatorDisplay
from robot_rl.hil.actor import Actor
from robot_rl.hil.actor_check import check_actor
from robot_rl.hil.actor_environment import SimActorEnvironment
from robot_rl.hil.actor_job import ActorJob, unpack_job, unpack_policy
from robot_rl.hil.classifier_updates import ClassifierUpdates, current_classifier
from robot_rl.hil.config import NO_OPERATOR, SCRIPTED, HilConfig
from robot_rl.hil.link.client import LearnerClient
from robot_rl.hil.link.messages import Welcome
from robot_rl.policies.acting import ActingPolicy
from robot_rl.policies.async_runner import execute_asynchronously
from robot_rl.policies.chunk_request import compute_at_once, compute_in_a_thread
from robot_rl.policies.chunk_runner import PolicyOutput
from robot_rl.policies.finetuned.finetuned_policy import FinetunedPolicy
from robot_rl.robot.deploy.controller import warm_up
from robot_rl.robot.deploy.deployment import check_robot_fits
from robot_rl.robot.deploy.judge import ClassifierOrPerson, success_judge
from robot_rl.robot.deploy.resets import WaitUntilReady, default_reset, make_reset, ready_on_enter
from robot_rl.robot.deploy.terminal import open_terminal_keys
from robot_rl.robot.deploy.turns import Turns
from robot_rl.robot.operators.operator import NoOperator, Operator
from robot_rl.robot.operators.person import Person, device_settings, open_person, operator_role
from robot_rl.robot.operators.scripted import mirror, scripted_operator, success_sensor
from robot_rl.robot.operators.shared_control import SharedEnvironment, SharedRobot
from robot_rl.rollout import episode_seed
from robot_rl.saved_policies.loading import load_networks

_TIMEOUT = 5.0
"""Time to wait for an answer of the robot before it counts as lost, s."""


def make_actor(
    welcome: Welcome,
    own: Mapping[str, Any],
    folder: Path,
    corrected: Path,
    device: torch.device,
    client: LearnerClient,
    clock: Clock,
    stop: Callable[[], bool],
    say: Callable[[str], None],
    resources: ExitStack,
) -> Actor:
    """Create an actor for a learner's job.

    Args:
        welcome: the learner's answer to the handshake.
        own: options of `HilConfig` of this actor, which replace those of the learner.
        folder: empty folder for the policy's files.
        corrected: directory of the classifier of success that is corrected during training.
        device: device of the policy.
        client: link to the learner.
        clock: clock of this machine.
        stop: polled at each step; True ends the actor.
        say: shows a line to the user.
        resources: closes what is opened here.

    Raises:
        ValueError: if the job cannot be done, also because the policy is too slow for its delay.
        RobotError: if the robot does not answer.
        DeviceError: if the operator's device cannot be opened.
    """
    job = unpack_job(welcome.job)
    job = replace(job, hil=replace(job.hil, **own))
    check_actor(job.hil)
    unpack_policy(welcome.files, folder)
    networks, meta = load_networks(folder, device)
    if not isinstance(networks, FinetunedPolicy):
        raise ValueError("the learner sends a base policy alone: update the older")
    simulated = job.task.env != NO_SIMULATION
    envs = make_vector_env(job.task, 1) if simulated else RobotTask(meta["environment"])
    resources.callback(envs.close)
    check_same_environment(meta["environment"], envs.describe(), "the learner's policy", tuple(job.accept))
    # The actor must not repeat the exploration noise of an earlier actor.
    seed = episode_seed(job.seed, "actor", welcome.episode)
    policy = networks.policy(1, seed=seed, exploration=job.exploration)
    display = OperatorDisplay(job.hil.robot or "", _robot_keys(job.hil))

    def show(line: str) -> None:
        say(line)
        display.say(line)

    def ended() -> bool:
        # An operator may prepare the scene for minutes, in which the learner may die.
        client.exchange()
        client.check_connected()
        return stop() or client.stopping

    builder = _EnvironmentBuilder(job, envs, display, ended, show, resources, corrected)
    operator, env = builder.build()
    # A simulation that does not wait for real time has chunks that arrive after exactly the given delay.
    submit = compute_in_a_thread(resources) if env.realtime else compute_at_once
    execute_asynchronously(policy, job.execution, repeated_in_hold(envs.action_spec), submit)
    if job.execution and (robot := builder.robot):
        act = partial(_explore, policy)
        warm_up(act, policy, robot.observation_spec, robot.asked, 1e3 / job.task.control_freq, clock)
    actor = Actor(
        env,
        operator,
        policy,
        networks,
        client,
        job,
        clock,
        steps=welcome.steps,
        stop=stop,
        say=show,
        updates=builder.updates,
    )
    actor.load_weights(welcome.weights)
    return actor


def _explore(policy: ActingPolicy, obs: Observation) -> PolicyOutput:
    frames = {key: value[None] for key, value in obs.items()}
    return policy.act(frames, explore=True, with_base_samples=True)


def _robot_keys(config: HilConfig) -> ClientKeys | None:
    return load_own_keys(config.robot_keys)


@dataclass
class _EnvironmentBuilder:
    """Creates operator and environment of a job; `resources` closes what is opened."""

    job: ActorJob
    envs: TaskVectorEnv | RobotTask
    display: OperatorDisplay
    stop: Callable[[], bool]
    say: Callable[[str], None]
    resources: ExitStack
    corrected: Path
    updates: ClassifierUpdates | None = None
    """Corrects the classifier of success, if that is wanted; made by `build`."""
    robot: RealArmEnv | None = None
    """The robot, if there is one; made by `build`."""

    def build(self) -> tuple[Operator, SharedEnvironment]:
        config = self.job.hil
        person = self._person() if config.has_person else None
        succeeds = None
        if config.robot:
            robot = self._robot_client(config.robot)
            env: SharedEnvironment = self._robot_environment(config.robot, robot, person)
            sim = mirror(self.job.task, robot, self.resources) if config.operator == SCRIPTED else None
            succeeds = success_sensor(robot) if config.revocable and not person else None
        elif isinstance(self.envs, RobotTask):
            raise ValueError(
                f"the task {self.job.task.name} is of a real robot: give its server, hil.robot=…"
            )
        else:
            assert isinstance(self.envs, ThreadVectorEnv)
            simulated = self.envs.envs[0]
            if not isinstance(simulated, RobosuiteEnv):
                raise ValueError(f"hil=on: the task {self.job.task.name} runs in another simulator's process")
            realtime = config.has_person if config.realtime is None else config.realtime
            env = SimActorEnvironment(simulated, realtime=realtime)
            sim = lambda: simulated.sim  # noqa: E731
        if person:
            return person, env
        if config.operator == NO_OPERATOR:
            return NoOperator(), env
        assert sim is not None
        return scripted_operator(self.job.task, sim, config.fraction, self.job.seed, succeeds), env

    def _person(self) -> Person:
        job, config = self.job, self.job.hil
        settings = device_settings(config.operator, config.device)
        return open_person(
            settings,
            self.display,
            self.envs.action_spec,
            job.task.control_freq,
            Speed(config.linear, config.angular),
            self.resources,
            self.say,
            fraction=config.fraction,
            seed=job.seed,
            revocable=job.hil.revocable,
        )

    def _robot_client(self, address: str) -> RobotClient:
        config = self.job.hil
        role = operator_role(self.display.keys) if config.has_person else "policy"
        return self._connect(address, config.name, role)

    def _connect(self, address: str, name: str, role: Role) -> RobotClient:
        client = RobotClient(address, name, role, keys=self.display.keys, timeout=_TIMEOUT)
        return self.resources.enter_context(client)

    def _robot_environment(self, address: str, robot: RobotClient, person: Person | None) -> SharedRobot:
        config, environment = self.job.hil, self.envs.describe()
        check_robot_fits(robot.spec, robot.lease_ms, environment)
        reset = config.reset or default_reset(robot.spec)
        prepare = make_reset(reset, robot, self._ready(person) if reset == "operator" else None, self.stop)
        period, keys = 1 / self.job.task.control_freq, self.display.keys
        reader = camera_reader(robot, address, self.job.task.cameras, period, keys, False)
        frames = self.resources.enter_context(reader)
        success = config.success
        corrects = config.correct_classifier and config.revocable
        if config.correct_classifier and not corrects:
            self.say(
                "hil.correct_classifier=true corrects nothing here: there is no operator, or no classifier"
            )
        if success and corrects:
            success = current_classifier(success, self.corrected)
            self.say(f"success is judged by {success}")
        judge = success_judge(success, robot, address, period, keys, False, person, self.resources)
        if config.success and corrects:
            assert isinstance(judge, ClassifierOrPerson)
            self.updates = ClassifierUpdates(judge, config.success, self.corrected, self.say)
        if corrects and not person and SUCCESS not in robot.spec.sensors:
            raise ValueError(
                f"the robot {robot.spec.name} does not measure success, by which hil.operator=scripted would "
                "correct the classifier: give a device as hil.operator, or leave out hil.correct_classifier"
            )
        if judge is None and SUCCESS not in robot.spec.sensors:
            raise ValueError(
                f"the robot {robot.spec.name} does not measure success: give hil.success=…, a classifier "
                "run, or let a person at a device mark it"
            )
        env = self.robot = RealArmEnv(
            robot,
            environment,
            prepare=prepare,
            judge=judge,
            frames=frames,
            instruction=config.instruction,
        )
        turns = Turns(robot, config.turns_with, first=config.first) if config.turns_with else None
        stopper = self._connect(address, f"{config.name}_stop", robot.role)
        return SharedRobot(env, robot, stopper, MonotonicClock(), turns)

    def _ready(self, person: Person | None) -> WaitUntilReady:
        if person:
            return person.ready(self.stop, self.say)
        return ready_on_enter(self.resources.enter_context(open_terminal_keys()), self.stop)
