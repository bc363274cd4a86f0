"""Deploys a policy: checks that it fits the robot, builds the controller and runs the episodes."""

import gc
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from robot_rl.envs.observation import ObservationSpec
from robot_rl.envs.real_arm import Judge, RealArmEnv
from robot_rl.envs.robot_state import SUCCESS, TIME_LEFT
from robot_rl.envs.task import render_of
from robot_rl.errors import ServerLost
from robot_rl.hardware.cameras.reader import FrameReader
from robot_rl.hardware.client import RobotClient
from robot_rl.hardware.clock import MonotonicClock
from robot_rl.hardware.connection import RequestRefused, RobotError
from robot_rl.hardware.realtime import COMMANDS, realtime_priority
from robot_rl.hardware.recording.recorder import RecorderError
from robot_rl.hardware.spec import RobotSpec
from robot_rl.hardware.teleop.device import DeviceError
from robot_rl.policies.acting import ActingPolicy
from robot_rl.robot.deploy.cameras import check_cameras
from robot_rl.robot.deploy.cases import show_case
from robot_rl.robot.deploy.controller import Controller
from robot_rl.robot.deploy.recording import EpisodeRecording
from robot_rl.robot.deploy.resets import WaitUntilReady, make_reset, ready_on_enter
from robot_rl.robot.deploy.results import DeploymentResults
from robot_rl.robot.deploy.terminal import OperatorVerdict, Stopped, open_terminal_keys
from robot_rl.robot.deploy.turns import Turns
from robot_rl.robot.operators.operator import NoOperator, Operator
from robot_rl.robot.operators.shared_control import SharedControl, SharedRobot
from robot_rl.rollout import episode_seed


def check_robot_fits(robot: RobotSpec, lease_ms: int, environment: Mapping[str, Any]) -> None:
    """Check cameras and control rate, which `RealArmEnv` does not check.

    Args:
        robot: the robot to control.
        lease_ms: lease duration of its server.
        environment: the policy's environment (`describe`).

    Raises:
        ValueError: if the robot does not match the policy.
    """
    period_ms = 1e3 / environment["control_freq"]
    if period_ms >= lease_ms:
        raise ValueError(
            f"the policy acts every {period_ms:.0f} ms, and a lease ends after {lease_ms} ms of silence; "
            f"start the server with lease_ms={2 * period_ms:.0f}"
        )
    check_cameras(robot, ObservationSpec.from_dict(environment["observation_spec"]), "the policy")
    # A served simulated task always renders images in the quick style.
    if TIME_LEFT in robot.sensors and render_of(environment) == "robosuite":
        raise ValueError(
            "the policy was trained with task.render=robosuite, but a served task renders quick images"
        )


def make_controller(
    robot: RobotClient,
    policy: ActingPolicy,
    environment: Mapping[str, Any],
    reset: str,
    stop: Callable[[], bool],
    ended: ExitStack,
    *,
    frames: FrameReader | None = None,
    judge: Judge | None = None,
    turns: Turns | None = None,
    lookahead_ms: float | None = None,
    instruction: str | None = None,
    operator: Operator | None = None,
    stopper: RobotClient | None = None,
    wait_until_ready: WaitUntilReady | None = None,
    cases: list[list[Path]] | None = None,
    recording: EpisodeRecording | None = None,
    say: Callable[[str], None] = print,
) -> Controller:
    """Build the controller, warm up the policy and disarm the robot.

    Args:
        robot: connected client with the role policy or operator.
        policy: policy that acts in one environment.
        environment: the policy's environment (`describe`).
        reset: how episodes begin, one of `RESETS`.
        stop: True ends the deployment.
        ended: receives the cleanup.
        frames: reader of the cameras that the policy observes.
        judge: judge of success; by default the robot's success sensor, else the operator.
        turns: turn taking with another client of the robot.
        lookahead_ms: as for `RealArmEnv`.
        instruction: as for `RealArmEnv`.
        operator: who may take over; nobody if None.
        stopper: second client, for the operator's stop.
        wait_until_ready: waits for the operator at `reset=operator`; the terminal's Enter key if None.
        cases: scenes that the operator prepares, as `read_cases` gives them.
        recording: records the episodes.
        say: shows a line to the user.

    Raises:
        ValueError: if the policy does not fit the robot, or an operator is needed and there is no terminal.
        RobotError: if the robot does not answer.
    """
    wait_until_ready, verdict = _ask_at_terminal(robot, reset, judge, wait_until_ready, stop, ended)
    if cases and wait_until_ready:
        wait_until_ready = show_case(cases, wait_until_ready, say)
    clock = MonotonicClock()
    prepare = make_reset(reset, robot, wait_until_ready, stop)
    env = RealArmEnv(
        robot,
        environment,
        prepare=recording.after(prepare) if recording else prepare,
        judge=judge or verdict,
        frames=frames,
        lookahead_ms=lookahead_ms,
        clock=clock,
        instruction=instruction,
    )
    period = 1 / environment["control_freq"]
    shared = SharedControl(
        SharedRobot(env, robot, stopper or robot, clock, turns),
        operator or NoOperator(),
        policy,
        clock,
        stopping=stop,
        say=say,
        # Without an operator here, only a fault is waited for, which one elsewhere may acknowledge.
        patient=operator is not None,
    )
    controller = Controller(
        env,
        policy,
        clock,
        period,
        shared=shared,
        stop=stop,
        verdict=verdict,
        recording=recording,
    )
    with realtime_priority(COMMANDS):
        controller.warm_up()
    controller.close()
    return controller


def _ask_at_terminal(
    robot: RobotClient,
    reset: str,
    judge: Judge | None,
    wait_until_ready: WaitUntilReady | None,
    stop: Callable[[], bool],
    ended: ExitStack,
) -> tuple[WaitUntilReady | None, OperatorVerdict | None]:
    """Use the terminal's keys for a prepared scene and for success, where nothing else tells them."""
    judged = judge is not None or SUCCESS in robot.spec.sensors
    asks = reset == "operator" and wait_until_ready is None
    if judged and not asks:
        return wait_until_ready, None
    keyboard = ended.enter_context(open_terminal_keys())
    if asks:
        wait_until_ready = ready_on_enter(keyboard, stop)
    return wait_until_ready, None if judged else OperatorVerdict(keyboard)


def check_initial_states(robot: RobotClient, episodes: int) -> None:
    """Check before the first episode that the scene has an initial state for the last one.

    Raises:
        ValueError: if there are fewer initial states than episodes.
        RobotError: if the robot does not answer.
    """
    try:
        robot.reset_scene(episodes - 1)
    except RequestRefused as refusal:
        raise ValueError(f"reset=scene, episodes={episodes}: {refusal.reason}") from refusal


def deploy(controller: Controller, outcomes: DeploymentResults, episodes: int, seed: int) -> str:
    """Run the episodes and print a line for each.

    Returns:
        "done", "stopped" (by the user), or why the robot or the policy's server was lost.
    """
    # Exclude long-lived objects from garbage collection, which would delay control periods.
    gc.collect()
    gc.freeze()
    ended, left = "done", ""
    try:
        for number in range(episodes):
            # The seeds of `robot-rl eval`, so an episode from the same initial state has the same noise.
            with realtime_priority(COMMANDS):
                episode = controller.run(number, episode_seed(seed, "eval", number))
            outcomes.add(episode)
            print(episode.line(), flush=True)
            controller.commit(episode)
    except Stopped:
        ended = "stopped"
    except (RobotError, ServerLost, RecorderError, DeviceError) as error:
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
