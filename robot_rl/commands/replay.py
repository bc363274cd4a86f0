"""Replay a recorded episode in simulation, or slowly on its robot.

In simulation the first saved state is restored, the recorded actions are applied, and the states compared
with the saved ones. With an address the arm moves to the episode's start and follows its measured joints,
with all limits active; the tracking error is printed at the end. Ctrl-C brings the arm to rest.
"""

import sys
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from pathlib import Path

from robot_rl.cli.progress import progress
from robot_rl.cli.signals import stop_on_signal
from robot_rl.data.dataset import Dataset
from robot_rl.data.playback import play, playback_env
from robot_rl.data.replay_on_robot import approach_seconds, motion_of, report_lines, retrace
from robot_rl.errors import UserError, as_user_errors
from robot_rl.hardware.client import RobotClient
from robot_rl.hardware.connection import RobotError
from robot_rl.hardware.protocol.messages import Mode
from robot_rl.hardware.protocol.security import load_own_keys
from robot_rl.robot.consent import ask_consent


@dataclass
class Config:
    dataset: str = "???"
    """Dataset of the episode."""
    episode: int = 0
    """Number of the episode."""
    address: str | None = None
    """Address of the robot's server; null for simulation."""
    speed: float = 0.5
    """Speed on the robot relative to the recording, at most 1."""
    yes: bool = False
    """Move the arm without asking."""
    accept: list[str] = field(default_factory=list)
    """Accepted differences, by name: of the environment, or [robot]."""
    keys: str | None = None
    """File of this client's keys, from `robot-rl robot keys`; required for a robot on a network."""
    insecure: bool = False
    """Use a network without keys."""

    def __post_init__(self) -> None:
        if not 0 < self.speed <= 1:
            raise ValueError(f"speed={self.speed:g}: choose it above 0 and at most 1")


def run(config: Config) -> None:
    with as_user_errors():
        dataset = Dataset(Path(config.dataset))
        if not 0 <= config.episode < dataset.num_episodes:
            has = f"0 to {dataset.num_episodes - 1}" if dataset.num_episodes else "none"
            raise UserError(f"episode={config.episode}: the episodes of {config.dataset} are {has}")
    if config.address is None:
        _in_simulation(config, dataset)
    else:
        _on_robot(config, config.address, dataset)


def _in_simulation(config: Config, dataset: Dataset) -> None:
    with as_user_errors():
        env = playback_env(dataset, config.accept)
        rows = dataset.episodes[config.episode]
        with progress(rows.stop - rows.start, "replay", "steps") as show:
            playback = play(dataset, env, config.episode, show.update)
    env.close()
    print(f"episode {config.episode}: {playback.steps} steps from its first saved state")
    print(f"{'':<30}{'farthest':>12}{'in step':>9}{'at the end':>12}")
    for name, one in playback.deviations.items():
        print(f"{name:<30}{one.farthest:>12.3g}{one.step:>9}{one.last:>12.3g}  {one.unit}")
    now, then = ("success" if won else "no success" for won in (playback.success, playback.recorded))
    same = "the same to the bit" if playback.exact else "not the same to the bit"
    print(f"{same}; {now}, as recorded" if now == then else f"{same}; {now}, and {then} was recorded")


def _on_robot(config: Config, address: str, dataset: Dataset) -> None:
    with ExitStack() as ended:
        with as_user_errors():
            keys = load_own_keys(config.keys)
            robot = RobotClient(address, "replay", "policy", keys=keys, insecure=config.insecure, timeout=5.0)
            try:
                ended.enter_context(robot)
                start = robot.sample()
                motion = motion_of(dataset, config.episode, robot.spec, config.accept)
                if start.mode not in (Mode.IDLE, Mode.ARMED):
                    raise UserError(f"the robot is in mode {start.mode}: it must be idle or armed")
                _ask(config, robot.spec.name, motion.seconds, approach_seconds(motion, start, robot.spec))
                stop = ended.enter_context(stop_on_signal())
                if start.mode is Mode.IDLE:
                    robot.arm()
            except RobotError as error:
                raise UserError(f"{address}: {error}") from error
        try:
            traced = retrace(robot, motion, config.speed, stop)
        except RobotError as error:
            print(f"robot-rl: {address}: {error}", file=sys.stderr)
            raise SystemExit(1) from error
        finally:
            if start.mode is Mode.IDLE:
                # Keep the original error; without a lease the arm stops by itself.
                with suppress(RobotError):
                    robot.disarm()
        print("\n".join(report_lines(traced, robot.spec)))
        if not traced.complete:
            print("stopped; the arm is at rest", file=sys.stderr)
            raise KeyboardInterrupt


def _ask(config: Config, name: str, seconds: float, approach: float) -> None:
    lasts = seconds / config.speed
    ask_consent(
        f"{name} will go to the start of episode {config.episode} within {approach:.1f} s, then follow it at "
        f"{config.speed:g} of its speed for {lasts:.1f} s.",
        given=config.yes,
        option="yes",
    )
