"""The environment of an actor: a simulated task in its process, or a robot behind its server."""

from contextlib import suppress
from typing import Any, Protocol

import numpy as np

from robot_rl.envs.action import ActionSpec
from robot_rl.envs.observation import Observation
from robot_rl.envs.real_arm import RealArmEnv
from robot_rl.envs.robosuite_env import RobosuiteEnv
from robot_rl.hardware.client import RobotClient
from robot_rl.hardware.clock import MS, Clock, MonotonicClock, SteppedClock
from robot_rl.hardware.connection import RobotError
from robot_rl.hardware.protocol.messages import Mode
from robot_rl.hil.takeover import ControlState
from robot_rl.robot.deploy.turns import Turns

StepResult = tuple[Observation, float, bool, bool, dict[str, Any]]
"""Observation, reward, terminated, truncated, info; see `RobosuiteEnv` and `RealArmEnv`."""


class ActorEnvironment(Protocol):
    """One arm, an episode at a time. `info["late_ms"]` of a step is the delay of its observation, ms."""

    action_spec: ActionSpec
    realtime: bool
    """Whether control steps are due in real time."""

    def now(self) -> int:
        """Time of the current control step, ns."""
        ...

    def blocked(self) -> str:
        """Reason why an episode cannot begin yet, "" if it can.

        Raises:
            RobotError: if the robot is lost.
        """
        ...

    def reset(self, number: int, seed: int) -> Observation:
        """Reset for an episode."""
        ...

    def step(self, action: np.ndarray, state: ControlState) -> StepResult:
        """Make one control step; `state` says who chose the action [A]."""
        ...

    def halt(self) -> None:
        """Bring the arm to rest; does not raise."""
        ...

    def stop(self, reason: str) -> None:
        """Software e-stop; may be called from any thread."""
        ...

    def acknowledge(self) -> None:
        """Acknowledge the robot's fault, if there is one.

        Raises:
            RequestRefused: if the robot refuses.
        """
        ...


class SimActorEnvironment:
    """A simulated task in this process, in real time or as fast as possible."""

    def __init__(self, env: RobosuiteEnv, *, realtime: bool) -> None:
        """Use `env`, which the caller closes."""
        self.env, self.action_spec, self.realtime = env, env.action_spec, realtime
        self._clock: Clock = MonotonicClock() if realtime else SteppedClock()
        self._period = round(1e9 / env.task.control_freq)
        self._due = 0

    def now(self) -> int:
        return self._clock.now()

    def blocked(self) -> str:
        return ""

    def reset(self, number: int, seed: int) -> Observation:
        obs, _ = self.env.reset(seed=seed)
        self._due = self._clock.now()
        return obs

    def step(self, action: np.ndarray, state: ControlState) -> StepResult:
        step = self.env.step(action)
        now, due = self._clock.now(), self._due + self._period
        # A late step is not made up for.
        self._due = max(due, now)
        self._clock.sleep_until(self._due)
        step[-1]["late_ms"] = max(0, now - due) / MS
        return step

    def halt(self) -> None:
        """Nothing to do: the simulation only moves in `step`."""

    def stop(self, reason: str) -> None:
        """Nothing to do: the simulation only moves in `step`."""

    def acknowledge(self) -> None:
        """Nothing to do: a simulation has no faults."""


class RobotActorEnvironment:
    """A robot behind its server. Its mode is `human` from the first step that a person drives."""

    def __init__(
        self, env: RealArmEnv, client: RobotClient, stopper: RobotClient, turns: Turns | None = None
    ) -> None:
        """Use connected clients, which the caller closes.

        Args:
            env: environment of the robot.
            client: client that commands the robot.
            stopper: second client, for `stop` from another thread.
            turns: turn taking with another program, if any.
        """
        self._env, self._client, self._stopper, self._turns = env, client, stopper, turns
        self.action_spec, self.realtime = env.action_spec, True
        self._clock = MonotonicClock()

    def now(self) -> int:
        return self._clock.now()

    def blocked(self) -> str:
        if (state := self._client.sample()).mode is Mode.FAULT:
            return f"the robot is in fault ({state.fault}): inspect it, then arm it"
        return "it is the other client's turn" if self._turns and self._turns.is_others_turn() else ""

    def reset(self, number: int, seed: int) -> Observation:
        obs, _ = self._env.reset(seed=number)
        if self._turns:
            self._turns.take()
        return obs

    def step(self, action: np.ndarray, state: ControlState) -> StepResult:
        # The person commands until the policy returns.
        self._env.commander = "human" if state in (ControlState.HUMAN, ControlState.HOLD) else "policy"
        return self._env.step(action)

    def halt(self) -> None:
        # Must not hide an earlier error. If it fails, the lease expires and the server holds the arm.
        with suppress(RobotError):
            self._env.close()

    def stop(self, reason: str) -> None:
        self._stopper.stop(reason)

    def acknowledge(self) -> None:
        state = self._client.sample()
        if state.mode is Mode.FAULT:
            self._client.acknowledge(f"acknowledged by the operator: {state.fault}"[:500])
