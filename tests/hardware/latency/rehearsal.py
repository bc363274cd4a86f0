"""A swing of a small arm without a network, in stepped time, with delays that are known."""

import heapq
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.ndimage import gaussian_filter, shift

from robot_rl.hardware.clock import MS, SteppedClock
from robot_rl.hardware.core.core import CoreSettings, RobotCore
from robot_rl.hardware.core.lease import Peer
from robot_rl.hardware.latency.image_motion import ImageSample, downsample
from robot_rl.hardware.latency.recording import RATE, Received, Recording, Sent
from robot_rl.hardware.latency.swing import Axis, Swing, find_axis
from robot_rl.hardware.protocol import messages as m
from robot_rl.hardware.protocol.codec import Stamper
from tests.hardware.core.small_arm import PERIOD
from tests.hardware.latency.late_arm import LateSmallArm

SECONDS = 6.0
REST = 700 * MS
FRAME = 33 * MS
TEXTURE = gaussian_filter(np.random.default_rng(1).random((60, 80)), 3) * 2000
PIXELS = 60.0
"""By which the picture moves per radian."""


@dataclass(frozen=True)
class Delays:
    """ms; the arm's in whole ticks."""

    arm: int = 0
    up: float = 0.0
    """From a client to the server."""
    down: float = 0.0
    """Back, for answers, states and images."""
    stamp: float = 0.0
    """From the scene to an image's time stamp."""


def picture(angle: float, rng: np.random.Generator) -> NDArray[np.float32]:
    """What a camera sees that turns with the joint, with noise."""
    moved = shift(TEXTURE, (0.2 * PIXELS * angle, PIXELS * angle), order=1, mode="nearest")
    return downsample(moved + rng.normal(0, 5, TEXTURE.shape))


def rehearse(delays: Delays) -> Recording:
    """Record a swing of the first joint."""
    clock = SteppedClock()
    rng = np.random.default_rng(3)
    arm = LateSmallArm(clock, "joint")
    arm.late, arm.time = delays.arm * MS, clock
    core = RobotCore(arm, CoreSettings(lease_ms=1000), clock, "session")
    axis: Axis = find_axis(arm.spec)
    swing = Swing(axis, SECONDS)
    peer, stamp = Peer("me", "operator", "src"), Stamper("src", clock)
    up, down, stamp_late = (round(ms * MS) for ms in (delays.up, delays.down, delays.stamp))
    sent: list[Sent] = []
    states: list[Received] = []
    images_seen: list[ImageSample] = []
    core.open()
    start = core.tick()
    core.handle(peer, stamp(m.Arm, spec_sha256=arm.spec.sha256))
    lease = core.handle(peer, stamp(m.AcquireLease, kind="script"))
    assert isinstance(lease, m.Done), lease
    start = core.tick()
    begun = clock.now() + REST
    end = begun + round(SECONDS * 1e9) + REST
    # What happens next, in the order of its time; the number keeps two of one time apart.
    due: list[tuple[int, int, Callable[[], None]]] = []

    def at(t: int, what: Callable[[], None]) -> None:
        heapq.heappush(due, (t, len(due) + rng.integers(1 << 40), what))

    def tick() -> None:
        state = core.tick()
        states.append(Received(state, state.tm + down))
        at(clock.now() + PERIOD, tick)

    def command() -> None:
        goal = axis.goal(start, swing((clock.now() - begun) * 1e-9))
        request = stamp(
            m.Command, lease=lease.lease, mode=axis.mode, data=tuple(goal), t_sent=clock.now(), ttl_ms=1000
        )
        at(clock.now() + up, lambda: arrive(request, goal[axis.index]))
        at(clock.now() + round(rng.uniform(0.5, 1.5) * 1e9 / RATE), command)

    def arrive(request: m.Command, goal: float) -> None:
        ack = core.handle(peer, request)
        assert isinstance(ack, m.Ack), ack
        sent.append(Sent(request.t_sent, goal, ack.t_applied, clock.now() + down))

    def look_on() -> None:
        t = clock.now() + stamp_late
        arm.settle()
        angle = float(arm.q[axis.index])
        images_seen.append(ImageSample(t, t + down, picture(angle, rng)))
        at(clock.now() + FRAME, look_on)

    at(clock.now() + PERIOD, tick)
    at(clock.now() + 3 * MS, command)
    at(clock.now() + 5 * MS, look_on)
    while due[0][0] < end:
        t, _, what = heapq.heappop(due)
        clock.sleep_until(t)
        what()
    return Recording(axis, sent, states, {"wrist": images_seen})
