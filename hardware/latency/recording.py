"""Swings an axis of an arm and records commands, states and images with their times."""

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
"""Average commands per second: about a policy's rate, as the arm's lag depends on the step width."""
_REST = SPAN[1] + 0.1
"""Rest before and after the swing, s, so that delayed effects are recorded."""
_FIRST_MESSAGE_TIMEOUT = 10.0
"""Time limit for the first state and the first image of each camera, s."""


@dataclass(frozen=True)
class Sent:
    """A command. All times in this module are ns on the server's clock."""

    t_sent: int
    goal: float
    """Goal of the axis."""
    t_applied: int
    t_answered: int


@dataclass(frozen=True)
class Received:
    """A state and its arrival time."""

    state: State
    t: int


@dataclass(frozen=True)
class Recording:
    """Recording of one swing."""

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
        client: client with a role that may command.
        sockets: sockets of the same server.
        axis: axis to swing.
        swing: motion of the axis.
        cameras: cameras whose images are recorded.

    Raises:
        RobotError: if a camera sends no images, a limit holds the arm back, the lease is lost, or there is no
            answer.
    """
    clock = MonotonicClock()
    with ExitStack() as stack:
        states = Listener(sockets, sockets.state(every=True), _received, None, clock)
        stack.callback(states.close)
        images = {
            camera: Listener(sockets, sockets.image(camera, every=True), _image_received, None, clock)
            for camera in cameras
        }
        for listener in images.values():
            stack.callback(listener.close)
        if not states.wait(0, _FIRST_MESSAGE_TIMEOUT):
            raise NoAnswer("no state arrives; check that the server runs")
        for camera, listener in images.items():
            if not listener.wait(0, _FIRST_MESSAGE_TIMEOUT):
                raise NoAnswer(f"camera {camera}: no image arrived within {_FIRST_MESSAGE_TIMEOUT:g} s")
        sent = _swing(client, axis, swing)
        # Wait for the last measurements.
        states.wait(states.kept()[0] + 2, 1.0)
        received = states.kept()[1]
        seen = {camera: listener.kept()[1] for camera, listener in images.items()}
    on_server = client.to_server
    return Recording(
        axis,
        sent,
        [
            Received(state, on_server(t))
            for t, state in received
            if isinstance(state, State) and state.t_sample
        ],
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
            # Random intervals, or all commands would come at the same phase of a tick.
            due = max(due + rng.uniform(0.5, 1.5) / RATE, time.monotonic())
            time.sleep(max(0.0, due - time.monotonic()))
    return sent


def _received(t: int, message: memoryview) -> tuple[int, ServerMessage]:
    return t, decode_server(message)


def _image_received(t: int, message: memoryview) -> tuple[int, int, NDArray[np.float32]]:
    frame, payload = decode_image(message)
    return frame.t_capture, t, downsample(image_of(frame, payload))
