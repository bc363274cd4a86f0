"""How an episode on a robot begins. Each is called with its number and the arm disarmed."""

from collections.abc import Callable
from typing import Final

from robot_rl.envs.real_arm import Prepare
from robot_rl.envs.robot_state import TIME_LEFT
from robot_rl.hardware.client import RobotClient
from robot_rl.hardware.clock import MS, MonotonicClock
from robot_rl.hardware.spec import RobotSpec
from robot_rl.robot.deploy.person import await_enter
from robot_rl.robot.keyboard import Keyboard

RESETS: Final = ("scene", "operator", "home")
Ready = Callable[[int], None]
"""Returns when the scene of that episode is prepared; raises `Stopped` where the user wants to end."""
_OPENING: Final = 1000 * MS
"""How long a gripper is given to let go, ns."""


def usual_reset(robot: RobotSpec) -> str:
    """A simulated task has a scene; another robot has somebody beside it."""
    return "scene" if TIME_LEFT in robot.sensors else "operator"


def from_scene(robot: RobotClient) -> Prepare:
    """The scene goes to the saved initial state of that number."""

    def prepare(number: int) -> None:
        robot.reset_scene(number)

    return prepare


def from_home(robot: RobotClient) -> Prepare:
    """The gripper opens where it is, then the arm goes to rest."""

    def prepare(_: int) -> None:
        robot.arm()
        with robot.lease("script"):
            if robot.spec.gripper:
                _let_go(robot)
            robot.home()

    return prepare


def from_operator(robot: RobotClient, await_ready: Ready) -> Prepare:
    """As `from_home`; then somebody prepares the scene, with the arm disarmed, and says so."""
    go_home = from_home(robot)

    def prepare(number: int) -> None:
        go_home(number)
        robot.disarm()
        await_ready(number)

    return prepare


def by_enter(keyboard: Keyboard, stop: Callable[[], bool]) -> Ready:
    """Somebody at the terminal presses Enter."""

    def await_ready(number: int) -> None:
        print(f"episode {number}: prepare the scene, then press Enter", flush=True)
        await_enter(keyboard, stop)

    return await_ready


def beginning(reset: str, robot: RobotClient, await_ready: Ready | None) -> Prepare:
    """What `reset`, one of `RESETS`, means; only `operator` needs somebody to be awaited."""
    if reset == "operator":
        assert await_ready is not None
        return from_operator(robot, await_ready)
    return from_scene(robot) if reset == "scene" else from_home(robot)


def _let_go(robot: RobotClient) -> None:
    clock = MonotonicClock()
    due = clock.now()
    end = due + _OPENING
    while due < end:
        robot.command("cartesian_delta", [0.0] * 6, gripper=1.0)
        # Three times within a lease.
        due += robot.lease_ms * MS // 3
        clock.sleep_until(due)
