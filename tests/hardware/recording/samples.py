"""Episodes whose every record tells which one it is, so that a reader knows what is missing."""

import time
import uuid

from robot_rl.hardware.protocol.arrays import Frame, encode_image
from robot_rl.hardware.protocol.codec import encode
from robot_rl.hardware.protocol.messages import Event, Mode, State
from robot_rl.hardware.recording.records import FORMAT, Footer, Header, Received
from robot_rl.hardware.recording.stream_counter import MESSAGE_STREAMS, StreamCounter
from tests.hardware.protocol.examples import SPEC

CAMERAS = ("front", "wrist")
STREAMS = ("state", "front", "state", "wrist", "state", "event")
"""Of one record after the other, again and again."""
STEP = 2_000_000
"""ns between two records."""
_SIDE = 64


def header(t: int = 10**12, cameras: tuple[str, ...] = CAMERAS, **labels: str) -> Header:
    return Header(
        format=FORMAT,
        episode=uuid.uuid4().hex,
        t=t,
        tw=time.time_ns(),
        session="session",
        boot_id="boot",
        spec=SPEC,
        cameras=cameras,
        labels=labels,
    )


def record(index: int, begun: int = 10**12) -> Received:
    """The record of this place in an episode."""
    stream = STREAMS[index % len(STREAMS)]
    number = 1 + sum(STREAMS[i % len(STREAMS)] == stream for i in range(index % len(STREAMS)))
    number += index // len(STREAMS) * STREAMS.count(stream)
    t = begun + (index + 1) * STEP
    envelope = {"src": "session", "seq": number, "tm": t}
    if stream == "state":
        frame = encode(
            State(
                **envelope, t_sample=t, q=(0.1, 0.2), dq=(0.0, 0.0), position=(0.1, 0.2, 0.3),
                quaternion=(0.0, 0.0, 0.0, 1.0), mode=Mode.ARMED,
            )
        )  # fmt: skip
    elif stream == "event":
        frame = encode(Event(**envelope, what="mode", text=f"event {number}"))
    else:
        pixels = bytes([number % 256]) * (3 * _SIDE * _SIDE)
        image = Frame(
            camera=stream, number=number, t_capture=t, t_capture_raw=0, t_recv=t, height=_SIDE, width=_SIDE,
            encoding="rgb8", dropped=0,
        )  # fmt: skip
        frame = encode_image(image, pixels)
    return Received(stream=stream, t=t, frame=memoryview(frame))


def counters(begun: int = 10**12, cameras: tuple[str, ...] = CAMERAS) -> dict[str, StreamCounter]:
    return {stream: StreamCounter(begun, 1) for stream in (*MESSAGE_STREAMS, *cameras)}


def footer(outcome: str = "success", **changes: object) -> Footer:
    fields: dict[str, object] = {"outcome": outcome, "t": 2 * 10**12, "tw": time.time_ns(), "counts": {}}
    return Footer(**{**fields, **changes})  # type: ignore[arg-type]
