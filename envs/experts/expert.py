"""Base class of the scripted experts: motion primitives, style, errors and action noise.

An expert sees the simulator's true state. It is a state machine: `decide` returns the action for
`self.phase`, and the primitives set the next phase when they are done. Phases are re-entrant, so an
expert can take over from any state of the simulation.

Poses are of the grip site, in the world frame. robosuite's fixed arms have their base frame
parallel to the world frame, so a world-frame delta is what the controller expects.
"""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from functools import singledispatch

import numpy as np
from robosuite.environments.manipulation.manipulation_env import ManipulationEnv
from scipy.spatial.transform import Rotation

OPEN, CLOSE = -1.0, 1.0
PICK = ("via", "above", "down", "close")
POS_SCALE, ROT_SCALE = 0.05, 0.5  # m and rad of a full action, as in robosuite's BASIC controller
GAIN = 1.6  # goals are relative to the achieved pose; above 2 the closed loop overshoots
NOISE_MEMORY = 0.6  # correlation of the action noise from one step to the next (about 0.1 s)
HELD = 0.035  # m; an object farther than this from the hand has been lost
MIN_HELD_WIDTH, MAX_HELD_WIDTH = 0.004, 0.072  # m between the fingers while they hold an object
# Fingers down, opening along world y: the Panda's home orientation.
HAND_DOWN = Rotation.from_matrix([[0, 1, 0], [1, 0, 0], [0, 0, -1]])


@dataclass(frozen=True)
class WorldPose:
    """Position [3] in m, rotation in the world frame."""

    pos: np.ndarray
    rot: Rotation

    @property
    def yaw(self) -> float:
        """Heading of the x axis about world z, rad."""
        x = self.rot.as_matrix()[:, 0]
        return float(np.arctan2(x[1], x[0]))


@dataclass(frozen=True)
class Style:
    """Style of one episode, drawn at its reset."""

    speed: float  # top speed, as a fraction of the controller's maximum
    hover: float  # m; distance from the object along the fingers before approaching it
    via: np.ndarray  # [3] m, detour point relative to the first hover point
    other_yaw: bool  # use the second nearest grasp angle of a symmetric object
    linger: int  # control steps waited after the fingers have closed


@dataclass(frozen=True)
class Errors:
    """Errors of one attempt, drawn at each attempt. All zero at skill 1."""

    grasp: np.ndarray  # [3] m, error of the grasp point
    place: np.ndarray  # [3] m, error of the place point
    yaw: float  # rad, error of the grasp angle
    close_early: float  # m before the grasp point at which the fingers close
    drop_early: float  # m before the place point at which the fingers open
    reaction_steps: int  # steps before a lost object is noticed


@singledispatch
def hand(sim: ManipulationEnv) -> WorldPose:
    """Pose of the grip site."""
    site = sim.robots[0].eef_site_id["right"]
    data = sim.sim.data
    return WorldPose(data.site_xpos[site].copy(), Rotation.from_matrix(data.site_xmat[site].reshape(3, 3)))


def body(sim: ManipulationEnv, body_id: int) -> WorldPose:
    """Pose of a body of the model."""
    data = sim.sim.data
    return WorldPose(
        data.body_xpos[body_id].copy(), Rotation.from_matrix(data.body_xmat[body_id].reshape(3, 3))
    )


@singledispatch
def finger_speed(sim: ManipulationEnv) -> np.ndarray:
    """Speed of each finger, [2] m/s."""
    return sim.sim.data.qvel[sim.robots[0]._ref_gripper_joint_vel_indexes["right"]]


@singledispatch
def opening(sim: ManipulationEnv) -> float:
    """Width between the fingers, m."""
    qpos = sim.sim.data.qpos[sim.robots[0]._ref_gripper_joint_pos_indexes["right"]]
    return float(np.abs(qpos).sum())


def hand_down(yaw: float) -> Rotation:
    """Rotation of a hand with fingers down that opens at `yaw` rad from world y."""
    return Rotation.from_euler("z", yaw) * HAND_DOWN


def hand_yaw(hand: WorldPose) -> float:
    """The `yaw` for which `hand_down(yaw)` is nearest to the hand's rotation, rad."""
    return WorldPose(hand.pos, hand.rot * HAND_DOWN.inv()).yaw


def nearest_angle(angle: float, to: float, period: float, *, other: bool = False) -> float:
    """The angle of `angle + k * period` nearest to `to`, or with `other` the second nearest (rad)."""
    away = (angle - to + period / 2) % period - period / 2
    if other:
        away -= np.copysign(period, away)
    return to + away


class Expert(ABC):
    """A scripted demonstrator.

    noise: standard deviation of the action noise in normalised units, correlated in time, on the
        six arm dimensions and never on the gripper.
    skill: from 0 to 1. In proportion to `1 - skill` the expert is slower, hesitates, misplaces
        waypoints, misses grasps, drops objects and notices it late.
    rng: generator of all random numbers.
    """

    retry_phase: str = "above"

    def __init__(self, *, noise: float, skill: float, rng: np.random.Generator) -> None:
        if not 0 <= noise < np.inf:
            raise ValueError(f"noise is a standard deviation; give 0 or more, not {noise}")
        if not 0 <= skill <= 1:
            raise ValueError(f"skill goes from 0 to 1, not {skill}")
        self.noise, self.skill, self.rng = noise, skill, rng

    def reset(self, sim: ManipulationEnv) -> None:
        """Start an episode from the current state of `sim`, and draw its style."""
        weak, rng = 1 - self.skill, self.rng
        # Direction and distance of the detour point `via`.
        angle = rng.uniform(-np.pi, np.pi)
        radius = rng.uniform(0.0, 0.02 + 0.10 * weak)
        self.style = Style(
            speed=rng.uniform(0.8, 1.0) * (1 - weak * rng.uniform(0.2, 0.7)),
            hover=rng.uniform(0.05, 0.08 + 0.07 * weak),
            via=np.array([radius * np.cos(angle), radius * np.sin(angle), rng.uniform(0, radius)]),
            other_yaw=bool(rng.random() < 0.5 * weak),
            linger=int(rng.integers(0, 3)),
        )
        self.action_noise = self.noise * rng.standard_normal(6)
        self.pause = 0
        self.held_at, self.offset = hand(sim), np.zeros(3)
        self.begin("via")

    def act(self, sim: ManipulationEnv) -> np.ndarray:
        """The action of this control step: float32 [7] in [-1, 1], the last one the gripper."""
        action = self.decide(sim)
        self.phase_steps += 1
        weak = 1 - self.skill
        if self.pause == 0 and self.rng.random() < 0.04 * weak:
            self.pause = int(self.rng.integers(3, 13))
        if self.pause > 0:
            self.pause -= 1
            action[:6] = 0.0
        if self.noise > 0:
            fresh = self.noise * self.rng.standard_normal(6)
            self.action_noise = NOISE_MEMORY * self.action_noise + np.sqrt(1 - NOISE_MEMORY**2) * fresh
            action[:6] += self.action_noise
        return np.clip(action, -1, 1).astype(np.float32)

    def take_over(self, sim: ManipulationEnv) -> None:
        """Continue an episode that another policy has begun, without releasing an object that is held."""
        self.reset(sim)
        if self.holds(sim):
            self.begin("raise")

    def grasp_and_target(self, sim: ManipulationEnv) -> tuple[np.ndarray, np.ndarray]:
        """Grasp point of the object, and its target position, [3] m each.

        Raises:
            ValueError: if nothing is carried in this task.
        """
        raise ValueError(f"{type(self).__name__} does not carry an object to a target")

    def holds(self, sim: ManipulationEnv) -> bool:
        """Whether the object is between the fingers and keeps them from closing."""
        near = np.linalg.norm(self.grasp_and_target(sim)[0] - hand(sim).pos) < HELD
        return bool(near and MIN_HELD_WIDTH < opening(sim) < MAX_HELD_WIDTH)

    @abstractmethod
    def decide(self, sim: ManipulationEnv) -> np.ndarray:
        """This step's action [7] without noise; advances `self.phase`."""

    def begin(self, phase: str) -> None:
        """Enter a phase. The first phase of an attempt also draws the attempt's errors."""
        self.phase, self.phase_steps, self.stall, self.still, self.closest = phase, 0, 0, 0, np.inf
        if phase in ("via", self.retry_phase):
            self.errors, self.away = self._draw_errors(), 0

    def _draw_errors(self) -> Errors:
        weak, rng = 1 - self.skill, self.rng
        return Errors(
            grasp=0.022 * weak * rng.standard_normal(3),
            place=0.022 * weak * rng.standard_normal(3),
            yaw=0.35 * weak * rng.standard_normal(),
            close_early=rng.uniform(0.01, 0.06) * (rng.random() < 0.6 * weak),
            drop_early=rng.uniform(0.01, 0.08) * (rng.random() < 0.5 * weak),
            reaction_steps=int(rng.uniform(0, 40 * weak)),
        )

    # Primitives: each returns an action [7] and enters phase `then` when it is done.

    def move(
        self,
        sim: ManipulationEnv,
        pos: np.ndarray,
        rot: Rotation,
        grip: float,
        *,
        then: str | None = None,
        tol: float = 0.008,
        rot_tol: float = 0.15,
        speed: float = 1.0,
    ) -> np.ndarray:
        """Servo the grip site to a pose; done within `tol` m and `rot_tol` rad of it."""
        now = hand(sim)
        to_go = pos - now.pos
        turn = (rot * now.rot.inv()).as_rotvec()
        left = float(np.linalg.norm(to_go))
        self.stall = 0 if left < self.closest - 0.002 else self.stall + 1
        self.closest = min(self.closest, left)
        # With noise or contact a tight tolerance may never be met, so it grows during a stall.
        slack = max(1.0, self.stall / 6)
        near = left < slack * tol and np.linalg.norm(turn) < slack * rot_tol
        if then is not None and near:
            self.begin(then)
        limit, step, turn = speed * self.style.speed, GAIN * to_go / POS_SCALE, GAIN * turn / ROT_SCALE
        # Height is limited separately: a long way down must not suppress a small sideways correction.
        parts = (_limited(step[:2], limit), _limited(step[2:], limit), _limited(turn, limit))
        return np.concatenate([*parts, [grip]])

    def grip(self, sim: ManipulationEnv, pose: WorldPose, grip: float, *, then: str, wait: int) -> np.ndarray:
        """Hold a pose until the fingers have stood still for `wait` steps."""
        still = np.abs(finger_speed(sim)).max() < 0.01 and self.phase_steps >= 3
        self.still = self.still + 1 if still else 0
        if self.still > wait:
            self.begin(then)
        return self.move(sim, pose.pos, pose.rot, grip)

    def pick(self, sim: ManipulationEnv, point: np.ndarray, rot: Rotation, *, then: str) -> np.ndarray:
        """Phases via, above, down, close: grasp the object at `point` with hand rotation `rot`."""
        rot = Rotation.from_euler("z", self.errors.yaw) * rot
        point = point + self.errors.grasp
        above = point - self.style.hover * rot.apply([0, 0, 1])
        now = hand(sim).pos
        far = np.linalg.norm((above - now)[:2]) > 0.06
        match self.phase:
            case "via":
                return self.move(sim, above + self.style.via, rot, OPEN, then="above", tol=0.04, rot_tol=9)
            case "above":
                # Up before sideways, so that the hand does not push the object away.
                goal = np.array([*above[:2], max(above[2], now[2])]) if far else above
                return self.move(sim, goal, rot, OPEN, then="down", tol=0.02)
            case "down":
                self.held_at = WorldPose(np.array([*point[:2], max(point[2], now[2])]), rot)
                tol = 0.008 + self.errors.close_early
                return self.move(sim, point, rot, OPEN, then="close", tol=tol)
            case "close":
                return self.grip(sim, self.held_at, CLOSE, then=then, wait=self.style.linger)
        raise AssertionError(f"{self.phase} is not a phase of a pick")

    def place(
        self,
        sim: ManipulationEnv,
        point: np.ndarray,
        target: np.ndarray,
        *,
        over: float,
        turn: float = 0.0,
        tol: float = 0.008,
    ) -> np.ndarray:
        """Phases raise, carry, lower, release, leave: put the held object on `target`.

        point, target: current and target position of the object, [3] m. over: height above the
        target on the way, m. turn: remaining rotation about the vertical, rad. An object that is
        lost or ends in the wrong place is picked up again.
        """
        if self.phase in ("raise", "carry", "lower") and self.lost(sim, point):
            return self.decide(sim)
        now = hand(sim)
        if self.away == 0:  # later it no longer describes how the object is held
            self.offset = now.pos - point
        goal = target + self.errors.place + Rotation.from_euler("z", turn).apply(self.offset)
        rot = hand_down(hand_yaw(now) + turn)
        above = np.array([*goal[:2], goal[2] + over])
        match self.phase:
            case "raise":
                up = np.array([*now.pos[:2], above[2]])
                return self.move(sim, up, hand_down(hand_yaw(now)), CLOSE, then="carry", tol=0.03)
            case "carry":
                return self.move(sim, above, rot, CLOSE, then="lower", tol=tol, rot_tol=0.05)
            case "lower":
                self.held_at = WorldPose(now.pos, rot)
                drop = tol + self.errors.drop_early
                return self.move(sim, goal, rot, CLOSE, then="release", tol=drop, speed=0.7)
            case "release":
                return self.grip(sim, self.held_at, OPEN, then="leave", wait=0)
            case "leave":
                up = self.held_at.pos + np.array([0, 0, 0.10])
                then = None if sim._check_success() else self.retry_phase
                return self.move(sim, up, self.held_at.rot, OPEN, then=then, tol=0.03)
        raise AssertionError(f"{self.phase} is not a phase of a place")

    def lost(self, sim: ManipulationEnv, point: np.ndarray) -> bool:
        """Whether the grasped `point` has left the hand long enough to be noticed; then the pick restarts."""
        apart = np.linalg.norm(point - hand(sim).pos) > HELD
        self.away = self.away + 1 if apart else 0
        if self.away > self.errors.reaction_steps:
            self.begin(self.retry_phase)
            return True
        return False


def _limited(vector: np.ndarray, limit: float) -> np.ndarray:
    """`vector` scaled down to length `limit` if it is longer."""
    return vector * min(1.0, limit / max(float(np.linalg.norm(vector)), 1e-9))
