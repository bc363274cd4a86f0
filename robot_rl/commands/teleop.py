"""Teleoperate a robot, and record it.

The device is a keyboard, a SpaceMouse, a gamepad, a leader arm or a page in a browser. task=… serves a
simulated task while this command runs. Nothing moves unless the clutch is engaged. Ctrl-C leaves the arm at
rest, holding its position.
"""

import shlex
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from robot_rl.cli.signals import Stop, stop_on_signal
from robot_rl.envs.instruction import INSTRUCTION, encode_instruction
from robot_rl.envs.task import TaskConfig
from robot_rl.errors import UserError, as_user_errors
from robot_rl.hardware.client import RobotClient
from robot_rl.hardware.clock import MonotonicClock
from robot_rl.hardware.connection import RobotError
from robot_rl.hardware.protocol.endpoints import default_address
from robot_rl.hardware.protocol.security import load_own_keys
from robot_rl.hardware.realtime import COMMANDS, realtime_priority
from robot_rl.hardware.recording.raw import RawDataset
from robot_rl.hardware.recording.recorder import RecorderError
from robot_rl.hardware.recording.recorder_process import RecorderProcess
from robot_rl.hardware.teleop.device import Device, DeviceError
from robot_rl.hardware.teleop.devices import DEVICES, make_device
from robot_rl.hardware.teleop.motion import Speed
from robot_rl.hardware.teleop.operator_display import OperatorDisplay
from robot_rl.hardware.teleop.stream import RecordedDevice
from robot_rl.hardware.teleop.teleoperator import Teleoperator
from robot_rl.robot.recording_session import KeyedRecorder, with_instruction
from robot_rl.robot.teleop.episodes import BackgroundRecorder, TeleopEpisodes
from robot_rl.robot.teleop.screen import TerminalScreen, operator_card, task_words
from robot_rl.robot.teleop.session import TeleopSession
from robot_rl.robot.teleop.simulated import simulated_server

GROUPS = {"task": {"*": TaskConfig}, "device": DEVICES}
_TIMEOUT = 2.0
"""s to wait for an answer before the connection counts as lost."""


@dataclass
class Config:
    task: Any = None
    """Simulated task to serve and to teleoperate; null for the robot at `address`."""
    device: Any = None
    """Input device."""
    address: str | None = None
    """Address of a running server; null for the default, or for the server of `task`."""
    out: str | None = None
    """Folder of the recordings; new episodes are appended. null: nothing is recorded."""
    cameras: list[str] | None = None
    """Cameras to record; null for all cameras of the robot."""
    labels: dict[str, str] = field(default_factory=dict)
    """Labels stored with each episode: labels.operator=carl."""
    instruction: str | None = None
    """What the robot is asked to do: a label of each episode, which `data derive` makes its instruction."""
    instructions: list[str] = field(default_factory=list)
    """Several of these, for successive episodes in turns; n goes on to the next. Screen and page show the
    current one; that of a discarded episode is asked again."""
    speed: float = 0.2
    """Speed of the tool at full deflection in m/s, within the robot's limits."""
    turn: float = 0.8
    """Angular speed at full deflection in rad/s."""
    record_device: str | None = None
    """File to record the device's input to, for device=replay."""
    keys: str | None = None
    """File of this client's keys, from `robot-rl robot keys`; required for a robot on a network."""
    insecure: bool = False
    """Use a network without keys."""

    def __post_init__(self) -> None:
        if self.instruction is not None and self.instructions:
            raise ValueError("instruction=… is one for all episodes, instructions=[…] are several: give one")
        if self.instructions and (INSTRUCTION in self.labels or self.out is None):
            raise ValueError(
                "instructions=[…] are labels of recordings: give out=…, and no labels.instruction"
            )
        for text in self.instructions:
            encode_instruction(text)
        self.labels = with_instruction(self.labels, self.instruction)
        if self.out is None and (self.labels or self.cameras is not None):
            raise ValueError("instruction=…, labels and cameras=… are of recordings: give out=…")
        if self.task is not None and self.address is not None:
            raise ValueError(
                "task=… starts its own server, address=… is that of a running one: give one of them"
            )
        Speed(self.speed, self.turn)


def run(config: Config) -> None:
    with ExitStack() as ended:
        with as_user_errors(), _startup_errors():
            address = config.address or default_address()
            if config.task is not None:
                address = ended.enter_context(simulated_server(config.task))
            keys = load_own_keys(config.keys)
            display = OperatorDisplay(address, keys, config.insecure)
            robot = ended.enter_context(_connect(display))
            screen = TerminalScreen(display.say)
            recording, first = _recording(config, address, screen, ended)
            device = ended.enter_context(_device(config, display, screen))
            episodes = TeleopEpisodes(robot, recording, first, screen.say)
            speed = Speed(config.speed, config.turn)
            print(operator_card(robot.spec, address, device, speed, _recorded(config)), flush=True)
            episodes.prepare()
        if recording:
            ended.enter_context(recording)
        ended.enter_context(screen)
        stop = ended.enter_context(stop_on_signal())
        teleoperator = Teleoperator(robot.spec, speed)
        session = TeleopSession(robot, device, teleoperator, episodes, screen, display, MonotonicClock())
        why = _drive(session, stop)
    print("the arm is at rest and held" if not why else f"robot-rl: {why}", file=sys.stderr)
    _say_what_next(config)
    if why:
        raise SystemExit(1)
    if stop():
        raise KeyboardInterrupt


def _drive(session: TeleopSession, stop: Stop) -> str:
    try:
        with realtime_priority(COMMANDS):
            return session.run(stop)
    except RobotError as error:
        return str(error)


def _connect(at: OperatorDisplay) -> RobotClient:
    return RobotClient(at.address, "teleop", "operator", keys=at.keys, insecure=at.insecure, timeout=_TIMEOUT)


def _device(config: Config, display: OperatorDisplay, screen: TerminalScreen) -> Device:
    device = make_device(config.device, display)
    return RecordedDevice(device, Path(config.record_device), screen.say) if config.record_device else device


def _recording(
    config: Config, address: str, screen: TerminalScreen, ended: ExitStack
) -> tuple[BackgroundRecorder | None, int]:
    """The recorder, and the number of existing episodes."""
    if config.out is None:
        return None, 0
    recorder = RecorderProcess(
        address,
        Path(config.out),
        cameras=config.cameras,
        keys=Path(config.keys) if config.keys else None,
        insecure=config.insecure,
    )
    ended.enter_context(recorder)
    labels = {"device": _name(config), **config.labels}
    before = RawDataset(Path(config.out))
    kept = before.count("success", "failure")
    keyed = KeyedRecorder(recorder, labels, screen.say, config.instructions, kept)
    return BackgroundRecorder(keyed), len(before.episodes)


def _name(config: Config) -> str:
    return next(name for name, kind in DEVICES.items() if type(config.device) is kind)


def _recorded(config: Config) -> str:
    if config.out is None:
        return "Nothing is recorded; out=data/x.raw says where to."
    return f"Recorded in {config.out}, an episode from b to s, f or d."


def _say_what_next(config: Config) -> None:
    if config.out is not None and (count := len(RawDataset(Path(config.out)).episodes)):
        dataset = Path(config.out).with_suffix(".zarr")
        kind = task_words(config.task) if config.task is not None else [f"name={dataset.stem}"]
        words = [f"raw={config.out}", f"out={dataset}", *kind]
        print(f"{config.out} has {count} {'episode' if count == 1 else 'episodes'}; a dataset of them:")
        print(f"  robot-rl data derive {shlex.join(words)}")


@contextmanager
def _startup_errors() -> Iterator[None]:
    """Turns errors before any motion into UserErrors."""
    try:
        yield
    except (RobotError, RecorderError, DeviceError) as error:
        raise UserError(str(error)) from error
