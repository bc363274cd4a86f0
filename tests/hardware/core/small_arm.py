"""Two small arms that follow with a lag and check, with every setpoint, what the core promises a driver."""

import math

import numpy as np

from robot_rl.hardware.clock import MS, SteppedClock
from robot_rl.hardware.core import rotation
from robot_rl.hardware.core.core import CoreSettings, RobotCore
from robot_rl.hardware.core.lease import Peer
from robot_rl.hardware.core.motion import BRAKING_TOLERANCE
from robot_rl.hardware.drivers.driver import Array, DriverError, Gripper, Kinematics, Measurement, Pose
from robot_rl.hardware.protocol import messages as m
from robot_rl.hardware.spec import CommandMode, GripperSpec, Limits, RobotSpec, Space

RATE = 100.0
PERIOD = 10_000_000
LAG = 0.03
LENGTHS = (0.4, 0.35)
# Ticks within which a setpoint at full speed comes to rest: v / a + a / j = 0.25 s, and some.
BRAKING = 30
STARTS = 3
RESET = 400 * MS
"""How long a scene takes to begin again."""


class Scara:
    """Two links in the plane, a wrist about z, a lift: [4] rad, rad, rad, m."""

    def forward(self, q: Array) -> Pose:
        a, b, c, z = q.tolist()
        x = LENGTHS[0] * math.cos(a) + LENGTHS[1] * math.cos(a + b)
        y = LENGTHS[0] * math.sin(a) + LENGTHS[1] * math.sin(a + b)
        return Pose(np.array([x, y, z]), np.array(rotation.exponential([0.0, 0.0, a + b + c])))

    def inverse(self, pose: Pose, near: Array) -> Array | None:
        x, y, z = pose.position.tolist()
        rx, ry, yaw = rotation.logarithm(pose.quaternion.tolist())
        cosine = (x * x + y * y - LENGTHS[0] ** 2 - LENGTHS[1] ** 2) / (2 * LENGTHS[0] * LENGTHS[1])
        if abs(cosine) > 1 or math.hypot(rx, ry) > 1e-6:
            return None
        elbow = math.copysign(math.acos(cosine), near[1])
        shoulder = math.atan2(y, x) - math.atan2(
            LENGTHS[1] * math.sin(elbow), LENGTHS[0] + LENGTHS[1] * math.cos(elbow)
        )
        wrist = yaw - shoulder - elbow
        turns = round((near[2] - wrist) / (2 * math.pi))
        return np.array([shoulder, elbow, wrist + 2 * math.pi * turns, z])


class Floating:
    """Six numbers: the position, m, and a rotation vector, rad."""

    def forward(self, q: Array) -> Pose:
        return Pose(q[:3].copy(), np.array(rotation.exponential(q[3:].tolist())))

    def inverse(self, pose: Pose, near: Array) -> Array | None:
        return np.array([*pose.position, *rotation.logarithm(pose.quaternion.tolist())])


def make_spec(space: Space, **changed: object) -> RobotSpec:
    n = 4 if space == "joint" else 6
    limits: dict[str, object] = {
        "joint_lower": (-2.5,) * n,
        "joint_upper": (2.5,) * n,
        "joint_velocity": (1.0,) * n,
        "joint_acceleration": (5.0,) * n,
        "joint_jerk": (100.0,) * n,
        "workspace_lower": (-0.2, -0.6, -0.3),
        "workspace_upper": (0.7, 0.6, 0.5),
        "linear_velocity": 1.0,
        "linear_acceleration": 8.66,
        "linear_jerk": 173.2,
        "angular_velocity": 2.0,
        "angular_acceleration": 17.32,
        "angular_jerk": 346.4,
        "lead_joint": 0.1,
        "lead_linear": 0.1,
        "lead_angular": 0.2,
    }
    modes: tuple[CommandMode, ...] = ("cartesian_pose", "cartesian_delta")
    return RobotSpec(
        name=f"small {space} arm",
        driver="test",
        space=space,
        modes=("joint_position", *modes) if space == "joint" else modes,
        joints=tuple(f"joint_{number}" for number in range(n)),
        home=(0.3, 0.8, -0.4, 0.1) if space == "joint" else (0.3, 0.1, 0.1, 0.0, 0.0, 0.2),
        rate=RATE,
        limits=Limits(**{**limits, **changed}),  # type: ignore[arg-type]
        gripper=GripperSpec(width=0.08, force=40.0, speed=0.1),
        sensors={"success": 1},
    )


class SmallArm:
    """Follows its setpoint with a first-order lag; fails where it is told to.

    It asserts what a driver may rely on: setpoints only while enabled, finite, inside both boxes, never
    faster than the limits, never farther than the lead from what it has measured.
    """

    def __init__(self, clock: SteppedClock, space: Space, **changed: object) -> None:
        self.clock = clock
        self._spec = make_spec(space, **changed)
        self._kinematics: Kinematics = Scara() if space == "joint" else Floating()
        self.q = np.array(self._spec.home)
        self.last_read = self.q.copy()
        self._target = self.q.copy()
        self._moved_at = clock.now()
        self.enabled = self.is_open = False
        self.written: list[Array | Pose] = []
        self.calls: list[str] = []
        self.blocked = self.frozen = self.nan = False
        self.failing: set[str] = set()
        self.failure = ""
        self._frozen_at = 0

    @property
    def spec(self) -> RobotSpec:
        return self._spec

    @property
    def kinematics(self) -> Kinematics:
        return self._kinematics

    @property
    def gripper(self) -> Gripper | None:
        return None

    def open(self) -> None:
        self._may_fail("open")
        self.is_open = True

    def enable(self) -> None:
        self._may_fail("enable")
        assert self.is_open
        self.settle()
        self.enabled = True
        self._target = self.q.copy()
        self.written = []

    def read(self) -> Measurement:
        self._may_fail("read")
        assert self.is_open
        self.settle()
        t = self._frozen_at if self.frozen else self.clock.now()
        self._frozen_at = t
        self.last_read = self.q.copy()
        q = self.q.copy()
        pose = self._kinematics.forward(q)
        if self.nan:
            q[-1] = math.nan
        return Measurement(
            t=t,
            q=q,
            dq=self.dq,
            tau=np.empty(0),
            pose=pose,
            wrench=np.empty(0),
            sensors={"success": np.zeros(1)},
        )

    def write(self, setpoint: Array | Pose) -> None:
        assert self.is_open
        assert self.enabled, "a setpoint for an arm that is not enabled"
        self._may_fail("write")
        if isinstance(setpoint, Pose):
            self._check_pose(setpoint)
            target = self._kinematics.inverse(setpoint, self.q)
        else:
            self._check_joints(setpoint)
            target = setpoint.copy()
        assert target is not None
        self.written.append(setpoint)
        self.settle()
        self._target = target

    def stop(self) -> None:
        self.calls.append("stop")
        self.settle()
        self.enabled = False
        # It coasts a little.
        self._target = self.q + self.dq * LAG / 2
        self._may_fail("stop")

    def reset(self, start: int) -> None:
        """Where it stands is its scene."""
        assert not self.enabled, "a scene that begins again under an arm that is enabled"
        if start >= STARTS:
            raise ValueError(f"start={start}: there are {STARTS} beginnings")
        self._may_fail("reset")
        self.clock.advance(RESET)
        self.settle()
        self.q = self._target = np.array(self._spec.home) + 0.1 * start

    def recover(self) -> None:
        self.calls.append("recover")
        self._may_fail("recover")

    def close(self) -> None:
        self.enabled = self.is_open = False

    def shove(self, by: Array) -> None:
        """Somebody pushes it."""
        self.settle()
        self.q = self.q + by

    def _may_fail(self, what: str) -> None:
        if what in self.failing:
            raise DriverError(self.failure or f"{what} fails, as it was told to")

    def settle(self) -> None:
        """Be where it has come to by now."""
        now = self.clock.now()
        dt = (now - self._moved_at) * 1e-9
        self._moved_at = now
        if dt <= 0:
            return
        if not self.blocked:
            self.q = self._target + (self.q - self._target) * math.exp(-dt / LAG)

    @property
    def dq(self) -> Array:
        """At the moment to which it has settled."""
        return np.zeros_like(self.q) if self.blocked else (self._target - self.q) / LAG

    def _check_joints(self, setpoint: Array) -> None:
        limits = self._spec.limits
        assert setpoint.shape == self.q.shape
        assert np.isfinite(setpoint).all()
        last = self.written[-1] if self.written else self._target
        assert isinstance(last, np.ndarray)
        step = np.abs(setpoint - last)
        assert (step <= np.array(limits.joint_velocity) / RATE + 1e-9).all(), "faster than joint_velocity"
        assert (setpoint >= np.array(limits.joint_lower) - 1e-9).all()
        assert (setpoint <= np.array(limits.joint_upper) + 1e-9).all()
        lead = np.abs(setpoint - self.last_read).max()
        before = np.abs(last - self.last_read).max()
        assert lead <= max(limits.lead_joint, before) + 1e-9, "farther ahead than lead_joint"
        old, new = self._kinematics.forward(last), self._kinematics.forward(setpoint)
        # Its way to rest is curved.
        self._check_tool(old, new, 1.01, BRAKING_TOLERANCE)

    def _check_pose(self, setpoint: Pose) -> None:
        limits = self._spec.limits
        assert np.isfinite(setpoint.position).all()
        assert np.isfinite(setpoint.quaternion).all()
        assert abs(np.linalg.norm(setpoint.quaternion) - 1) < 1e-9
        last = self.written[-1] if self.written else self._kinematics.forward(self._target)
        assert isinstance(last, Pose)
        self._check_tool(last, setpoint, 1.0, 1e-9)
        arm = self._kinematics.forward(self.last_read)
        lead = np.linalg.norm(setpoint.position - arm.position)
        before = np.linalg.norm(last.position - arm.position)
        assert lead <= max(limits.lead_linear, before) + 1e-9, "farther ahead than lead_linear"
        lead = rotation.angle(arm.quaternion, setpoint.quaternion)
        before = rotation.angle(arm.quaternion, last.quaternion)
        assert lead <= max(limits.lead_angular, before) + 1e-7, "farther ahead than lead_angular"

    def _check_tool(self, old: Pose, new: Pose, slack: float, outside: float) -> None:
        limits = self._spec.limits
        moved = float(np.linalg.norm(new.position - old.position))
        assert moved <= slack * limits.linear_velocity / RATE + 1e-9, "faster than linear_velocity"
        turned = rotation.angle(old.quaternion, new.quaternion)
        assert turned <= slack * limits.angular_velocity / RATE + 1e-7, "faster than angular_velocity"
        assert (new.position >= np.array(limits.workspace_lower) - outside).all(), "outside the workspace"
        assert (new.position <= np.array(limits.workspace_upper) + outside).all(), "outside the workspace"


class Fingers:
    """A gripper's mailbox that is only written down."""

    def __init__(self) -> None:
        self.goals: list[float] = []
        self.stops = 0
        self.fault = ""

    def put(self, opening: float) -> None:
        self.goals.append(opening)

    def stop(self) -> None:
        self.stops += 1

    def latest(self) -> m.Gripped | None:
        return m.Gripped(opening=0.5, t=1, goal=self.goals[-1] if self.goals else 0.5)

    def acknowledge(self) -> None:
        self.fault = ""


POLICY = Peer("policy", "policy", "src-policy")
OTHER = Peer("other policy", "policy", "src-other")
OPERATOR = Peer("operator", "operator", "src-operator")
OBSERVER = Peer("observer", "observer", "src-observer")


class Bench:
    """A core with a small arm, its clock, and short ways to ask and to let time pass."""

    def __init__(self, space: Space = "joint", **changed: object) -> None:
        self.clock = SteppedClock()
        self.arm = SmallArm(self.clock, space, **changed)
        self.fingers = Fingers()
        self.core = RobotCore(self.arm, CoreSettings(), self.clock, "session", self.fingers)
        self.seq = 0
        self.state: m.State | None = None

    def ask(self, peer: Peer, kind: type[m.Message], /, **fields: object) -> m.ServerMessage:
        self.seq += 1
        message = kind(
            src=peer.src,
            seq=fields.pop("seq", self.seq),  # type: ignore[arg-type]
            tm=self.clock.now(),
            **fields,
        )
        return self.core.handle(peer, message)  # type: ignore[arg-type]

    def tick(self, count: int = 1) -> m.State:
        for _ in range(count):
            self.clock.advance(PERIOD)
            self.state = self.core.tick()
        assert self.state is not None
        return self.state

    def make(self, lease: int, mode: CommandMode, data: object, **fields: object) -> dict[str, object]:
        numbers = tuple(float(value) for value in data)  # type: ignore[attr-defined]
        return {"lease": lease, "mode": mode, "data": numbers, "t_sent": self.clock.now(), **fields}

    def command(
        self, peer: Peer, lease: int, mode: CommandMode, data: object, **fields: object
    ) -> m.ServerMessage:
        return self.ask(peer, m.Command, **self.make(lease, mode, data, **fields))

    def armed(self) -> None:
        self.core.open()
        self.tick()
        self.done(OPERATOR, m.Arm, spec_sha256=self.arm.spec.sha256)

    def done(self, peer: Peer, kind: type[m.Message], /, **fields: object) -> m.Done:
        answer = self.ask(peer, kind, **fields)
        assert isinstance(answer, m.Done), answer
        return answer

    def lease(self, peer: Peer = POLICY, kind: m.Kind = "policy", preempt: bool = False) -> int:
        return self.done(peer, m.AcquireLease, kind=kind, preempt=preempt).lease

    def here(self) -> tuple[CommandMode, tuple[float, ...]]:
        """A command that leaves the arm where it is held."""
        setpoint = self.tick().setpoint
        return ("joint_position" if self.arm.spec.space == "joint" else "cartesian_pose"), setpoint

    def begin(self, peer: Peer = POLICY, kind: m.Kind = "policy") -> int:
        """Armed, with a lease, commanded to stay."""
        if self.core.mode is m.Mode.DISCONNECTED:
            self.armed()
        lease = self.lease(peer, kind)
        mode, data = self.here()
        assert isinstance(self.command(peer, lease, mode, data), m.Ack)
        return lease

    def follow(
        self, lease: int, mode: CommandMode, data: object, ticks: int, peer: Peer = POLICY
    ) -> m.ServerMessage:
        """Command the same at every tick."""
        answer: m.ServerMessage | None = None
        for _ in range(ticks):
            answer = self.command(peer, lease, mode, data)
            self.tick()
        assert answer is not None
        return answer
