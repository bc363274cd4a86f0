"""Whether each camera of a robot gives the images that it should."""

from collections.abc import Iterator, Sequence

import numpy as np

from robot_rl.hardware.clock import MS
from robot_rl.hardware.protocol.arrays import Frame
from robot_rl.hardware.protocol.messages import Event
from robot_rl.hardware.spec import CameraSpec, RobotSpec
from robot_rl.robot.checks.installation import Check
from robot_rl.robot.checks.observation import ServerObservation, count_missing

RATE = 0.8
"""Part of a camera's rate below which it is slow, as for the server's own watch."""
LOST = 0.01
"""Part of its images that may be lost."""
AGE = 5.0
"""Periods that an image may be old when it arrives."""
SILENT = 1.0
"""Time without any, s."""
LATELY = 60.0
"""Time within which a camera should not have been started anew, s."""


def camera_checks(spec: RobotSpec, seen: ServerObservation) -> Iterator[Check]:
    """One for each camera."""
    for camera in spec.cameras:
        told = [event for event in seen.events if is_about(event, camera.name)]
        yield check_camera(camera, seen.images[camera.name], told, seen)


def is_about(event: Event, camera: str) -> bool:
    """Whether an event is one of this camera."""
    return event.what.startswith("camera_") and event.text.startswith(f"{camera}: ")


def check_camera(
    camera: CameraSpec, images: Sequence[tuple[int, Frame]], told: Sequence[Event], seen: ServerObservation
) -> Check:
    """New images come, often enough, all of them, and soon; and the server did not have to start it anew.

    Args:
        camera: what it should be.
        images: with the time of their arrival on the server's clock, ns.
        told: what the server has said of it.
        seen: when was looked.
    """
    name = f"camera {camera.name}"
    said = f"; the server says: {_reason(told[-1])}" if told else ""
    if len(images) < 2:
        detail = f"{len(images)} images in {seen.seconds:.1f} s of {camera.rate:g} a second{said}"
        return Check(name, False, detail, "see its cable and serial number; then start the server anew")
    frames = [frame for _, frame in images]
    rate = (len(frames) - 1) / ((images[-1][0] - images[0][0]) * 1e-9)
    missing = count_missing([frame.number for frame in frames])
    age = float(np.median([received - frame.t_capture for received, frame in images])) / MS
    detail = f"{rate:.1f} images a second of {camera.rate:g}, {missing} lost, {age:.0f} ms old"
    silent = (seen.ended - images[-1][0]) * 1e-9
    if silent > max(SILENT, AGE / camera.rate):
        fix = "see its cable; a camera that has failed stays off until the server is started anew"
        return Check(name, False, f"{detail}, and then none for {silent:.1f} s{said}", fix)
    lately = [event for event in told if event.what == "camera_down" and seen.ended - event.tm < LATELY * 1e9]
    if lately:
        detail += f"; down {len(lately)} times in {LATELY:g} s: {_reason(lately[-1])}"
        return Check(name, False, detail, "see its cable and its power, or take another one")
    if rate < RATE * camera.rate:
        fix = "another USB port or cable, more light, or fewer images a second"
        return Check(name, False, f"{detail}{said}", fix)
    fix = "write encoding: jpeg, ask for fewer images a second, or take a wire in place of Wi-Fi"
    good = missing <= LOST * (missing + len(frames)) and age <= AGE * 1e3 / camera.rate
    return Check(name, good, detail, fix)


def _reason(event: Event) -> str:
    return event.text.partition(": ")[2]
