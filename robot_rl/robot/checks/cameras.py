"""Checks that each camera of a robot publishes images at the right rate, age and completeness."""

from collections.abc import Iterator, Sequence

import numpy as np

from robot_rl.hardware.clock import MS
from robot_rl.hardware.protocol.arrays import Frame
from robot_rl.hardware.protocol.messages import Event
from robot_rl.hardware.spec import CameraSpec, RobotSpec
from robot_rl.robot.checks.installation import Check
from robot_rl.robot.checks.observation import ServerObservation, count_missing

RATE = 0.8
"""Fraction of a camera's rate below which it is slow, as in the server's monitoring."""
LOST = 0.01
"""Largest fraction of lost images."""
AGE = 5.0
"""Largest age of an image at arrival, periods."""
SILENT = 1.0
"""Longest time without an image, s."""
LATELY = 60.0
"""Time within which a camera should not have been restarted, s."""


def camera_checks(spec: RobotSpec, seen: ServerObservation) -> Iterator[Check]:
    """Check each camera."""
    for camera in spec.cameras:
        events = [event for event in seen.events if is_about(event, camera.name)]
        yield check_camera(camera, seen.images[camera.name], events, seen)


def is_about(event: Event, camera: str) -> bool:
    """Whether an event is about this camera."""
    return event.what.startswith("camera_") and event.text.startswith(f"{camera}: ")


def check_camera(
    camera: CameraSpec, images: Sequence[tuple[int, Frame]], events: Sequence[Event], seen: ServerObservation
) -> Check:
    """Check rate, losses, age and restarts of a camera.

    Args:
        camera: its specification.
        images: arrival times on the server's clock [ns], and images.
        events: the server's events about it.
        seen: the observation.
    """
    name = f"camera {camera.name}"
    said = f"; the server reports: {_reason(events[-1])}" if events else ""
    if len(images) < 2:
        detail = f"{len(images)} images in {seen.seconds:.1f} s of {camera.rate:g} a second{said}"
        return Check(name, False, detail, "check its cable and serial number; then restart the server")
    frames = [frame for _, frame in images]
    rate = (len(frames) - 1) / ((images[-1][0] - images[0][0]) * 1e-9)
    missing = count_missing([frame.number for frame in frames])
    age = float(np.median([received - frame.t_capture for received, frame in images])) / MS
    detail = f"{rate:.1f} images a second of {camera.rate:g}, {missing} lost, {age:.0f} ms old"
    silent = (seen.ended - images[-1][0]) * 1e-9
    if silent > max(SILENT, AGE / camera.rate):
        fix = "check its cable; a failed camera stays off until the server is restarted"
        return Check(name, False, f"{detail}, and then none for {silent:.1f} s{said}", fix)
    recent = [
        event for event in events if event.what == "camera_down" and seen.ended - event.tm < LATELY * 1e9
    ]
    if recent:
        detail += f"; down {len(recent)} times in {LATELY:g} s: {_reason(recent[-1])}"
        return Check(name, False, detail, "check its cable and power, or replace it")
    if rate < RATE * camera.rate:
        fix = "another USB port or cable, more light, or a lower rate"
        return Check(name, False, f"{detail}{said}", fix)
    fix = "set encoding: jpeg, use a lower rate, or a wired network instead of Wi-Fi"
    good = missing <= LOST * (missing + len(frames)) and age <= AGE * 1e3 / camera.rate
    return Check(name, good, detail, fix)


def _reason(event: Event) -> str:
    return event.text.partition(": ")[2]
