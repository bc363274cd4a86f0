"""The environment of an actor without a robot: a simulated task in its process."""

import numpy as np

from robot_rl.envs.observation import Observation
from robot_rl.envs.robosuite_env import RobosuiteEnv
from robot_rl.hardware.clock import MS, Clock, MonotonicClock, SteppedClock
from robot_rl.robot.operators.shared_control import StepResult
from robot_rl.robot.takeover import ControlState


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

    def disarm(self) -> None:
        """Nothing to do: the simulation only moves in `step`."""

    def acknowledge(self) -> None:
        """Nothing to do: a simulation has no faults."""
