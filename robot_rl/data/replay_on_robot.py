"""Replays a recorded motion on a robot: follows its measured joints and measures the deviation."""

import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

import numpy as np
from numpy.typing import NDArray

from robot_rl.data.dataset import Dataset
from robot_rl.hardware.client import CommandRefused, RobotClient
from robot_rl.hardware.connection import RobotError
from robot_rl.hardware.protocol.messages import State
from robot_rl.hardware.spec import REST, RobotSpec

JOINTS: Final = "robot0_joint_pos"
_RATE: Final = 50.0
"""Commands per second."""
_APPROACH: Final = 0.2
"""Fraction of the joints' speed limits on the way to the start."""
_THERE: Final = 0.03
"""Distance at which the arm has reached a goal, rad."""
_PATIENCE: Final = 10.0
"""Time that the arm has to come to rest, s."""
_NEAR: Final = 1.0
"""Window of the recording around a moment in which the nearest point of the path is searched, s."""


@dataclass(frozen=True)
class Motion:
    """A recorded motion."""

    times: NDArray[np.float64]
    """[T] time of each step since the first, s."""
    joints: NDArray[np.float64]
    """[T, n] rad."""
    openings: NDArray[np.float64] | None
    """[T] gripper opening from 0, closed, to 1; None without a gripper."""

    @property
    def seconds(self) -> float:
        return float(self.times[-1])


@dataclass
class RetraceResult:
    """How closely the arm followed the recording."""

    off_path: NDArray[np.float64]
    """[n] largest distance of each joint from the nearest point of the recorded path, rad."""
    at_end: NDArray[np.float64]
    """[n] distance of each joint from the recorded end, at rest, rad."""
    clipped: Counter[str] = field(default_factory=Counter)
    """Number of commands that each limit changed."""
    commands: int = 0
    complete: bool = True
    """False if it was stopped."""


def motion_of(dataset: Dataset, number: int, robot: RobotSpec, accept: Sequence[str] = ()) -> Motion:
    """Load the motion of an episode for a robot.

    Args:
        dataset: dataset recorded from the robot.
        number: episode number.
        robot: specification of the robot at the address.
        accept: with `robot`, another robot's recording is accepted.

    Raises:
        ValueError: if it was recorded from another robot or without joints, or the robot cannot follow it.
    """
    recorded = dataset.environment.get("real_robot", {}).get("name")
    if recorded != robot.name and "robot" not in accept:
        raise ValueError(
            f"{dataset.path} was recorded from {recorded or 'no robot'}, and the robot at the address is "
            f"{robot.name}; accept=[robot] lets it pass"
        )
    if "joint_position" not in robot.modes:
        raise ValueError(f"{robot.name} takes {', '.join(robot.modes)}: joint_position is needed")
    n = len(robot.joints)
    if JOINTS not in dataset.keys or dataset.shape(JOINTS)[0] != (n,):
        raise ValueError(f"{dataset.path} has no {JOINTS} of {n} joints, which is what would be followed")
    rows = dataset.episodes[number]
    joints = dataset.rows(JOINTS, rows).astype(np.float64)
    limits = robot.limits
    outside = (joints < limits.joint_lower) | (joints > limits.joint_upper)
    if outside.any():
        step, joint = (int(i) for i in np.argwhere(outside)[0])
        raise ValueError(
            f"episode {number}: {robot.joints[joint]} is at {joints[step, joint]:.3f} rad in step {step}, "
            f"outside of the robot's limits"
        )
    grips = [i for i, dim in enumerate(dataset.action_spec) if dim.kind == "gripper"]
    openings = None
    if grips and robot.gripper is not None:
        closing = dataset.rows("applied_action", rows)[:, grips[0]].astype(np.float64)
        openings = np.clip((1.0 - closing) / 2.0, 0.0, 1.0)
    rate = float(dataset.environment["control_freq"])
    return Motion(np.arange(len(joints)) / rate, joints, openings)


def approach_seconds(motion: Motion, start: State, robot: RobotSpec) -> float:
    """Duration of the motion to the start, s."""
    way = np.abs(motion.joints[0] - np.array(start.q))
    # The peak speed of the ramp is 1.875 times its mean speed.
    seconds = 1.875 * way / (_APPROACH * np.array(robot.limits.joint_velocity))
    return max(1.0, float(seconds.max()))


def retrace(robot: RobotClient, motion: Motion, speed: float, stop: Callable[[], bool]) -> RetraceResult:
    """Move the armed arm to the start, along the recording, and to rest at the end.

    Args:
        robot: client that may command, with the arm armed. All limits of the robot hold.
        motion: motion to follow.
        speed: fraction of the recorded speed, at most 1.
        stop: whether to end early; the arm then comes to rest where it is.

    Raises:
        RobotError: if a command is refused, the arm does not reach a goal, or the robot does not answer.
    """
    arm = _Arm(robot, motion)
    measured: list[tuple[float, NDArray[np.float64]]] = []
    with robot.lease("script"):
        start = robot.sample()
        held = start.setpoint if robot.spec.space == "joint" else ()
        begin = np.array(held or start.q)
        seconds = approach_seconds(motion, start, robot.spec)
        if not arm.follow(seconds, lambda t: begin + _ramp(t / seconds) * (motion.joints[0] - begin), stop):
            return arm.result(measured, complete=False)
        if not arm.settle(0.0, stop):
            return arm.result(measured, complete=False)
        zero = robot.server_time()

        def along(t: float) -> NDArray[np.float64]:
            state = robot.state(max_age=1.0)
            measured.append(((state.t_sample - zero) * 1e-9 * speed, np.array(state.q)))
            return arm.at(t * speed)

        complete = arm.follow(motion.seconds / speed, along, stop, speed)
        complete = complete and arm.settle(motion.seconds, stop)
        return arm.result(measured, complete=complete)


class _Arm:
    """Sends commands to the arm and counts those that a limit changed."""

    def __init__(self, robot: RobotClient, motion: Motion) -> None:
        self._robot, self._motion = robot, motion
        self._clipped: Counter[str] = Counter()
        self._commands = 0
        self._opening: float | None = None

    def at(self, t: float) -> NDArray[np.float64]:
        """Recorded joint positions [n] at time `t` of the recording, s, interpolated."""
        motion = self._motion
        return np.array([np.interp(t, motion.times, joint) for joint in motion.joints.T])

    def follow(
        self,
        seconds: float,
        goal: Callable[[float], NDArray[np.float64]],
        stop: Callable[[], bool],
        speed: float = 0.0,
    ) -> bool:
        """Command `goal` and the recorded gripper opening for `seconds`. False if stopped."""
        begun = time.monotonic()
        due = begun
        while (passed := time.monotonic() - begun) < seconds:
            if stop():
                return False
            self._send(goal(passed), passed * speed)
            # A late command shifts the schedule; it does not cause a burst.
            due = max(due + 1 / _RATE, time.monotonic())
            time.sleep(max(0.0, due - time.monotonic()))
        return True

    def settle(self, t: float, stop: Callable[[], bool]) -> bool:
        """Command the joints at `t` until the arm is at rest there. False if stopped."""
        goal = self.at(t)
        end = time.monotonic() + _PATIENCE
        while time.monotonic() < end:
            if stop():
                return False
            self._send(goal, t)
            state = self._robot.state(max_age=1.0)
            if max(map(abs, state.dq)) < REST and np.abs(goal - state.q).max() < _THERE:
                return True
            time.sleep(1 / _RATE)
        off = float(np.abs(goal - self._robot.state(max_age=1.0).q).max())
        raise RobotError(f"the arm does not come to where it is sent: it is {off:.3f} rad away")

    def result(
        self, measured: Sequence[tuple[float, NDArray[np.float64]]], *, complete: bool
    ) -> RetraceResult:
        """Compare the measured joints, with their times in the recording, to the recorded path."""
        motion = self._motion
        fine = np.linspace(0.0, motion.seconds, max(2, round(motion.seconds * 200)))
        path = np.stack([np.interp(fine, motion.times, joint) for joint in motion.joints.T], axis=1)
        worst = np.zeros(path.shape[1])
        for t, q in measured:
            near = path[np.abs(fine - t) <= _NEAR]
            if len(near):
                away = np.abs(near - q)
                worst = np.maximum(worst, away[away.max(axis=1).argmin()])
        end = np.abs(motion.joints[-1] - np.array(self._robot.sample().q))
        return RetraceResult(worst, end, self._clipped, self._commands, complete)

    def _send(self, joints: NDArray[np.float64], t: float) -> None:
        opening = self._opening_at(t)
        try:
            ack = self._robot.command("joint_position", joints.tolist(), opening)
        except CommandRefused as refusal:
            raise RobotError(f"a command was refused: {refusal.reason}") from refusal
        self._commands += 1
        self._clipped.update(ack.clipped)

    def _opening_at(self, t: float) -> float | None:
        """Opening at `t` if it changed, else None: some grippers restart on a repeated command."""
        if self._motion.openings is None:
            return None
        step = min(int(np.searchsorted(self._motion.times, t, side="right")) - 1, len(self._motion.times) - 1)
        opening = float(self._motion.openings[max(step, 0)])
        if opening == self._opening:
            return None
        self._opening = opening
        return opening


def report_lines(traced: RetraceResult, robot: RobotSpec) -> list[str]:
    """Result as lines of text."""
    lines = [f"{'joint':<24}{'off the path, rad':>18}{'off at the end, rad':>21}"]
    rows: Mapping[str, tuple[float, float]] = dict(
        zip(robot.joints, zip(traced.off_path.tolist(), traced.at_end.tolist(), strict=True), strict=True)
    )
    lines += [f"{joint:<24}{path:>18.4f}{end:>21.4f}" for joint, (path, end) in rows.items()]
    clipped = ", ".join(f"{name} {number}" for name, number in traced.clipped.most_common())
    lines.append(
        f"{traced.commands} commands, {f'changed by {clipped}' if clipped else 'none changed by a limit'}"
    )
    return lines


def _ramp(part: float) -> float:
    """Minimum-jerk ramp from 0 to 1."""
    part = min(max(part, 0.0), 1.0)
    return part**3 * (10 - 15 * part + 6 * part**2)
