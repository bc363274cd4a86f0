"""Gymnasium environment of a robot behind its server, with the interface of `RobosuiteEnv`."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import gymnasium as gym
import numpy as np

from robot_rl.envs.action import checked_action, spec_from_list
from robot_rl.envs.instruction import INSTRUCTION, encode_instruction, known_instructions
from robot_rl.envs.observation import (
    IMAGE_PREFIX,
    Observation,
    ObservationSpec,
    make_observation,
    observation_space,
)
from robot_rl.envs.robot_action import RobotAction, hold, move_between, moved_by
from robot_rl.envs.robot_state import SUCCESS, RobotState
from robot_rl.hardware.cameras.reader import (
    AlignedImages,
    CameraImage,
    FrameReader,
    StaleFrame,
    newest_aligned,
)
from robot_rl.hardware.client import CommandRefused, RobotClient
from robot_rl.hardware.clock import MS, Clock, MonotonicClock
from robot_rl.hardware.connection import RequestRefused, RobotError
from robot_rl.hardware.core import modes
from robot_rl.hardware.protocol.messages import HORIZON_MS, Ack, Code, Kind, State
from robot_rl.hardware.spec import CommandMode, RobotSpec

Prepare = Callable[[int], None]
"""Prepares an episode, given its number. The arm is disarmed and may be in any pose."""
Judge = Callable[[State, int], bool]
"""Returns whether the task is done, given the state and when the episode began, ns on the server's clock."""

# Refusals that end an episode: the lease was lost, or the arm is held or in fault.
_ENDS = frozenset({Code.NO_LEASE, Code.MODE, Code.FAULT, Code.ROLE, Code.BUSY})
_MAX_WAIT_S = 1.0
"""Largest time from an observation to the action that follows from it, s. Within an episode the lease, at
most as long, ends first; the first action has none yet and would move the arm however old the scene is."""


class RealArmEnv(gym.Env[Observation, np.ndarray]):
    """One robot, simulated or real, with observations, actions and rewards as in `RobosuiteEnv`.

    A step sends one command and returns the observation one control period after the last one, or later
    if the caller is slower. The lease is held from an episode's first step to its end, so the time between
    two steps must stay below the server's `lease_ms`. An episode is truncated if the arm is taken away (by
    an operator, a pause or a fault); the next reset then fails unless the arm can be armed.

    With cameras, an observation is of one moment: the newest that all cameras have seen, with the robot
    state at that time. With `lookahead_ms` an action takes effect that long after its step was due,
    independent of the policy's computing time; without, it takes effect on arrival. Both use the latencies
    that the client knows of the robot.

    `info` holds `success`; `applied_action`, the action after the server's limits; `clipped`, the names of
    the active limits; `refused`, the code of a command that the server rejected (then nothing was applied),
    and `interrupted`, the reason of a truncation, both "" otherwise; `ages_ms` of everything observed; and
    `late_ms`, the delay of the observation. With cameras, `aligned_ms` is the largest time difference
    between an image and the observation. With a lookahead, `acted_late_ms` is the delay of the command
    relative to its target time, 0 if it arrived in time.
    """

    def __init__(
        self,
        client: RobotClient,
        environment: Mapping[str, Any],
        *,
        prepare: Prepare,
        judge: Judge | None = None,
        frames: FrameReader | None = None,
        max_age_ms: float | None = None,
        max_spread_ms: float | None = None,
        lookahead_ms: float | None = None,
        clock: Clock | None = None,
        instruction: str | None = None,
    ) -> None:
        """Check that the client's robot fits the environment. It is not armed before the first reset.

        Args:
            client: connected, with the role policy or operator; the caller closes it.
            environment: description of the environment that a policy or dataset was made in (`describe`);
                task, control_freq, horizon, observation_spec and action_spec are used.
            prepare: called at each reset.
            judge: returns whether the task is done; by default the robot's sensor `success`.
            frames: images of the observed cameras; the caller closes it.
            max_age_ms: maximum age of a state; by default one and a half control periods.
            max_spread_ms: maximum time between an image and the observation; by default a control period.
            lookahead_ms: see above. It extends to the arm's motion, or to when the server acts if the
                latency of its actions is not known, and must cover that latency and the policy's time.
            clock: the clock of this machine.
            instruction: what the robot is asked to do; see `asked_instruction`.

        Raises:
            ValueError: if the robot does not measure or accept what the environment needs, or its latency is
                longer than the lookahead.
        """
        robot = client.spec
        self._client, self._prepare, self._frames = client, prepare, frames
        self._environment = dict(environment)
        self._clock = clock or MonotonicClock()
        self._period = round(1e9 / environment["control_freq"])
        self._max_age_ms = 1.5 * self._period / MS if max_age_ms is None else max_age_ms
        self._max_spread_ms = self._period / MS if max_spread_ms is None else max_spread_ms
        self._lookahead_ns = None if lookahead_ms is None else _lookahead_ns(client, lookahead_ms)
        self.horizon = int(environment["horizon"])
        self.observation_spec = ObservationSpec.from_dict(environment["observation_spec"])
        self.action_spec = spec_from_list(environment["action_spec"])
        self._robot_state = RobotState(robot, self.observation_spec)
        poses = lookahead_ms is not None or any(dim.kind == "absolute" for dim in self.action_spec)
        self._mode: CommandMode = "cartesian_pose" if poses else "cartesian_delta"
        self._robot_action = RobotAction(robot, self.action_spec, self._mode)
        self._judge = judge or _sensor_judge(robot)
        if self.observation_spec.cameras and frames is None:
            raise ValueError(f"cameras {', '.join(self.observation_spec.cameras)} are observed: give frames")
        asked = asked_instruction(environment, instruction)
        self.asked = {} if asked is None else {INSTRUCTION: encode_instruction(asked)}
        """The raw observation of the instruction; empty if none is observed."""
        self._camera_latency_ns = _camera_latency_ns(client, self.observation_spec.cameras)
        self.action_space = gym.spaces.Box(-1.0, 1.0, (self._robot_action.size,), np.float32)
        self.observation_space: gym.Space = observation_space(self.observation_spec)
        self.commander: Kind = "policy"
        """Source of the next action. If it changes, the lease is taken again in the same step."""
        self._leased: Kind | None = None
        self._episode = -1
        self._steps: int | None = None
        self._state: State | None = None
        self._began = self._due = self._returned = 0

    def describe(self) -> dict[str, Any]:
        """Metadata for a dataset: the description of the environment, and the robot."""
        robot = self._client.spec
        return {**self._environment, "real_robot": {"name": robot.name, "spec_sha256": robot.sha256}}

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Observation, dict[str, Any]]:
        """Begin an episode; `seed` is its number for `prepare`, by default the last number plus one.

        Raises:
            RobotError: if the arm cannot be armed, for example before its fault is acknowledged.
        """
        super().reset(seed=seed)
        self._episode = self._episode + 1 if seed is None else seed
        self._steps = None
        self._disarm()
        self.commander = "policy"
        self._prepare(self._episode)
        if self._client.sample().mode not in modes.ENABLED:
            self._client.arm()
        self._steps, self._leased = 0, None
        if self._camera_latency_ns:
            self._client.keep_states()
        # Requested, since a published state may be from before the scene was prepared.
        newest = self._client.sample()
        self._began = newest.t_sample
        obs, info = self._observe(newest, since=self._began)
        self._due = self._returned = self._clock.now()
        return obs, {"success": False, **info}

    def step(self, action: np.ndarray) -> tuple[Observation, float, bool, bool, dict[str, Any]]:
        """Run one control period.

        Raises:
            ValueError: if the action has another size or is not finite, or no episode runs; nothing moves.
            RobotError: without an answer or a fresh observation; the server stops the arm. Also if the action
                comes too long after its observation; nothing moves.
        """
        if self._steps is None:
            raise ValueError("the episode is over: reset the environment")
        action = checked_action(action, self._robot_action.size)
        if (waited := (self._clock.now() - self._returned) * 1e-9) > _MAX_WAIT_S:
            raise RobotError(
                f"the action came {waited:.1f} s after its observation, and at most {_MAX_WAIT_S:g} s are "
                "allowed: the arm was not moved"
            )
        applied, info = self._command(action)
        self._steps += 1
        self._due += self._period
        self._clock.sleep_until(self._due)
        late = max(0, self._clock.now() - self._due)
        # After a delay of more than one period the schedule restarts from now, without catching up.
        self._due += late if late > self._period else 0
        obs, ages = self._observe(self._client.state(self._max_age_ms * 1e-3))
        assert self._state is not None
        success = not info["interrupted"] and self._judge(self._state, self._began)
        truncated = not success and (bool(info["interrupted"]) or self._steps >= self.horizon)
        if success or truncated:
            self._steps = None
            self._client.release()
        info |= {"success": success, "applied_action": applied, "late_ms": late / MS, **ages}
        self._returned = self._clock.now()
        return obs, float(success), success, truncated, info

    def close(self) -> None:
        """Leave the arm disarmed, or to the client that has taken it meanwhile."""
        self._steps = None
        try:
            self._disarm()
        except RequestRefused as refusal:
            if refusal.code not in _ENDS:
                raise

    # ------------------------------------------------------------------------------------------

    def _command(self, action: np.ndarray) -> tuple[np.ndarray, dict[str, Any]]:
        """Send the command of an action; returns the applied action and entries of `info`."""
        assert self._state is not None
        move, opening = self._robot_action.command(action, self._state)
        info: dict[str, Any] = {"clipped": (), "refused": "", "interrupted": ""}
        try:
            if self._leased != self.commander:
                # Again in the next step if the hold is refused: an arm that still moves is far from its goal.
                self._leased = None
                self._client.acquire(self.commander)
                self._hold()
                self._leased = self.commander
            if self._mode == "cartesian_delta":
                ack = self._client.command("cartesian_delta", move, opening, obs_seq=self._state.seq)
                applied: Sequence[float] = ack.applied
            elif self._lookahead_ns is None:
                ack = self._schedule(move, opening, self._state, 0)
                applied = move_between(self._state, ack.applied)
            else:
                target = self._client.to_server(self._due) + self._lookahead_ns
                ack = self._schedule(move, opening, self._state, target)
                applied = move_between(self._state, ack.applied)
                info["acted_late_ms"] = (ack.t_applied - target) / MS
        except RequestRefused as refusal:
            info["refused"] = refusal.code.value
            if refusal.code in _ENDS:
                info["interrupted"] = str(refusal)
            elif not isinstance(refusal, CommandRefused):
                raise
            return self._robot_action.applied(np.zeros_like(action), [0.0] * 6, self._state), info
        if not ack.clipped:
            return action, info
        return self._robot_action.applied(action, applied, self._state), info | {"clipped": ack.clipped}

    def _hold(self) -> None:
        """Command the current pose: the first command of a lease must be close, an action need not be."""
        assert self._state is not None
        hold(self._client, self._mode, self._state)

    def _schedule(self, move: list[float], opening: float | None, state: State, target: int) -> Ack:
        """Command a pose for its target time, or for now if that has passed.

        It is not a delta, which would start from the arm's pose at the time of arrival.
        """
        begins = target if target > self._client.server_time() else 0
        pose = moved_by(state, move)
        return self._client.command("cartesian_pose", pose, opening, t_target=begins, obs_seq=state.seq)

    def _observe(self, newest: State, since: int = 0) -> tuple[Observation, dict[str, Any]]:
        """Observation of now or, with cameras, of the newest moment from `since` on that all have seen."""
        info: dict[str, Any] = {}
        images: dict[str, CameraImage] = {}
        state = newest
        if self._camera_latency_ns:
            moment = self._newest_moment(since)
            state, images = self._client.state_at(moment.t), dict(moment.images)
            info["aligned_ms"] = max(moment.offset_ns.values()) / MS
        self._state = state
        raw: dict[str, np.ndarray] = dict(self._robot_state.raw(state))
        now = self._client.server_time()
        ages = {"state": (now - state.t_sample) / MS}
        if state.gripper is not None:
            ages["gripper"] = (now - state.gripper.t) / MS
        for camera, seen in images.items():
            raw[IMAGE_PREFIX + camera], ages[camera] = seen.image, seen.age_ms
        raw |= self.asked
        return make_observation(raw, self.observation_spec), {"ages_ms": ages, **info}

    def _newest_moment(self, since: int) -> AlignedImages:
        assert self._frames is not None
        try:
            # At the start of an episode, wait: images may be from before it.
            moment = newest_aligned(
                self._frames, self._camera_latency_ns, since, self._client.timeout if since else 0.0
            )
        except StaleFrame as stale:
            raise RobotError(str(stale)) from stale
        camera = max(moment.offset_ns, key=moment.offset_ns.__getitem__)
        offset_ms = moment.offset_ns[camera] / MS
        if offset_ms > self._max_spread_ms:
            raise RobotError(
                f"camera {camera}: its nearest image is {offset_ms:.0f} ms from the one of the "
                f"others, at most {self._max_spread_ms:g} ms are allowed"
            )
        return moment

    def _disarm(self) -> None:
        """Release the lease, and disarm the arm if it is armed.

        Raises:
            RequestRefused: if another client has taken it: an operator could disarm it under its hands.
        """
        self._client.release()
        newest = self._client.sample()
        if newest.lease_holder:
            raise RequestRefused(Code.BUSY, f"{newest.lease_holder} has taken the arm")
        if newest.mode in modes.ENABLED:
            self._client.disarm()


def _camera_latency_ns(client: RobotClient, cameras: Sequence[str]) -> dict[str, int]:
    """Latency of each camera's time stamps, ns; 0 if it is not known."""
    known = {camera: round(delay.ms * MS) for camera, delay in client.latency.cameras.items()}
    return {camera: known.get(camera, 0) for camera in cameras}


def _sensor_judge(robot: RobotSpec) -> Judge:
    """Judge by the robot's sensor `success`.

    Raises:
        ValueError: if it has none.
    """
    if SUCCESS not in robot.sensors:
        raise ValueError(f"the robot {robot.name} has no sensor {SUCCESS!r}: give a judge")
    return lambda state, _: bool(state.sensors[SUCCESS][0])


def _lookahead_ns(client: RobotClient, lookahead_ms: float) -> int:
    """Time from when a step is due until the server acts on its command, ns."""
    action_ms = client.latency.action.ms if client.latency.action else 0.0
    if lookahead_ms < action_ms:
        raise ValueError(
            f"lookahead_ms={lookahead_ms:g}: {client.spec.name} takes {action_ms:g} ms to move; give more"
        )
    if lookahead_ms > HORIZON_MS:
        raise ValueError(
            f"lookahead_ms={lookahead_ms:g}: a robot plans {HORIZON_MS} ms ahead at most; give less"
        )
    return round((lookahead_ms - action_ms) * MS)


def asked_instruction(environment: Mapping[str, Any], instruction: str | None) -> str | None:
    """What the robot is asked to do, by default the environment's only instruction; None if not observed.

    Raises:
        ValueError: if one is given and not observed, or the environment has several and none is given.
    """
    if not ObservationSpec.from_dict(environment["observation_spec"]).instruction:
        if instruction is not None:
            raise ValueError(f"instruction={instruction!r}: the policy reads no instructions; leave it out")
        return None
    known = known_instructions(environment)
    if instruction is None and len(known) != 1:
        raise ValueError(f"instruction=… is needed: the policy was trained on {'; '.join(known) or 'some'}")
    return str(known[0]) if instruction is None else instruction
