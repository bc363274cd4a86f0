"""Resets that prepare an episode on a robot. Each is called with the episode number and the arm disarmed."""

from collections.abc import Callable
from typing import Final

from robot_rl.envs.real_arm import Prepare
from robot_rl.envs.robot_action import hold
from robot_rl.envs.robot_state import TIME_LEFT
from robot_rl.hardware.client import RobotClient
from robot_rl.hardware.clock import MS, MonotonicClock
from robot_rl.hardware.spec import CommandMode, RobotSpec
from robot_rl.hardware.teleop.terminal_keys import KeyReader
from robot_rl.robot.deploy.terminal import Stopped, wait_for_enter

RESETS: Final = ("scene", "operator", "home")
WaitUntilReady = Callable[[int], None]
"""Returns when the scene of that episode is prepared; raises `Stopped` if the user ends the deployment."""
_OPEN_TIME: Final = 1000 * MS
"""Time for the gripper to open, ns."""


def default_reset(robot: RobotSpec) -> str:
    """Default reset: `scene` for a simulated task, `operator` for any other robot."""
    return "scene" if TIME_LEFT in robot.sensors else "operator"


def scene_reset(robot: RobotClient) -> Prepare:
    """Reset the scene to the saved initial state of that number."""

    def prepare(number: int) -> None:
        robot.reset_scene(number)

    return prepare


def home_reset(robot: RobotClient, stop: Callable[[], bool]) -> Prepare:
    """Open the gripper in place, then move the arm home; `stop` ends the motion with `Stopped`."""

    def check() -> None:
        if stop():
            raise Stopped

    def prepare(_: int) -> None:
        robot.arm()
        with robot.lease("script"):
            if robot.spec.gripper:
                _open_gripper(robot, check)
            robot.home(check=check)

    return prepare


def operator_reset(robot: RobotClient, wait_until_ready: WaitUntilReady, stop: Callable[[], bool]) -> Prepare:
    """As `home_reset`; then the arm is disarmed and the operator prepares the scene and confirms."""
    go_home = home_reset(robot, stop)

    def prepare(number: int) -> None:
        go_home(number)
        robot.disarm()
        wait_until_ready(number)

    return prepare


def ready_on_enter(keyboard: KeyReader, stop: Callable[[], bool]) -> WaitUntilReady:
    """The operator confirms by pressing Enter in the terminal."""

    def wait_until_ready(number: int) -> None:
        while keyboard.key(0.0):
            pass  # pressed before: for the last episode, or while the arm moved
        print(f"episode {number}: prepare the scene, then press Enter", flush=True)
        wait_for_enter(keyboard, stop)

    return wait_until_ready


def make_reset(
    reset: str, robot: RobotClient, wait_until_ready: WaitUntilReady | None, stop: Callable[[], bool]
) -> Prepare:
    """Create the reset of this name (one of `RESETS`); only `operator` needs `wait_until_ready`."""
    if reset == "operator":
        assert wait_until_ready is not None
        return operator_reset(robot, wait_until_ready, stop)
    return scene_reset(robot) if reset == "scene" else home_reset(robot, stop)


def _open_gripper(robot: RobotClient, check: Callable[[], None]) -> None:
    clock = MonotonicClock()
    due = clock.now()
    end = due + _OPEN_TIME
    mode: CommandMode = "cartesian_delta" if "cartesian_delta" in robot.spec.modes else "cartesian_pose"
    while due < end:
        check()
        hold(robot, mode, robot.state(robot.timeout), gripper=1.0)
        # Three commands per lease duration.
        due += robot.lease_ms * MS // 3
        clock.sleep_until(due)
