"""From a policy and a client of a robot to episodes."""

import gc
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from typing import Any

from robot_rl.envs.observation import ObservationSpec
from robot_rl.envs.real_arm import Judge, RealArmEnv
from robot_rl.envs.robot_state import SUCCESS, TIME_LEFT
from robot_rl.envs.task import render_of
from robot_rl.hardware.cameras.reader import FrameReader
from robot_rl.hardware.client import RobotClient
from robot_rl.hardware.clock import MonotonicClock
from robot_rl.hardware.connection import RequestRefused, RobotError
from robot_rl.hardware.realtime import COMMANDS, realtime_priority
from robot_rl.hardware.spec import RobotSpec
from robot_rl.policies.acting import WrappedPolicy
from robot_rl.robot.deploy.controller import Controller
from robot_rl.robot.deploy.resets import make_reset, ready_on_enter
from robot_rl.robot.deploy.results import DeploymentResults
from robot_rl.robot.deploy.terminal import OperatorVerdict, Stopped, open_terminal_keys
from robot_rl.robot.deploy.turns import Turns
from robot_rl.seeds import episode_seed


def check_robot_fits(robot: RobotSpec, lease_ms: int, environment: Mapping[str, Any]) -> None:
    """Cameras and pace.

    Args:
        robot: the one that shall be controlled.
        lease_ms: of its server.
        environment: that of the policy (`describe`).

    Raises:
        ValueError: what differs.
    """
    period_ms = 1e3 / environment["control_freq"]
    if period_ms >= lease_ms:
        raise ValueError(
            f"the policy acts every {period_ms:.0f} ms, and a lease ends after {lease_ms} ms of silence; "
            f"start the server with lease_ms={2 * period_ms:.0f}"
        )
    observed = ObservationSpec.from_dict(environment["observation_spec"])
    there = {camera.name: (camera.height, camera.width) for camera in robot.cameras}
    for camera in observed.cameras:
        if camera not in there:
            has = ", ".join(there) or "none"
            raise ValueError(f"the policy sees the camera {camera!r}; the robot has {has}")
        if there[camera] != observed.image_size:
            raise ValueError(
                f"images of {camera!r} are {_text(there[camera])} (height × width), "
                f"the policy has learned from {_text(observed.image_size)}"
            )
    # A simulated task serves images of one look; a real camera's is its own.
    if TIME_LEFT in robot.sensors and render_of(environment) == "robosuite":
        raise ValueError("the policy has seen images with task.render=robosuite; a served task's are quick")


def _text(size: tuple[int, int]) -> str:
    return f"{size[0]} × {size[1]}"


def make_controller(
    robot: RobotClient,
    policy: WrappedPolicy,
    environment: Mapping[str, Any],
    reset: str,
    episodes: int,
    stop: Callable[[], bool],
    ended: ExitStack,
    *,
    frames: FrameReader | None = None,
    judge: Judge | None = None,
    turns: Turns | None = None,
    lookahead_ms: float | None = None,
) -> Controller:
    """A policy that is ready to control a robot, which is disarmed.

    Args:
        robot: connected, as policy or operator.
        policy: with one slot.
        environment: the policy's, as `describe` says it.
        reset: how episodes begin, one of `RESETS`.
        episodes: how many there shall be.
        stop: asked whether to leave.
        ended: takes what is to be undone.
        frames: images of the cameras that the policy sees.
        judge: of success; by default the robot's sensor of it, or a person where it has none.
        turns: with another client of the robot.
        lookahead_ms: as for `RealArmEnv`.

    Raises:
        ValueError: the policy and the robot do not fit, or a person is needed and there is no terminal.
        RobotError: the robot does not answer, or has no such beginnings.
    """
    judged = judge is not None or SUCCESS in robot.spec.sensors
    keyboard = ended.enter_context(open_terminal_keys()) if reset == "operator" or not judged else None
    verdict = OperatorVerdict(keyboard) if keyboard and not judged else None
    clock = MonotonicClock()
    env = RealArmEnv(
        robot,
        environment,
        prepare=make_reset(reset, robot, ready_on_enter(keyboard, stop) if keyboard else None),
        judge=judge or verdict,
        frames=frames,
        lookahead_ms=lookahead_ms,
        clock=clock,
    )
    period = 1 / environment["control_freq"]
    controller = Controller(env, policy, clock, period, stop=stop, verdict=verdict, turns=turns)
    with realtime_priority(COMMANDS):
        controller.warm_up()
    controller.close()
    if reset == "scene":
        # Whether there are so many beginnings shows before the first episode, not after the last.
        try:
            robot.reset_scene(episodes - 1)
        except RequestRefused as refusal:
            raise ValueError(f"reset=scene, episodes={episodes}: {refusal.reason}") from refusal
    return controller


def deploy(controller: Controller, outcomes: DeploymentResults, episodes: int, seed: int) -> str:
    """Run the episodes, with a line for each.

    Returns:
        how it ended: "done", "stopped" by the user, or why the robot was lost.
    """
    # What lives as long as the policy need not be searched by the garbage collector during a control period.
    gc.collect()
    gc.freeze()
    ended, left = "done", ""
    try:
        for number in range(episodes):
            # The seeds of `robot-rl eval`: an episode from the same initial state has the same noise.
            with realtime_priority(COMMANDS):
                episode = controller.run(number, episode_seed(seed, "eval", number))
            outcomes.add(episode)
            print(episode.line(), flush=True)
    except Stopped:
        ended = "stopped"
    except RobotError as error:
        ended = str(error)
    finally:
        gc.unfreeze()
        try:
            controller.close()
        except RobotError as error:
            left = str(error)
    if ended in ("done", "stopped"):
        ended = left or ended
    if outcomes.episodes:
        outcomes.write(ended)
    return ended
