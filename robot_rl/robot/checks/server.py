"""How a robot's server does: clocks, round trips, loop, states, the arm's mode, the gripper, the spec."""

from collections.abc import Iterator, Sequence

import numpy as np

from robot_rl.hardware.clock import MS
from robot_rl.hardware.protocol.clock_sync import Estimate, boot_id
from robot_rl.hardware.protocol.endpoints import Address
from robot_rl.hardware.protocol.messages import Mode, State, Welcome
from robot_rl.hardware.spec import RobotSpec
from robot_rl.robot.checks.installation import Check
from robot_rl.robot.checks.observation import Probe, ServerObservation, count_missing

WALL = 1000.0
"""How far wall clocks may be apart, ms: they are for people, who compare logs."""
STEP = 50.0
"""Change of a wall clock within the time of looking that is no slewing, ms."""
BOUND = 10.0
"""How badly the server's clock may be known, ms: a command from 20 ms ahead of it is refused."""
LOST = 0.01
"""Part of the states or images that may be lost."""
SLOW = 0.95
"""Part of the spec's rate below which states come too seldom."""
SILENT = 1.0
"""Time without any state, s."""
GRIPPER = 5000.0
"""Age of the gripper's reading, ms: while it moves, which takes seconds, some cannot be read."""


def server_checks(
    address: Address, welcome: Welcome, offset: Estimate, seen: ServerObservation
) -> Iterator[Check]:
    """All of them, from what was seen."""
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
    """Both sides make the same of the robot's description."""
    ours, theirs = welcome.spec.sha256, welcome.spec_sha256
    if ours != theirs:
        detail = f"the server calls it {theirs[:12]}…, here it is {ours[:12]}…"
        return Check("spec", False, detail, "install the same version of robot-rl here and at the robot")
    return Check("spec", True, f"{welcome.spec.name}, {ours[:12]}…")


def check_clock(welcome: Welcome, offset: Estimate) -> Check:
    """The server's clock is known well enough for what is timed by it."""
    if welcome.boot_id == boot_id() and offset.bound == 0:
        return Check("clock", True, "the server is on this machine: one clock")
    bound = offset.bound / MS
    ahead = f"{offset.offset / MS:.2f} ms ahead of this machine's, known to {bound:.2f} ms"
    fix = "a wire in place of Wi-Fi; nothing else that fills the line"
    return Check("clock", bound <= BOUND, f"{ahead}, drift {offset.drift:.0f} ppm", fix)


def check_wall_clock(probes: Sequence[Probe]) -> Check:
    """Both machines agree on the time of day, and nobody sets it just now."""
    if not probes:
        return Check("time of day", True, "nothing was answered", known=False)
    apart = float(np.median([probe.wall for probe in probes])) / MS
    stepped = float(np.ptp([probe.apart for probe in probes])) / MS
    fix = "sudo timedatectl set-ntp true   (on both machines)"
    if stepped > STEP:
        return Check("time of day", False, f"the server's was set by {stepped:.0f} ms meanwhile", fix)
    detail = f"the server's is {apart:+.1f} ms from this machine's"
    return Check("time of day", abs(apart) <= WALL, detail, fix)


def check_round_trip(lease_ms: int, seen: ServerObservation) -> Check:
    """A request is answered well within the time in which a commander has to be heard again."""
    fix = "a wire in place of Wi-Fi, fewer images, or a longer lease: robot-rl robot … lease_ms=…"
    asked = len(seen.probes) + seen.unanswered
    if not seen.probes:
        return Check("round trip", False, f"none of {asked} requests was answered", fix)
    p50, p99 = np.percentile([probe.round_trip / MS for probe in seen.probes], (50, 99))
    detail = f"{p50:.1f} ms p50, {p99:.1f} ms p99 of {asked}; the lease lasts {lease_ms} ms"
    if seen.unanswered:
        detail += f"; {seen.unanswered} without an answer"
    return Check("round trip", not seen.unanswered and p99 <= lease_ms / 2, detail, fix)


def check_states(spec: RobotSpec, seen: ServerObservation) -> Check:
    """A state at every tick, and all of them arrive."""
    states = seen.states
    if len(states) < 2:
        detail = f"{len(states)} in {seen.seconds:.1f} s; there should be {spec.rate:g} a second"
        return Check("states", False, detail, "see whether a firewall lets all seven ports through")
    numbers = [state.seq for _, state in states]
    missing = count_missing(numbers)
    sent = (numbers[-1] - numbers[0]) / ((states[-1][1].tm - states[0][1].tm) * 1e-9)
    silent = (seen.ended - states[-1][0]) * 1e-9
    ages = [(received - state.t_sample) / MS for received, state in states if state.t_sample]
    old = f", {np.median(ages):.1f} ms old" if ages else ""
    detail = f"{sent:.1f} a second of {spec.rate:g}{old}, {missing} lost of {numbers[-1] - numbers[0] + 1}"
    if silent > SILENT:
        return Check("states", False, f"{detail}; none for {silent:.1f} s", "see the server's output")
    if sent < SLOW * spec.rate:
        return Check("states", False, detail, "the server is too slow: see its loop, or a lower rate")
    fix = "a wire in place of Wi-Fi; fewer images at a time"
    return Check("states", missing <= LOST * len(numbers), detail, fix)


def check_loop(spec: RobotSpec, first: State, newest: State) -> Check:
    """Ticks begin in time."""
    loop, before = newest.loop, first.loop
    if loop is None or before is None or not loop.ticks:
        return Check("loop", True, "the server does not say how it keeps time", known=False)
    period = 1e3 / spec.rate
    p50, p99 = loop.late_us_p50 / 1e3, loop.late_us_p99 / 1e3
    detail = (
        f"ticks {p50:.2f} ms late p50, {p99:.2f} ms p99, of {period:g} ms; "
        f"{loop.overruns - before.overruns} overruns now, {loop.overruns} of {loop.ticks} ticks in all"
    )
    fix = "at the robot: robot-rl doctor robot=<driver>; end other programs there, or choose a lower rate"
    return Check("loop", p99 <= period / 2, detail, fix)


def check_mode(address: Address, state: State) -> Check:
    """No fault is latched, and there is an arm."""
    who = f", commanded by {state.lease_holder}" if state.lease_holder else ""
    if state.mode is Mode.FAULT:
        with_client = f'with RobotClient("{address}", "<you>", "operator") as robot'
        fix = f'look at the arm; then {with_client}: robot.acknowledge("<what it was>")'
        return Check("arm", False, f"fault: {state.fault}", fix)
    if state.mode is Mode.DISCONNECTED:
        return Check("arm", False, "disconnected", "start the server anew")
    return Check("arm", True, f"{state.mode}{who}")


def check_gripper(state: State, received: int) -> Check:
    """It is read."""
    fix = "see its power and its cable; then start the server anew"
    if state.gripper is None:
        return Check("gripper", False, "it has never been read", fix)
    age = (received - state.gripper.t) / MS
    detail = f"{state.gripper.opening:.2f} open, {age:.0f} ms ago"
    return Check("gripper", age <= GRIPPER, detail, fix)
