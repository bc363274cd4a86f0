"""What the actor moves: a task in its own process, or a robot behind its server."""

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
from robot_rl.hil.takeover import Driver
from robot_rl.robot.deploy.turns import Turns

Step = tuple[Observation, float, bool, bool, dict[str, Any]]
"""Observation, reward, terminated, truncated, info; see `RobosuiteEnv` and `RealArmEnv`."""


class Scene(Protocol):
    """One arm, an episode at a time. `info["late_ms"]` is how much later than due an observation was."""

    action_spec: ActionSpec
    paced: bool
    """Whether it moves at the pace of its control, and waits for nobody."""

    def now(self) -> int:
        """Time of the control step that begins, ns."""
        ...

    def waits(self) -> str:
        """Why an episode cannot begin yet, "" where it can.

        Raises:
            RobotError: the robot is lost.
        """
        ...

    def reset(self, number: int, seed: int) -> Observation:
        """Begin an episode."""
        ...

    def step(self, action: np.ndarray, driver: Driver) -> Step:
        """One control step, by whoever drives."""
        ...

    def halt(self) -> None:
        """Leave the arm at rest, whatever is going on."""
        ...

    def stop(self, reason: str) -> None:
        """The software e-stop, from any thread."""
        ...

    def acknowledge(self) -> None:
        """Somebody has looked at the fault, if there is one.

        Raises:
            RequestRefused: the robot does not take it.
        """
        ...


class SimScene:
    """A task in this process: as fast as it goes, or at the pace of its control."""

    def __init__(self, env: RobosuiteEnv, *, realtime: bool) -> None:
        """`env` stays the caller's."""
        self.env, self.action_spec, self.paced = env, env.action_spec, realtime
        self._clock: Clock = MonotonicClock() if realtime else SteppedClock()
        self._period = round(1e9 / env.task.control_freq)
        self._due = 0

    def now(self) -> int:
        return self._clock.now()

    def waits(self) -> str:
        return ""

    def reset(self, number: int, seed: int) -> Observation:
        obs, _ = self.env.reset(seed=seed)
        self._due = self._clock.now()
        return obs

    def step(self, action: np.ndarray, driver: Driver) -> Step:
        step = self.env.step(action)
        now, due = self._clock.now(), self._due + self._period
        # Who was late does not hurry.
        self._due = max(due, now)
        self._clock.sleep_until(self._due)
        step[-1]["late_ms"] = max(0, now - due) / MS
        return step

    def halt(self) -> None:
        """Time passes in steps alone."""

    def stop(self, reason: str) -> None:
        """There is nothing that could go on."""

    def acknowledge(self) -> None:
        """There are no faults."""


class RobotScene:
    """A robot behind its server. Its mode says `human` in the very step in which a person takes over."""

    def __init__(
        self, env: RealArmEnv, client: RobotClient, stopper: RobotClient, turns: Turns | None = None
    ) -> None:
        """All stay the caller's; `stopper` is for `stop` alone, `turns` are those with another client."""
        self._env, self._client, self._stopper, self._turns = env, client, stopper, turns
        self.action_spec, self.paced = env.action_spec, True
        self._clock = MonotonicClock()

    def now(self) -> int:
        return self._clock.now()

    def waits(self) -> str:
        if (state := self._client.sample()).mode is Mode.FAULT:
            return f"the robot is in fault, {state.fault}: look at it, then arm it"
        return "it is the other's turn" if self._turns and self._turns.is_others_turn() else ""

    def reset(self, number: int, seed: int) -> Observation:
        obs, _ = self._env.reset(seed=number)
        if self._turns:
            self._turns.take()
        return obs

    def step(self, action: np.ndarray, driver: Driver) -> Step:
        # Until the policy has it back, the arm is the person's.
        self._env.commander = "human" if driver in (Driver.HUMAN, Driver.HOLD) else "policy"
        return self._env.step(action)

    def halt(self) -> None:
        # What happened matters more; at the worst the lease runs out, and the server holds the arm.
        with suppress(RobotError):
            self._env.close()

    def stop(self, reason: str) -> None:
        self._stopper.stop(reason)

    def acknowledge(self) -> None:
        state = self._client.sample()
        if state.mode is Mode.FAULT:
            self._client.acknowledge(f"whoever helps has looked at: {state.fault}"[:500])
