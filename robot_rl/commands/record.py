"""Record episodes from a robot's server, started and ended by keys or by time.

States, commands, events and images are written unchanged, at their own rates. Recording does not disturb the
client that controls the robot. `robot-rl data derive` makes a dataset.
"""

import sys
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path

from robot_rl.cli.signals import stop_on_signal
from robot_rl.errors import UserError, as_user_errors
from robot_rl.hardware.protocol.endpoints import default_address, parse
from robot_rl.hardware.recording.recorder import RecorderError
from robot_rl.hardware.recording.recorder_process import RecorderProcess
from robot_rl.hardware.recording.records import OUTCOMES, Outcome
from robot_rl.hardware.teleop.terminal_keys import KeyReader
from robot_rl.robot.recording_session import HELP, record_by_keys, record_by_time, with_instruction


@dataclass
class Config:
    address: str = field(default_factory=default_address)
    """Address of the robot's server."""
    out: str = "data/robot.raw"
    """Folder of the recordings; new episodes are appended."""
    cameras: list[str] | None = None
    """Cameras to record; null for all cameras of the robot."""
    labels: dict[str, str] = field(default_factory=dict)
    """Labels stored with each episode: labels.operator=carl."""
    instruction: str | None = None
    """What the robot is asked to do: a label of each episode, which `data derive` makes its instruction."""
    seconds: float | None = None
    """Length of an episode in s; null to start and end it by keys."""
    episodes: int = 1
    """Number of episodes, with `seconds`."""
    outcome: str = "success"
    """Outcome of the episodes, with `seconds`: success, failure or discarded."""
    keys: str | None = None
    """File of this client's keys, from `robot-rl robot keys`; required for a robot on a network."""
    insecure: bool = False
    """Use a network without keys."""

    def __post_init__(self) -> None:
        self.labels = with_instruction(self.labels, self.instruction)
        if self.seconds is None and (self.episodes, self.outcome) != (1, "success"):
            raise ValueError("episodes=… and outcome=… are for seconds=…; else keys end an episode")
        if self.episodes < 1:
            raise ValueError(f"episodes={self.episodes}: ask for at least 1")
        if self.outcome not in OUTCOMES[:3]:
            raise ValueError(f"outcome={self.outcome}: choose {', '.join(OUTCOMES[:3])}")


def run(config: Config) -> None:
    with ExitStack() as ended:
        with as_user_errors():
            parse(config.address)
            if config.seconds is None and not sys.stdin.isatty():
                raise UserError(
                    "keys are read from a terminal, but standard input is not a terminal: give seconds=…"
                )
            recorder = ended.enter_context(_recorder(config))
        ready = recorder.ready
        print(f"{ready.robot}, cameras: {', '.join(ready.cameras) or 'none'}; {config.out}", flush=True)
        if ready.left_open:
            print(f"{ready.left_open} not committed: see `robot-rl data repair`", file=sys.stderr)
        stop = ended.enter_context(stop_on_signal())
        try:
            if config.seconds is not None:
                outcome: Outcome = config.outcome  # type: ignore[assignment]
                record_by_time(recorder, config.seconds, config.episodes, outcome, config.labels, _say, stop)
            else:
                keyboard = ended.enter_context(KeyReader())
                print(HELP, flush=True)
                record_by_keys(recorder, keyboard, config.labels, _say, _show, stop)
        except RecorderError as error:
            print(f"robot-rl: {error}", file=sys.stderr)
            raise SystemExit(1) from error
    if stop():
        raise KeyboardInterrupt


def _recorder(config: Config) -> RecorderProcess:
    try:
        return RecorderProcess(
            config.address,
            Path(config.out),
            cameras=config.cameras,
            keys=Path(config.keys) if config.keys else None,
            insecure=config.insecure,
        )
    except RecorderError as error:
        raise UserError(str(error)) from error


def _say(line: str) -> None:
    print(f"\r\033[K{line}" if sys.stdout.isatty() else line, flush=True)


def _show(line: str) -> None:
    print(f"\r\033[K{line}", end="", flush=True)
