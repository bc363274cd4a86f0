"""Swing an axis of an arm, and keep what was sent and what was seen, with its times."""

import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from robot_rl.hardware.cameras.compression import image_of
from robot_rl.hardware.client import CommandRefused, RobotClient
from robot_rl.hardware.clock import MonotonicClock
from robot_rl.hardware.connection import NoAnswer, RobotError
from robot_rl.hardware.latency.correlation import SPAN
from robot_rl.hardware.latency.image_motion import ImageSample, downsample
from robot_rl.hardware.latency.swing import Axis, Swing
from robot_rl.hardware.protocol.arrays import decode_image
from robot_rl.hardware.protocol.codec import decode_server
from robot_rl.hardware.protocol.listener import Listener
from robot_rl.hardware.protocol.messages import Ack, ServerMessage, State
from robot_rl.hardware.protocol.sockets import ClientSockets

RATE = 25.0
"""Commands per second, on average: about as many as policies give, as an arm takes longer for wider steps."""
_REST = SPAN[1] + 0.1
"""s of rest before and after the swing: what comes late still belongs to it."""
_PATIENCE = 10.0
"""s until a camera that shows nothing is given up."""


@dataclass(frozen=True)
class Sent:
    """A command. Times are ns on the server's clock, as all here."""

    t_sent: int
    goal: float
    """Of the axis."""
    t_applied: int
    t_answered: int


@dataclass(frozen=True)
class Received:
    """A state, and when it was there."""

    state: State
    t: int


@dataclass(frozen=True)
class Recording:
    """All of one swing."""

    axis: Axis
    sent: Sequence[Sent]
    states: Sequence[Received]
    images_seen: Mapping[str, Sequence[ImageSample]]
    """By camera."""


def record(
    client: RobotClient, sockets: ClientSockets, axis: Axis, swing: Swing, cameras: Sequence[str]
) -> Recording:
    """Swing the armed arm under a lease and bring it back.

    Args:
        client: that may command.
        sockets: of the same server.
        axis: what is swung.
        swing: how.
        cameras: whose images are looked at.

    Raises:
        RobotError: a camera shows nothing, the arm is held back by a limit or taken away, or there is no
            answer.
    """
    clock = MonotonicClock()
    with ExitStack() as ended:
        states = Listener(sockets, sockets.state(every=True), _received, None, clock)
        ended.callback(states.close)
        eyes = {
            camera: Listener(sockets, sockets.image(camera, every=True), _sighted, None, clock)
            for camera in cameras
        }
        for eye in eyes.values():
            ended.callback(eye.close)
        if not states.wait(0, _PATIENCE):
            raise NoAnswer("no state comes; see whether the server runs")
        for camera, eye in eyes.items():
            if not eye.wait(0, _PATIENCE):
                raise NoAnswer(f"camera {camera}: no image came within {_PATIENCE:g} s")
        sent = _swing(client, axis, swing)
        # What was measured last is still on its way.
        states.wait(states.kept()[0] + 2, 1.0)
        heard, seen = states.kept()[1], {camera: eye.kept()[1] for camera, eye in eyes.items()}
    on_server = client.to_server
    return Recording(
        axis,
        sent,
        [Received(state, on_server(t)) for t, state in heard if isinstance(state, State) and state.t_sample],
        {
            camera: [ImageSample(t_capture, on_server(t), picture) for t_capture, t, picture in found]
            for camera, found in seen.items()
        },
    )


def _swing(client: RobotClient, axis: Axis, swing: Swing) -> list[Sent]:
    start = client.sample()
    rng = np.random.default_rng(0)
    sent = []
    with client.lease("script"):
        begun = time.monotonic()
        due = begun
        while (passed := time.monotonic() - begun) < swing.seconds + 2 * _REST:
            goal = axis.goal(start, swing(passed - _REST))
            t_sent = client.server_time()
            try:
                ack: Ack = client.command(axis.mode, goal)
            except CommandRefused as refusal:
                raise RobotError(f"the arm was stopped in its swing: {refusal.reason}") from refusal
            if ack.clipped:
                raise RobotError(
                    f"{', '.join(ack.clipped)} holds the arm back: bring it to where {axis.name} can swing "
                    f"by {swing.amplitude:.3f} {axis.unit}, or choose another joint"
                )
            sent.append(Sent(t_sent, goal[axis.index], ack.t_applied, client.server_time()))
            # Not in step with the ticks, or all commands would come at the same phase of one.
            due = max(due + rng.uniform(0.5, 1.5) / RATE, time.monotonic())
            time.sleep(max(0.0, due - time.monotonic()))
    return sent


def _received(t: int, message: memoryview) -> tuple[int, ServerMessage]:
    return t, decode_server(message)


def _sighted(t: int, message: memoryview) -> tuple[int, int, NDArray[np.float32]]:
    frame, payload = decode_image(message)
    return frame.t_capture, t, downsample(image_of(frame, payload))
