"""Checks of a robot's server: clocks, round trips, control loop, states, mode, gripper, spec and cameras."""

from collections.abc import Iterator, Sequence

import numpy as np

from robot_rl.hardware.clock import MS
from robot_rl.hardware.gripper import LONGEST_CALL_S
from robot_rl.hardware.protocol.arrays import Frame
from robot_rl.hardware.protocol.clock_sync import Estimate, boot_id
from robot_rl.hardware.protocol.endpoints import Address
from robot_rl.hardware.protocol.messages import Event, Mode, State, Welcome
from robot_rl.hardware.spec import CameraSpec, RobotSpec
from robot_rl.robot.checks.installation import Check
from robot_rl.robot.checks.observation import Probe, ServerObservation, count_missing

WALL = 1000.0
"""Largest difference of wall clocks, ms; they are used only to compare logs."""
STEP = 50.0
"""Change of a wall clock during the observation that counts as a step, ms."""
BOUND = 10.0
"""Largest uncertainty of the server's clock, ms; commands from 20 ms ahead of it are refused."""
LOST = 0.01
"""Largest fraction of lost states or images."""
SLOW = 0.95
"""Fraction of the spec's rate below which states are too slow."""
SILENT = 1.0
"""Longest time without a state or an image, s."""
GRIPPER = 1000 * LONGEST_CALL_S
"""Largest age of the gripper's reading, ms."""
CAMERA_RATE = 0.8
"""Fraction of a camera's rate below which it is slow, as in the server's monitoring."""
IMAGE_AGE = 5.0
"""Largest age of an image at arrival, periods."""
LATELY = 60.0
"""Time within which a camera should not have been restarted, s."""


def server_checks(
    address: Address, welcome: Welcome, offset: Estimate, seen: ServerObservation
) -> Iterator[Check]:
    """Run all checks on an observation."""
    spec = welcome.spec
    yield check_spec_hash(welcome)
    yield check_clock(welcome, offset)
    yield check_wall_clock(seen.probes)
    yield check_round_trip(welcome.lease_ms, seen)
    yield check_states(spec, seen)
    if not seen.states:
        return
    received, newest = seen.states[-1]
    yield check_loop(spec, seen.states[0][1], newest)
    yield check_mode(address, newest)
    if spec.gripper:
        yield check_gripper(newest, received)


def check_spec_hash(welcome: Welcome) -> Check:
    """Check that both sides compute the same hash of the robot's spec."""
    ours, theirs = welcome.spec.sha256, welcome.spec_sha256
    if ours != theirs:
        detail = f"the server has {theirs[:12]}…, here it is {ours[:12]}…"
        return Check("spec", False, detail, "install the same version of robot-rl here and at the robot")
    return Check("spec", True, f"{welcome.spec.name}, {ours[:12]}…")


def check_clock(welcome: Welcome, offset: Estimate) -> Check:
    """Check the uncertainty of the server's clock."""
    if welcome.boot_id == boot_id() and offset.bound == 0:
        return Check("clock", True, "the server is on this machine: one clock")
    bound = offset.bound / MS
    ahead = f"{offset.offset / MS:.2f} ms ahead of this machine's, known to {bound:.2f} ms"
    fix = "a wired network instead of Wi-Fi, without other traffic"
    return Check("clock", bound <= BOUND, f"{ahead}, drift {offset.drift:.0f} ppm", fix)


def check_wall_clock(probes: Sequence[Probe]) -> Check:
    """Check that the wall clocks agree and are not being set."""
    if not probes:
        return Check("time of day", True, "no answers", known=False)
    apart = float(np.median([probe.wall for probe in probes])) / MS
    stepped = float(np.ptp([probe.apart for probe in probes])) / MS
    fix = "sudo timedatectl set-ntp true   (on both machines)"
    if stepped > STEP:
        return Check("time of day", False, f"the server's was set by {stepped:.0f} ms during the check", fix)
    detail = f"the server's is {apart:+.1f} ms from this machine's"
    return Check("time of day", abs(apart) <= WALL, detail, fix)


def check_round_trip(lease_ms: int, seen: ServerObservation) -> Check:
    """Check that round trips are well within the lease duration."""
    fix = "a wired network instead of Wi-Fi, fewer images, or a longer lease: robot-rl robot … lease_ms=…"
    asked = len(seen.probes) + seen.unanswered
    if not seen.probes:
        return Check("round trip", False, f"none of {asked} requests was answered", fix)
    p50, p99 = np.percentile([probe.round_trip / MS for probe in seen.probes], (50, 99))
    detail = f"{p50:.1f} ms p50, {p99:.1f} ms p99 of {asked}; the lease lasts {lease_ms} ms"
    if seen.unanswered:
        detail += f"; {seen.unanswered} without an answer"
    return Check("round trip", not seen.unanswered and p99 <= lease_ms / 2, detail, fix)


def check_states(spec: RobotSpec, seen: ServerObservation) -> Check:
    """Check that a state is published at every tick and that all arrive."""
    states = seen.states
    if len(states) < 2:
        detail = f"{len(states)} in {seen.seconds:.1f} s; there should be {spec.rate:g} a second"
        return Check("states", False, detail, "check that the firewall passes all seven ports")
    numbers = [state.seq for _, state in states]
    missing = count_missing(numbers)
    sent = (numbers[-1] - numbers[0]) / ((states[-1][1].tm - states[0][1].tm) * 1e-9)
    silent = (seen.ended - states[-1][0]) * 1e-9
    ages = [(received - state.t_sample) / MS for received, state in states if state.t_sample]
    old = f", {np.median(ages):.1f} ms old" if ages else ""
    detail = f"{sent:.1f} a second of {spec.rate:g}{old}, {missing} lost of {numbers[-1] - numbers[0] + 1}"
    if silent > SILENT:
        return Check("states", False, f"{detail}; none for {silent:.1f} s", "check the server's output")
    if sent < SLOW * spec.rate:
        return Check("states", False, detail, "the server is too slow: check its loop, or use a lower rate")
    fix = "a wired network instead of Wi-Fi, or fewer images"
    return Check("states", missing <= LOST * len(numbers), detail, fix)


def check_loop(spec: RobotSpec, first: State, newest: State) -> Check:
    """Check that ticks are on time."""
    loop, before = newest.loop, first.loop
    if loop is None or before is None or not loop.ticks:
        return Check("loop", True, "the server does not report its timing", known=False)
    period = 1e3 / spec.rate
    p50, p99 = loop.late_us_p50 / 1e3, loop.late_us_p99 / 1e3
    detail = (
        f"ticks {p50:.2f} ms late p50, {p99:.2f} ms p99, of {period:g} ms; "
        f"{loop.overruns - before.overruns} overruns now, {loop.overruns} of {loop.ticks} ticks in all"
    )
    fix = "at the robot: robot-rl doctor robot=<driver>; stop other programs there, or choose a lower rate"
    return Check("loop", p99 <= period / 2, detail, fix)


def check_mode(address: Address, state: State) -> Check:
    """Check that the arm is connected and has no latched fault."""
    who = f", commanded by {state.lease_holder}" if state.lease_holder else ""
    if state.mode is Mode.FAULT:
        with_client = f'with RobotClient("{address}", "<you>", "operator") as robot'
        fix = f'inspect the arm; then {with_client}: robot.acknowledge("<what it was>")'
        return Check("arm", False, f"fault: {state.fault}", fix)
    if state.mode is Mode.DISCONNECTED:
        return Check("arm", False, "disconnected", "restart the server")
    return Check("arm", True, f"{state.mode}{who}")


def check_gripper(state: State, received: int) -> Check:
    """Check that the gripper is read."""
    fix = "check its power and its cable; then restart the server"
    if state.gripper is None:
        return Check("gripper", False, "it has never been read", fix)
    age = (received - state.gripper.t) / MS
    detail = f"{state.gripper.opening:.2f} open, {age:.0f} ms ago"
    return Check("gripper", age <= GRIPPER, detail, fix)


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
    if silent > max(SILENT, IMAGE_AGE / camera.rate):
        fix = "check its cable; a failed camera stays off until the server is restarted"
        return Check(name, False, f"{detail}, and then none for {silent:.1f} s{said}", fix)
    recent = [
        event for event in events if event.what == "camera_down" and seen.ended - event.tm < LATELY * 1e9
    ]
    if recent:
        detail += f"; down {len(recent)} times in {LATELY:g} s: {_reason(recent[-1])}"
        return Check(name, False, detail, "check its cable and power, or replace it")
    if rate < CAMERA_RATE * camera.rate:
        fix = "another USB port or cable, more light, or a lower rate"
        return Check(name, False, f"{detail}{said}", fix)
    fix = "set encoding: jpeg, use a lower rate, or a wired network instead of Wi-Fi"
    good = missing <= LOST * (missing + len(frames)) and age <= IMAGE_AGE * 1e3 / camera.rate
    return Check(name, good, detail, fix)


def _reason(event: Event) -> str:
    return event.text.partition(": ")[2]
