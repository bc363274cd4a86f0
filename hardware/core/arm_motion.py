"""Motion layer of one arm: measures, plans, moves and stops it in the driver's space (joints or poses)."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Generic, Protocol

from robot_rl.hardware.clock import MS, Clock
from robot_rl.hardware.core.cartesian_motion import CartesianLimiter
from robot_rl.hardware.core.events import Refusal
from robot_rl.hardware.core.goals import CartesianPlanner, Goal, JointPlanner, Planner
from robot_rl.hardware.core.joint_motion import JointLimiter
from robot_rl.hardware.core.motion import Limiter, Step, Target
from robot_rl.hardware.drivers.driver import Array, Driver, Measurement, Pose, is_unit
from robot_rl.hardware.protocol.messages import Code, Command, Gripped

MAX_WAITING = 64
"""Timed goals that may wait."""
STALE_TICKS = 3
"""A measurement older than this many periods is a fault."""


@dataclass(frozen=True, slots=True)
class Waypoint(Generic[Target]):
    """A timed goal in the driver's space."""

    target: Target
    begins: int
    """Time at which it becomes the goal, ns."""
    expires: int
    """Latest time at which it may become the goal, ns."""
    seq: int
    """`seq` of its command; 0 for a motion of the server's, such as homing."""
    gripper: float | None


def _with_gripper(waypoints: Sequence[Waypoint[Target]]) -> Waypoint[Target]:
    """The last of some waypoints, with the newest gripper command among them."""
    commands = [waypoint.gripper for waypoint in waypoints if waypoint.gripper is not None]
    return replace(waypoints[-1], gripper=commands[-1]) if commands else waypoints[-1]


class Waypoints(Generic[Target]):
    """Queue of timed goals: each becomes active at its time, or is dropped if it is too late for a tick."""

    def __init__(self) -> None:
        self._waiting: list[Waypoint[Target]] = []

    def last_before(self, begins: int) -> Waypoint[Target] | None:
        """The waypoint that one at time `begins` [ns] would follow."""
        earlier = [waypoint for waypoint in self._waiting if waypoint.begins < begins]
        return earlier[-1] if earlier else None

    def add(self, waypoint: Waypoint[Target]) -> None:
        """Append a waypoint and drop those at its time or later.

        Raises:
            Refusal: LIMIT, if `MAX_WAITING` are waiting.
        """
        kept = [waiting for waiting in self._waiting if waiting.begins < waypoint.begins]
        if len(kept) >= MAX_WAITING:
            raise Refusal(Code.LIMIT, f"{MAX_WAITING} commands wait for their time; send fewer ahead")
        self._waiting = [*kept, waypoint]

    def at(self, begins: int) -> list[Waypoint[Target]]:
        """The waypoints at this time [ns], at most one."""
        return [waiting for waiting in self._waiting if waiting.begins == begins]

    def due(self, now: int) -> tuple[Waypoint[Target] | None, list[Waypoint[Target]]]:
        """Remove the waypoints whose time has come; returns the newest valid one and the expired ones.

        Its gripper command is the newest of the valid ones: a later one without it leaves the gripper alone.
        """
        if not self._waiting or self._waiting[0].begins > now:
            return None, []
        due = [waypoint for waypoint in self._waiting if waypoint.begins <= now]
        self._waiting = self._waiting[len(due) :]
        fresh = [waypoint for waypoint in due if waypoint.expires >= now]
        late = [waypoint for waypoint in due if waypoint.expires < now]
        return (_with_gripper(fresh) if fresh else None), late

    def clear(self) -> None:
        """Drop all waypoints."""
        self._waiting = []


class MeasurementFault(Exception):
    """The driver returned an invalid or stale measurement."""


class GripperMailbox(Protocol):
    """Interface between the core and the gripper thread; no call blocks."""

    def put(self, opening: float) -> None:
        """Set the goal, an opening in [0, 1]; it replaces one that has not started."""
        ...

    def stop(self) -> None:
        """Stop the gripper and drop the goal."""
        ...

    def latest(self) -> Gripped | None:
        """The newest reading."""
        ...

    @property
    def fault(self) -> str:
        """Text of the latched fault, "" if none; goals are ignored until `acknowledge`."""
        ...

    def acknowledge(self) -> None:
        """Clear the fault and accept goals again."""
        ...


class ArmMotion(Generic[Target]):
    """A driver, its limiter and its waiting goals. Independent of modes, leases and clients."""

    def __init__(
        self,
        driver: Driver,
        limiter: Limiter[Target],
        planner: Planner[Target],
        gripper: GripperMailbox | None,
    ) -> None:
        self._driver = driver
        self._limiter = limiter
        self._planner = planner
        self._gripper = gripper
        self._waypoints: Waypoints[Target] = Waypoints()
        self._goal: Waypoint[Target] | None = None
        self._home_path: list[Target] = []
        """Remaining points of the path home, after the present goal."""
        self._joints, self._sensors = len(driver.spec.joints), driver.spec.sensors
        self._max_age = int(STALE_TICKS * 1e9 / driver.spec.rate)
        self.measured: Measurement | None = None
        """The newest valid measurement."""
        self.enabled = False

    @property
    def goal_seq(self) -> int:
        """`seq` of the command that is followed, 0 for none."""
        return self._goal.seq if self._goal else 0

    @property
    def setpoint(self) -> tuple[float, ...]:
        """Joints [n] or pose [7]; empty while the arm is not enabled."""
        if not self.enabled:
            return ()
        setpoint = self._limiter.setpoint
        if isinstance(setpoint, Pose):
            return (*setpoint.position.tolist(), *setpoint.quaternion.tolist())
        return tuple(setpoint.tolist())

    @property
    def gripper_fault(self) -> str:
        """Text of the gripper's fault, "" for none."""
        return self._gripper.fault if self._gripper else ""

    def acknowledge_gripper(self) -> None:
        """Clear the gripper's fault."""
        if self._gripper:
            self._gripper.acknowledge()

    def measure(self, clock: Clock) -> Measurement:
        """Read the driver.

        Raises:
            DriverError: if the arm reports a fault.
            MeasurementFault: if the measurement is not finite, has a wrong shape or is stale.
        """
        asked = clock.now()
        measured = self._driver.read()
        if len(measured.q) != self._joints or len(measured.dq) != self._joints:
            raise MeasurementFault(f"{len(measured.q)} joints are measured, {self._joints} are in the spec")
        if (sensed := {name: len(values) for name, values in measured.sensors.items()}) != self._sensors:
            raise MeasurementFault(f"the sensors {sensed} are measured, {self._sensors} are in the spec")
        named = {
            "q": measured.q,
            "dq": measured.dq,
            "tau": measured.tau,
            "position": measured.pose.position,
            "quaternion": measured.pose.quaternion,
            "wrench": measured.wrench,
            **measured.sensors,
        }
        for name, array in named.items():
            if not all(map(math.isfinite, array.tolist())):
                raise MeasurementFault(f"{name} is not finite: {array}")
        if not is_unit(quaternion := measured.pose.quaternion.tolist()):
            raise MeasurementFault(f"the measured quaternion has length {math.hypot(*quaternion)}")
        # Age when the read began, and lead over its end: time during which this process was suspended in
        # between counts as neither.
        age, ahead = asked - measured.t, measured.t - clock.now()
        if max(age, ahead) > self._max_age:
            raise MeasurementFault(
                f"the newest measurement is {age / MS:.1f} ms old, {self._max_age / MS:.0f} ms are allowed"
            )
        self.measured = measured
        return measured

    def enable(self) -> None:
        """Let the driver hold the arm, which may take seconds; then measure and call `hold`.

        Raises:
            DriverError: if it cannot.
        """
        self._driver.enable()

    def hold(self, measured: Measurement) -> None:
        """Begin with the setpoints of an enabled arm, where it has been measured since."""
        self._limiter.reset(measured)
        self.clear_goals()
        self.enabled = True

    def disable(self) -> None:
        """Stop the arm with the driver's own stop, then the gripper.

        Raises:
            DriverError: if the arm did not accept the stop.
        """
        self.enabled = False
        self.clear_goals()
        try:
            self._driver.stop()
        finally:
            if self._gripper:
                self._gripper.stop()

    def clear_goals(self) -> None:
        """Drop all goals: the arm brakes and holds."""
        self._goal = None
        self._home_path = []
        self._waypoints.clear()

    def freeze(self) -> None:
        """Set the setpoint's velocity to zero, after a gap without ticks."""
        self._limiter.freeze()

    def plan(self, command: Command, now: int, first: bool) -> Goal[Target]:
        """Add a command as a waypoint.

        Raises:
            Refusal: JUMP, LIMIT, UNREACHABLE.
        """
        assert self.measured is not None
        begins = max(command.t_target, now)
        before = self._waypoints.last_before(begins) or self._goal
        setpoint = self._limiter.setpoint
        near = before.target if before else setpoint
        goal = self._planner.goal(command, self.measured, setpoint, self._limiter.pose, near, first)
        expires = max(command.t_sent, command.t_target) + command.ttl_ms * MS
        waypoint = Waypoint(goal.target, begins, expires, command.seq, command.gripper)
        # Of two commands for now in one tick the second replaces the first, but not its gripper command.
        replaced = self._waypoints.at(begins) if begins == now else []
        self._waypoints.add(_with_gripper([*replaced, waypoint]))
        return goal

    def go_home(self, now: int) -> None:
        """Move to the home position; waiting goals are dropped.

        Raises:
            Refusal: UNREACHABLE.
        """
        if self._goal is None or self._goal.seq:
            path = self._planner.home(self._limiter.setpoint)
            self._follow_home_path(path, now)
        self._waypoints.clear()

    def _follow_home_path(self, path: list[Target], now: int) -> None:
        target, *self._home_path = path
        self._goal = Waypoint(target, now, now, 0, None)

    def due(self, now: int) -> list[Waypoint[Target]]:
        """Make the waypoint that is due the goal. Returns those that have expired."""
        waypoint, late = self._waypoints.due(now)
        if waypoint:
            self._goal = waypoint
            self._home_path = []
            if self._gripper and waypoint.gripper is not None:
                self._gripper.put(waypoint.gripper)
        return late

    def advance(self, measured: Measurement) -> Step[Target]:
        """Advance one tick towards the goal, or brake without one, and write the setpoint to the driver.

        Raises:
            DriverError: if the arm did not accept the setpoint.
        """
        step = self._limiter.step(self._goal.target if self._goal else None, measured)
        if step.stopped:
            self.clear_goals()
        elif self._goal and self._home_path and not self._limiter.moving:
            self._follow_home_path(self._home_path, self._goal.begins)
        self._driver.write(step.setpoint)
        return step


def joint_arm(driver: Driver, gripper: GripperMailbox | None) -> ArmMotion[Array]:
    """Motion layer of an arm that takes joint positions."""
    spec, kinematics = driver.spec, driver.kinematics
    return ArmMotion(driver, JointLimiter(spec, kinematics), JointPlanner(spec, kinematics), gripper)


def cartesian_arm(driver: Driver, gripper: GripperMailbox | None) -> ArmMotion[Pose]:
    """Motion layer of an arm that takes tool poses."""
    spec = driver.spec
    return ArmMotion(driver, CartesianLimiter(spec), CartesianPlanner(spec, driver.kinematics), gripper)
