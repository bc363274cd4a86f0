"""How an episode on a robot begins. Each is called with its number and the arm disarmed."""

from collections.abc import Callable
from typing import Final

from robot_rl.envs.real_arm import Prepare
from robot_rl.envs.robot_state import TIME_LEFT
from robot_rl.hardware.client import RobotClient
from robot_rl.hardware.clock import MS, MonotonicClock
from robot_rl.hardware.spec import RobotSpec
from robot_rl.hardware.teleop.terminal_keys import KeyReader
from robot_rl.robot.deploy.terminal import wait_for_enter

RESETS: Final = ("scene", "operator", "home")
WaitUntilReady = Callable[[int], None]
"""Returns when the scene of that episode is prepared; raises `Stopped` where the user wants to end."""
_OPENING: Final = 1000 * MS
"""How long a gripper is given to let go, ns."""


def default_reset(robot: RobotSpec) -> str:
    """A simulated task has a scene; another robot has somebody beside it."""
    return "scene" if TIME_LEFT in robot.sensors else "operator"


def scene_reset(robot: RobotClient) -> Prepare:
    """The scene goes to the saved initial state of that number."""

    def prepare(number: int) -> None:
        robot.reset_scene(number)

    return prepare


def home_reset(robot: RobotClient) -> Prepare:
    """The gripper opens where it is, then the arm goes to rest."""

    def prepare(_: int) -> None:
        robot.arm()
        with robot.lease("script"):
            if robot.spec.gripper:
                _let_go(robot)
            robot.home()

    return prepare


def operator_reset(robot: RobotClient, wait_until_ready: WaitUntilReady) -> Prepare:
    """As `home_reset`; then somebody prepares the scene, with the arm disarmed, and says so."""
    go_home = home_reset(robot)

    def prepare(number: int) -> None:
        go_home(number)
        robot.disarm()
        wait_until_ready(number)

    return prepare


def ready_on_enter(keyboard: KeyReader, stop: Callable[[], bool]) -> WaitUntilReady:
    """Somebody at the terminal presses Enter."""

    def wait_until_ready(number: int) -> None:
        print(f"episode {number}: prepare the scene, then press Enter", flush=True)
        wait_for_enter(keyboard, stop)

    return wait_until_ready


def make_reset(reset: str, robot: RobotClient, wait_until_ready: WaitUntilReady | None) -> Prepare:
    """What `reset`, one of `RESETS`, means; only `operator` needs somebody to be awaited."""
    if reset == "operator":
        assert wait_until_ready is not None
        return operator_reset(robot, wait_until_ready)
    return scene_reset(robot) if reset == "scene" else home_reset(robot)


def _let_go(robot: RobotClient) -> None:
    clock = MonotonicClock()
    due = clock.now()
    end = due + _OPENING
    while due < end:
        robot.command("cartesian_delta", [0.0] * 6, gripper=1.0)
        # Three times within a lease.
        due += robot.lease_ms * MS // 3
        clock.sleep_until(due)
