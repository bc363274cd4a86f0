"""Computes all delays from the recording of a swing, and formats them as a table."""

import datetime
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from robot_rl.hardware.latency.correlation import Array, NoLag, find_lag, held, joined
from robot_rl.hardware.latency.image_motion import ImageSample, image_displacements
from robot_rl.hardware.latency.recording import Received, Recording
from robot_rl.hardware.spec import Delay, Latency

Finding = Delay | str
"""A delay, or the reason why it could not be determined."""


@dataclass(frozen=True)
class Figures:
    """All measured delays. Delays of single messages are medians, with the spread of the messages."""

    network: Delay
    """From sending a command to the server acting on it."""
    answer: Delay
    """From sending a command to receiving its answer."""
    planner: Finding
    """From acting on a command to the setpoint reaching its goal."""
    arm: Finding
    """From a setpoint to the arm reaching it."""
    action: Finding
    """From acting on a command to the arm's motion."""
    total: Finding
    """From sending a command to the arm's motion."""
    state: Delay
    """From a measurement to receiving it."""
    cameras: Mapping[str, Finding]
    """From the scene to an image's time stamp."""
    images: Mapping[str, Delay]
    """From an image's time stamp to receiving it."""

    def latency(self) -> Latency:
        """The delays for the robot's file, as far as they were determined."""
        return Latency(
            action=self.action if isinstance(self.action, Delay) else None,
            state=self.state,
            cameras={name: found for name, found in self.cameras.items() if isinstance(found, Delay)},
        )

    def refused(self) -> dict[str, str]:
        """Delays that could not be determined, with the reasons."""
        findings = {"action": self.action, **{f"camera {name}": f for name, f in self.cameras.items()}}
        return {name: found for name, found in findings.items() if isinstance(found, str)}


def measure(recording: Recording, today: datetime.date) -> Figures:
    """Compute all delays."""
    find = _Finder(recording, today)
    measured_at, measured = find.measured
    setpoint_at, setpoint = find.setpoint
    setpoints = joined(setpoint_at, setpoint)
    goals = held(find.times([sent.t_applied for sent in recording.sent]), find.goals)
    sent_goals = held(find.times([sent.t_sent for sent in recording.sent]), find.goals)
    return Figures(
        network=find.typical([sent.t_applied - sent.t_sent for sent in recording.sent]),
        answer=find.typical([sent.t_answered - sent.t_sent for sent in recording.sent]),
        planner=find.lag(lambda lag: goals(setpoint_at - lag), setpoint),
        arm=find.lag(lambda lag: setpoints(measured_at - lag), measured),
        action=find.lag(lambda lag: goals(measured_at - lag), measured),
        total=find.lag(lambda lag: sent_goals(measured_at - lag), measured),
        state=find.typical([received.t - received.state.t_sample for received in recording.states]),
        cameras={name: find.camera(seen) for name, seen in recording.images_seen.items()},
        images={
            name: find.typical([sighting.received - sighting.t_capture for sighting in seen])
            for name, seen in recording.images_seen.items()
        },
    )


class _Finder:
    """Signals of a recording, with times in s since its first command."""

    def __init__(self, recording: Recording, today: datetime.date) -> None:
        self._begun = recording.sent[0].t_sent
        self._today = today
        self.goals = np.array([sent.goal for sent in recording.sent])
        axis = recording.axis
        states = [received.state for received in _distinct(recording.states)]
        self.measured = (
            self.times([state.t_sample for state in states]),
            np.array([axis.measured(state) for state in states]),
        )
        # A state is stamped when its setpoint was written. The setpoint holds until the next tick, so as a
        # line it is later by half a period. Setpoints and measurements both come with the ticks, so without
        # this no lag of less than a tick could be resolved.
        armed = [received.state for received in recording.states if received.state.setpoint]
        written = self.times([state.tm for state in armed])
        self.setpoint = (
            (written[:-1] + written[1:]) / 2,
            np.array([axis.setpoint(state) for state in armed[:-1]]),
        )

    def times(self, times: Sequence[int]) -> Array:
        return np.array([(t - self._begun) * 1e-9 for t in times])

    def lag(self, cause: Callable[[float], Array], effect: Array, *, either_sign: bool = False) -> Finding:
        try:
            lag = find_lag(cause, effect, either_sign=either_sign)
        except NoLag as error:
            return str(error)
        return self._delay(lag.seconds * 1e3, lag.spread * 1e3, lag.correlation)

    def camera(self, seen: Sequence[ImageSample]) -> Finding:
        """Delay of the image's time stamps behind the arm's motion."""
        moved = image_displacements([sighting.picture for sighting in seen])
        at, position = self.times([sighting.t_capture for sighting in seen]), joined(*self.measured)
        return self.lag(lambda lag: np.diff(position(at - lag)), moved, either_sign=True)

    def typical(self, nanoseconds: Sequence[int]) -> Delay:
        low, middle, high = np.percentile(np.array(nanoseconds) * 1e-6, (2.5, 50, 97.5))
        return self._delay(float(middle), float(high - low) / 2, None)

    def _delay(self, ms: float, spread_ms: float, correlation: float | None) -> Delay:
        rounded = None if correlation is None else round(correlation, 4)
        return Delay(
            ms=round(ms, 1), spread_ms=round(spread_ms, 1), correlation=rounded, measured=self._today
        )


def _distinct(states: Sequence[Received]) -> list[Received]:
    """States without repeated measurements."""
    last = 0
    kept = []
    for received in states:
        if received.state.t_sample > last:
            last = received.state.t_sample
            kept.append(received)
    return kept


def table(figures: Figures) -> str:
    """One line per delay, or the reason why it could not be determined."""
    rows = list(_rows(figures))
    first = max(len(start) for start, _, _ in rows) + 2
    second = max(len(end) for _, end, _ in rows) + 2
    lines = [f"{'from':<{first}}{'to':<{second}}{'ms':>8}{'±':>8}{'correlation':>14}"]
    lines += [f"{start:<{first}}{end:<{second}}{_value(found)}" for start, end, found in rows]
    return "\n".join(lines)


def _rows(figures: Figures) -> Iterator[tuple[str, str, Finding]]:
    yield "command sent", "arm moves", figures.total
    yield "  command sent", "server acts", figures.network
    yield "  server acts", "arm moves", figures.action
    yield "    server acts", "setpoint", figures.planner
    yield "    setpoint", "arm moves", figures.arm
    yield "command sent", "answer received", figures.answer
    yield "arm moves", "state received", figures.state
    for camera, found in figures.cameras.items():
        yield f"{camera}: arm moves", "image's time stamp", found
        yield f"{camera}: image's time stamp", "image received", figures.images[camera]


def _value(found: Finding) -> str:
    if not isinstance(found, Delay):
        return f"  refused: {found}"
    correlation = "" if found.correlation is None else f"{found.correlation:>14.3f}"
    return f"{found.ms:>8.1f}{found.spread_ms:>8.1f}{correlation}"
