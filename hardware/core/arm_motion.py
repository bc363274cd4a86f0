"""The arm with its motion layer: measured, planned, moved and stopped, in the driver's own space."""

import math
from typing import Generic, Protocol

from robot_rl.hardware.clock import MS, Clock
from robot_rl.hardware.core.cartesian_motion import CartesianLimiter
from robot_rl.hardware.core.goals import CartesianPlanner, Goal, JointPlanner, Planner
from robot_rl.hardware.core.joint_motion import JointLimiter
from robot_rl.hardware.core.motion import Limiter, Step, Target
from robot_rl.hardware.core.waypoints import Waypoint, Waypoints
from robot_rl.hardware.drivers.base import Array, Driver, Measurement, Pose
from robot_rl.hardware.protocol.messages import Command, Gripped

STALE_TICKS = 3
"""A measurement older than so many periods is none."""


_UNIT_LENGTH = 1e-3


class MeasurementFault(Exception):
    """What the driver says that it measures cannot be."""


class GripperMailbox(Protocol):
    """Between the core and the gripper's own thread; no call blocks."""

    def put(self, opening: float) -> None:
        """The newest goal, in [0, 1]; it replaces one that was not begun."""
        ...

    def stop(self) -> None:
        """Stay as it is; forget the goal."""
        ...

    def latest(self) -> Gripped | None:
        """The newest reading."""
        ...

    @property
    def fault(self) -> str:
        """What went wrong, "" while nothing has; it takes no goals until `acknowledge`."""
        ...

    def acknowledge(self) -> None:
        """Take goals again."""
        ...


class ArmMotion(Generic[Target]):
    """A driver, its limiter and the goals that wait. It knows nothing of modes, leases and clients."""

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
        self._way_home: list[Target] = []
        """What comes after the goal, while that is a point between here and rest."""
        self._joints = len(driver.spec.joints)
        self._oldest = int(STALE_TICKS * 1e9 / driver.spec.rate)
        self.measured: Measurement | None = None
        """The newest that made sense."""
        self.enabled = False

    @property
    def goal_seq(self) -> int:
        """Of the command that is followed, 0 for none."""
        return self._goal.seq if self._goal else 0

    @property
    def setpoint(self) -> tuple[float, ...]:
        """Joints [n] or pose [7]; empty while the arm takes none."""
        if not self.enabled:
            return ()
        setpoint = self._limiter.setpoint
        if isinstance(setpoint, Pose):
            return (*setpoint.position.tolist(), *setpoint.quaternion.tolist())
        return tuple(setpoint.tolist())

    @property
    def gripper_fault(self) -> str:
        """What is wrong with the gripper, "" for nothing."""
        return self._gripper.fault if self._gripper else ""

    def acknowledge_gripper(self) -> None:
        """Somebody has looked at what was wrong."""
        if self._gripper:
            self._gripper.acknowledge()

    def measure(self, clock: Clock) -> Measurement:
        """Read the driver.

        Raises:
            DriverError: the arm reports a fault.
            MeasurementFault: not finite, of another shape, or not of now.
        """
        asked = clock.now()
        measured = self._driver.read()
        if len(measured.q) != self._joints or len(measured.dq) != self._joints:
            raise MeasurementFault(f"{len(measured.q)} joints are measured, {self._joints} are in the spec")
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
        length = math.hypot(*measured.pose.quaternion.tolist())
        if abs(length - 1) > _UNIT_LENGTH:
            raise MeasurementFault(f"the measured quaternion has the length {length}")
        # Old already when it was asked for, or later than the answer: time for which this process was
        # suspended in between is neither.
        age, ahead = asked - measured.t, measured.t - clock.now()
        if max(age, ahead) > self._oldest:
            raise MeasurementFault(
                f"the newest measurement is {age / MS:.1f} ms old, {self._oldest / MS:.0f} ms are allowed"
            )
        self.measured = measured
        return measured

    def enable(self, measured: Measurement) -> None:
        """Hold the arm where it is.

        Raises:
            DriverError: it cannot.
        """
        self._driver.enable()
        self._limiter.reset(measured)
        self.let_go()
        self.enabled = True

    def disable(self) -> None:
        """Stop the arm in its own way, first of all.

        Raises:
            DriverError: it did not take it.
        """
        self.enabled = False
        self.let_go()
        try:
            self._driver.stop()
        finally:
            if self._gripper:
                self._gripper.stop()

    def let_go(self) -> None:
        """Follow nothing: brake, then stand."""
        self._goal = None
        self._way_home = []
        self._waypoints.clear()

    def freeze(self) -> None:
        """Stand at the setpoint, as the arm does after a time without ticks."""
        self._limiter.freeze()

    def plan(self, command: Command, now: int, first: bool) -> Goal[Target]:
        """Take a command as a waypoint.

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
        self._waypoints.add(Waypoint(goal.target, begins, expires, command.seq, command.gripper))
        return goal

    def go_home(self, now: int) -> None:
        """Take rest as the goal, in place of all that waits.

        Raises:
            Refusal: UNREACHABLE.
        """
        if self._goal is None or self._goal.seq:
            way = self._planner.home(self._limiter.setpoint)
            self._waypoints.clear()
            self._take_way_home(way, now)

    def _take_way_home(self, way: list[Target], now: int) -> None:
        target, *self._way_home = way
        self._goal = Waypoint(target, now, now, 0, None)

    def due(self, now: int) -> list[Waypoint[Target]]:
        """Make the waypoint whose time has come the goal. Returns those that were too old for it."""
        waypoint, late = self._waypoints.due(now)
        if waypoint:
            self._goal = waypoint
            self._way_home = []
            if self._gripper and waypoint.gripper is not None:
                self._gripper.put(waypoint.gripper)
        return late

    def advance(self, measured: Measurement) -> Step[Target]:
        """One tick towards the goal, or to rest where there is none; written to the driver.

        Raises:
            DriverError: the arm did not take it.
        """
        step = self._limiter.step(self._goal.target if self._goal else None, measured)
        if step.stopped:
            self.let_go()
        elif self._goal and self._way_home and not self._limiter.moving:
            self._take_way_home(self._way_home, self._goal.begins)
        self._driver.write(step.setpoint)
        return step


def joint_arm(driver: Driver, gripper: GripperMailbox | None) -> ArmMotion[Array]:
    """An arm that takes joints."""
    spec, kinematics = driver.spec, driver.kinematics
    return ArmMotion(driver, JointLimiter(spec, kinematics), JointPlanner(spec, kinematics), gripper)


def cartesian_arm(driver: Driver, gripper: GripperMailbox | None) -> ArmMotion[Pose]:
    """An arm that takes poses."""
    spec = driver.spec
    return ArmMotion(driver, CartesianLimiter(spec), CartesianPlanner(spec, driver.kinematics), gripper)
