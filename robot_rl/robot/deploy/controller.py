"""Episodes of a policy on a robot."""

from collections import defaultdict
from collections.abc import Callable
from contextlib import suppress

import numpy as np

from robot_rl.envs.observation import Observation, observation_space
from robot_rl.envs.real_arm import RealArmEnv
from robot_rl.hardware.clock import MS, Clock
from robot_rl.hardware.connection import NoAnswer, RequestRefused, RobotError, ServerChanged
from robot_rl.policies.acting import WrappedPolicy
from robot_rl.robot.deploy.results import EpisodeResult, StepTimes
from robot_rl.robot.deploy.terminal import OperatorVerdict, Stopped
from robot_rl.robot.deploy.turns import Turns

LATE = 0.1
"""Of a control period: a step whose observation comes later than that is late."""
_WARM_UPS = 6


class Controller:
    """Lets a policy control the robot of an environment, an episode at a time.

    However an episode is left, the robot is at rest and without a lease then, where the server answers.
    """

    def __init__(
        self,
        env: RealArmEnv,
        policy: WrappedPolicy,
        clock: Clock,
        period: float,
        *,
        stop: Callable[[], bool],
        verdict: OperatorVerdict | None = None,
        turns: Turns | None = None,
    ) -> None:
        """Take both, which stay the caller's.

        Args:
            env: the robot.
            policy: with one slot.
            clock: that of the environment.
            period: between two steps of the environment, s.
            stop: asked at each step whether to leave.
            verdict: of a person, if the environment's judge is one.
            turns: with another client of the robot.
        """
        self._env, self._policy, self._clock, self._period = env, policy, clock, period * 1e3
        self._stop, self._verdict, self._turns = stop, verdict, turns
        self.timing = StepTimes()

    def warm_up(self) -> None:
        """Let the policy decide without a robot, as its first decisions take long.

        Raises:
            ValueError: even the quickest takes longer than a control period.
        """
        spaces = observation_space(self._env.observation_spec).spaces
        obs = {key: np.zeros(space.shape or (), space.dtype) for key, space in spaces.items()}
        times = []
        for _ in range(_WARM_UPS):
            # The first decision of an episode makes a whole chunk.
            self._policy.reset([0], [0])
            times.append(self._decide(obs)[1])
        if min(times) > self._period:
            raise ValueError(
                f"a decision of this policy takes {min(times):.0f} ms here, and it has to act every "
                f"{self._period:.0f} ms: use a GPU, or a policy of fewer inference steps"
            )

    def run(self, number: int, seed: int) -> EpisodeResult:
        """One episode without exploration.

        Args:
            number: of the episode, for the environment's `prepare`.
            seed: of the policy's noise.

        Raises:
            Stopped: the user wants to end; the episode does not count.
            RobotError: it cannot begin, or the server is lost.
        """
        try:
            return self._run(number, seed)
        except BaseException:
            # What happened matters more; at the worst the lease runs out.
            with suppress(RobotError):
                self._env.close()
            raise

    def close(self) -> None:
        """Leave the robot disarmed.

        Raises:
            RobotError: it does not answer.
        """
        self._env.close()

    def _run(self, number: int, seed: int) -> EpisodeResult:
        if self._stop():
            raise Stopped
        if self._turns:
            self._turns.wait(self._stop)
        obs, _ = self._env.reset(seed=number)
        self._policy.reset([0], [seed])
        if self._verdict:
            self._verdict.begin()
        began = self._clock.now()
        oldest: dict[str, float] = defaultdict(float)
        steps = refused = clipped = late = 0
        success, ended, interrupted = False, False, ""
        while not ended:
            if self._stop():
                raise Stopped
            action, took = self._decide(obs)
            try:
                obs, _, terminated, truncated, info = self._env.step(action)
            except (NoAnswer, ServerChanged):
                raise
            except RobotError as error:
                interrupted = str(error)
                break
            steps += 1
            refused += bool(info["refused"])
            clipped += bool(info["clipped"])
            late += info["late_ms"] > LATE * self._period
            self.timing.decisions.append(took)
            self.timing.late.append(info["late_ms"])
            for source, age in info["ages_ms"].items():
                self.timing.ages[source].append(age)
                oldest[source] = max(oldest[source], age)
            success, interrupted = info["success"], info["interrupted"]
            ended = terminated or truncated
            if self._verdict and self._verdict.failed:
                break
        seconds = (self._clock.now() - began) * 1e-9
        if interrupted or not ended:
            # At once: an arm whose lease was lost is in fault soon. Somebody else may have it; the next
            # episode will show.
            with suppress(RequestRefused):
                self._env.close()
        return EpisodeResult(
            number, success, steps, seconds, seed, interrupted, refused, clipped, late, dict(oldest)
        )

    def _decide(self, obs: Observation) -> tuple[np.ndarray, float]:
        """The action, and how long it took, ms."""
        before = self._clock.now()
        decision = self._policy.act({key: value[None] for key, value in obs.items()})
        return decision.action[0], (self._clock.now() - before) / MS
