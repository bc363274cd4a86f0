"""Recordings of a robot whose motion is a known function of time, made without a robot."""

import math
import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from robot_rl.hardware.cameras.compression import compress
from robot_rl.hardware.core import rotation
from robot_rl.hardware.protocol.arrays import Encoding, Frame, encode_image
from robot_rl.hardware.protocol.codec import encode
from robot_rl.hardware.protocol.messages import Code, Commanded, Gripped, Message, Mode, State
from robot_rl.hardware.recording.raw import RawWriter
from robot_rl.hardware.recording.records import FORMAT, Footer, Header, Outcome, Received
from robot_rl.hardware.spec import CameraSpec, Latency, RobotSpec
from tests.hardware.protocol.examples import SPEC

SECOND = 1_000_000_000
_COMMANDED = (Mode.HUMAN, Mode.POLICY)
BEGUN = 5_000 * SECOND
HEIGHT, WIDTH = 24, 32
ROBOT: RobotSpec = msgspec.structs.replace(
    SPEC,
    modes=("joint_position", "cartesian_pose", "cartesian_delta"),
    cameras=tuple(
        CameraSpec(name=name, serial=name, width=WIDTH, height=HEIGHT, rate=30.0)
        for name in ("front", "wrist")
    ),
    calibration={"hand_quaternion_at_home": (0.0, 0.0, 0.0, 1.0)},
    sensors={"cube": 7, "success": 1},
)


def joints(t: float) -> tuple[float, ...]:
    """rad at t s after the beginning."""
    return 0.1 + 0.05 * t, -0.2 * t


def position(t: float) -> tuple[float, ...]:
    return 0.3 + 0.1 * t, 0.2 - 0.05 * t, 0.25


def quaternion(t: float) -> tuple[float, ...]:
    return rotation.exponential((0.0, 0.0, 0.4 * t))


def opening(t: float) -> float:
    return max(0.0, 1.0 - t / 2)


def number_in(image: np.ndarray) -> int:
    """Which image of its camera it is."""
    return round(float(image.mean()))


@dataclass
class Motion:
    """What is recorded. All times are s from the beginning."""

    seconds: float = 2.0
    state_rate: float = 100.0
    image_rate: float = 30.0
    command_rate: float = 20.0
    kind: str = "cartesian_pose"
    goal: Callable[[float], Sequence[float]] = lambda t: (*position(t + 0.1), *quaternion(t + 0.1))
    """What is commanded at t."""
    applied: Callable[[Sequence[float]], Sequence[float]] = lambda data: data
    gripper: Callable[[float], float | None] = lambda t: 0.0 if t > 1 else None
    unread: Callable[[float], float] = lambda t: 0.004
    """Age of the gripper's reading at t, s."""
    mode: Callable[[float], Mode] = lambda t: Mode.HUMAN
    refused: Callable[[float], Code | None] = lambda t: None
    lost: Callable[[str, float], bool] = lambda stream, t: False
    cameras: tuple[str, ...] = ("front", "wrist")
    widths: dict[str, int] = field(default_factory=dict)
    """Widths of images by camera that are not `WIDTH`."""
    encoding: Encoding = "rgb8"
    latency: Latency | None = None
    outcome: Outcome = "success"
    labels: dict[str, str] = field(default_factory=dict)
    jitter: float = 0.002
    """Farthest that a state is from its time, s."""


def record(root: Path, *motions: Motion, robot: RobotSpec = ROBOT) -> Path:
    """Add an episode for each."""
    with RawWriter(root) as writer:
        for number, motion in enumerate(motions):
            _record(writer, motion, robot, number)
    return root


def _record(writer: RawWriter, motion: Motion, robot: RobotSpec, seed: int) -> None:
    rng = np.random.default_rng(seed)
    header = Header(
        format=FORMAT, episode=uuid.UUID(int=seed).hex, t=BEGUN, tw=1, session="s", boot_id="b", spec=robot,
        latency=motion.latency, cameras=motion.cameras, labels=motion.labels,
    )  # fmt: skip
    commands = _commands(motion)
    made = [((command.tm - BEGUN) / SECOND, "command", encode(command)) for command in commands]
    for number in range(round(motion.seconds * motion.state_rate)):
        t = number / motion.state_rate + rng.uniform(-motion.jitter, motion.jitter)
        made.append((t, "state", encode(_state(motion, number, t, commands))))
    for camera in motion.cameras:
        for number in range(round(motion.seconds * motion.image_rate)):
            t = number / motion.image_rate
            made.append((t, camera, _image(motion, camera, number, t)))
    episode = writer.begin(header)
    for t, stream, frame in sorted(made, key=lambda one: one[0]):
        if not motion.lost(stream, t):
            received = max(BEGUN, BEGUN + round(t * SECOND) + 3_000_000)
            assert episode.write(Received(stream=stream, t=received, frame=memoryview(frame)))
    writer.commit(
        episode,
        Footer(
            outcome=motion.outcome,
            t=BEGUN + round(motion.seconds * SECOND),
            tw=2,
            counts={},
            labels={"n": str(seed)},
        ),
    )


def _envelope(message: type[Message], number: int, t: float, /, **fields: Any) -> Any:
    return message(src="s", seq=number + 1, tm=BEGUN + round(t * SECOND), **fields)


def _commands(motion: Motion) -> list[Commanded]:
    made = []
    for number in range(round(motion.seconds * motion.command_rate)):
        t = number / motion.command_rate
        data, code = tuple(motion.goal(t)), motion.refused(t)
        followed: dict[str, Any] = {}
        if code is None:
            followed = {"applied": tuple(motion.applied(data)), "t_applied": BEGUN + round(t * SECOND)}
        made.append(
            _envelope(
                Commanded, number, t, who="carl", kind="human", command=number + 1, lease=1, mode=motion.kind,
                data=data, gripper=motion.gripper(t), t_sent=0, code=code, **followed,
            )
        )  # fmt: skip
    return made


def _state(motion: Motion, number: int, t: float, commands: list[Commanded]) -> State:
    mode = motion.mode(t)
    now = BEGUN + round(t * SECOND)
    followed = [command.command for command in commands if command.code is None and command.tm <= now]
    return _envelope(
        State, number, t, t_sample=now, q=joints(t), dq=(0.05, -0.2), position=position(t),
        quaternion=quaternion(t), mode=mode, goal_seq=followed[-1] if followed and mode in _COMMANDED else 0,
        gripper=Gripped(opening=opening(t), t=now - round(motion.unread(t) * SECOND), goal=0.25),
        sensors={"cube": (t,) * 7, "success": (0.0,)},
    )  # fmt: skip


def _image(motion: Motion, camera: str, number: int, t: float) -> bytes:
    width = motion.widths.get(camera, WIDTH)
    pixels = np.full((HEIGHT, width, 3), number % 256, np.uint8)
    frame = Frame(
        camera=camera, number=number, t_capture=BEGUN + round(t * SECOND), t_capture_raw=0, t_recv=1,
        height=HEIGHT, width=width, encoding=motion.encoding, dropped=0,
    )  # fmt: skip
    if motion.encoding == "jpeg":
        return encode_image(frame, compress(pixels, 95))
    if motion.encoding == "depth16":
        return encode_image(frame, np.zeros((HEIGHT, width), "<u2").data)
    return encode_image(frame, pixels.data)


def steps_of(seconds: float, rate: float) -> np.ndarray:
    return np.arange(math.floor(seconds * rate)) / rate
