"""A recorded motion on the robot again: its measured joints, more slowly, and how near the arm came."""

import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

import numpy as np
from numpy.typing import NDArray

from robot_rl.data.dataset import Dataset
from robot_rl.hardware.client import REST, CommandRefused, RobotClient
from robot_rl.hardware.connection import RobotError
from robot_rl.hardware.protocol.messages import State
from robot_rl.hardware.spec import RobotSpec

JOINTS: Final = "robot0_joint_pos"
_RATE: Final = 50.0
"""Commands per second."""
_APPROACH: Final = 0.2
"""Of the joints' highest speeds, on the way to the start."""
_THERE: Final = 0.03
"""rad from a goal at which the arm has come to it."""
_PATIENCE: Final = 10.0
"""s for the arm to come to rest."""
_NEAR: Final = 1.0
"""s of the recording around a moment in which the nearest point of the path is looked for."""


@dataclass(frozen=True)
class Motion:
    """What an episode did."""

    times: NDArray[np.float64]
    """Of each step from the first, s."""
    joints: NDArray[np.float64]
    """[T, n] rad."""
    openings: NDArray[np.float64] | None
    """[T] of the gripper, from 0 closed to 1; None where the robot has none."""

    @property
    def seconds(self) -> float:
        return float(self.times[-1])


@dataclass
class RetraceResult:
    """How near the arm came."""

    off_path: NDArray[np.float64]
    """Farthest of each joint from the nearest point of the recorded path, rad."""
    at_end: NDArray[np.float64]
    """Of each joint from the recorded end, at rest, rad."""
    clipped: Counter[str] = field(default_factory=Counter)
    """Commands that each limit changed."""
    commands: int = 0
    complete: bool = True
    """False where it was stopped."""


def motion_of(dataset: Dataset, number: int, robot: RobotSpec, accept: Sequence[str] = ()) -> Motion:
    """What a robot is to do again.

    Args:
        dataset: recorded from it.
        number: of the episode.
        robot: at the address.
        accept: `robot` lets another robot's recording pass.

    Raises:
        ValueError: it was recorded from another robot or without joints, or the robot cannot do it.
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
    """How long the way to the start takes, s."""
    way = np.abs(motion.joints[0] - np.array(start.q))
    # The ramp is at 1.875 times its mean speed in the middle.
    seconds = 1.875 * way / (_APPROACH * np.array(robot.limits.joint_velocity))
    return max(1.0, float(seconds.max()))


def retrace(robot: RobotClient, motion: Motion, speed: float, stop: Callable[[], bool]) -> RetraceResult:
    """Bring the armed arm to the start, let it go along the recording, and come to rest at the end.

    Args:
        robot: that may command, with the arm armed. All of its limits hold.
        motion: what it is to do.
        speed: of the recording's, at most 1.
        stop: whether to end early; the arm then comes to rest where it is.

    Raises:
        RobotError: a command was refused, the arm does not come to where it is sent, or there is no answer.
    """
    arm = _Arm(robot, motion)
    measured: list[tuple[float, NDArray[np.float64]]] = []
    with robot.lease("script"):
        start = robot.sample()
        held = start.setpoint if robot.spec.space == "joint" else ()
        begin = np.array(held or start.q)
        seconds = approach_seconds(motion, start, robot.spec)
        if not arm.follow(seconds, lambda t: begin + _ramp(t / seconds) * (motion.joints[0] - begin), stop):
            return arm.traced(measured, complete=False)
        if not arm.settle(0.0, stop):
            return arm.traced(measured, complete=False)
        zero = robot.server_time()

        def along(t: float) -> NDArray[np.float64]:
            state = robot.state(max_age=1.0)
            measured.append(((state.t_sample - zero) * 1e-9 * speed, np.array(state.q)))
            return arm.at(t * speed)

        complete = arm.follow(motion.seconds / speed, along, stop, speed)
        complete = complete and arm.settle(motion.seconds, stop)
        return arm.traced(measured, complete=complete)


class _Arm:
    """Sends commands and counts what becomes of them."""

    def __init__(self, robot: RobotClient, motion: Motion) -> None:
        self._robot, self._motion = robot, motion
        self._clipped: Counter[str] = Counter()
        self._commands = 0
        self._opening: float | None = None

    def at(self, t: float) -> NDArray[np.float64]:
        """The recorded joints [n] at `t` s of the recording."""
        motion = self._motion
        return np.array([np.interp(t, motion.times, joint) for joint in motion.joints.T])

    def follow(
        self,
        seconds: float,
        goal: Callable[[float], NDArray[np.float64]],
        stop: Callable[[], bool],
        speed: float = 0.0,
    ) -> bool:
        """Command `goal` for so long; the gripper goes along with the recording. False where stopped."""
        begun = time.monotonic()
        due = begun
        while (passed := time.monotonic() - begun) < seconds:
            if stop():
                return False
            self._send(goal(passed), passed * speed)
            # What is late begins a new rhythm, and does not hurry after the old one.
            due = max(due + 1 / _RATE, time.monotonic())
            time.sleep(max(0.0, due - time.monotonic()))
        return True

    def settle(self, t: float, stop: Callable[[], bool]) -> bool:
        """Hold the place of `t` s of the recording until the arm is at rest there; False where stopped."""
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

    def traced(
        self, measured: Sequence[tuple[float, NDArray[np.float64]]], *, complete: bool
    ) -> RetraceResult:
        """What is to be told at the end."""
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
        """Where it changes; a gripper that is told the same again and again may begin anew."""
        if self._motion.openings is None:
            return None
        step = min(int(np.searchsorted(self._motion.times, t, side="right")) - 1, len(self._motion.times) - 1)
        opening = float(self._motion.openings[max(step, 0)])
        if opening == self._opening:
            return None
        self._opening = opening
        return opening


def report_lines(traced: RetraceResult, robot: RobotSpec) -> list[str]:
    """What a person is told, in lines."""
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
    """From 0 to 1 with rest at both ends."""
    part = min(max(part, 0.0), 1.0)
    return part**3 * (10 - 15 * part + 6 * part**2)
