"""Runs episodes of a policy on a robot."""

import math
from collections import defaultdict
from collections.abc import Callable
from contextlib import suppress
from statistics import median

import numpy as np

from robot_rl.envs.observation import Observation, ObservationSpec, observation_space
from robot_rl.envs.real_arm import RealArmEnv
from robot_rl.hardware.clock import MS, Clock
from robot_rl.hardware.connection import NoAnswer, RobotError, ServerChanged
from robot_rl.policies.acting import ActingPolicy
from robot_rl.robot.deploy.recording import EpisodeRecording
from robot_rl.robot.deploy.results import EpisodeResult, StepTimes
from robot_rl.robot.deploy.terminal import OperatorVerdict, Stopped
from robot_rl.robot.operators.shared_control import SharedControl
from robot_rl.rollout import Rollout
from robot_rl.stats import mean_jerk

LATE_FRACTION = 0.1
"""A step is late if its observation is delayed by more than this fraction of the control period."""
_WARM_UPS = 6


class _EndedByOperator(Exception):
    """The operator ended the episode before its next step."""


def warm_up(
    decide: Callable[[Observation], object],
    policy: ActingPolicy,
    observed: ObservationSpec,
    asked: Observation,
    period_ms: float,
    clock: Clock,
) -> None:
    """Let a policy decide about zero observations and the instruction, since its first decisions are slow.

    Args:
        decide: computes its action.
        policy: the policy, of one environment.
        observed: what it observes.
        asked: the instruction, if it reads one.
        period_ms: control period, ms.
        clock: measures.

    Raises:
        ValueError: if a decision with a new chunk usually takes longer than a control period or,
            asynchronously, than the delay.
    """
    spaces = observation_space(observed).spaces
    obs = {key: np.zeros(space.shape or (), space.dtype) for key, space in spaces.items()} | dict(asked)
    delay = policy.runner.delay
    # So many steps hold one chunk. Those after the first may go on from another chunk, which takes longer.
    steps = max(policy.base.spec.execute, delay)
    policy.reset([0], [0])
    times = []
    for _ in range(_WARM_UPS):
        slowest = 0.0
        for _ in range(steps):
            policy.runner.wait()
            before = clock.now()
            decide(obs)
            policy.runner.wait()
            slowest = max(slowest, (clock.now() - before) / MS)
        times.append(slowest)
    if (usual := median(times[1:])) > max(delay, 1) * period_ms:
        steps = math.ceil(usual / period_ms)
        raise ValueError(
            f"a decision of this policy takes {usual:.0f} ms here, and it has to act every "
            f"{period_ms:.0f} ms{f' with delay={delay}' if delay else ''}: use a GPU, a policy of "
            f"fewer inference steps, or asynchronous=blend delay={steps} or more"
        )


class Controller:
    """Runs a policy on the robot of an environment, one episode at a time.

    However an episode ends, the arm is then at rest and the lease released, if the server answers.
    """

    def __init__(
        self,
        env: RealArmEnv,
        policy: ActingPolicy,
        clock: Clock,
        period: float,
        *,
        shared: SharedControl,
        stop: Callable[[], bool],
        verdict: OperatorVerdict | None = None,
        recording: EpisodeRecording | None = None,
    ) -> None:
        """Create the controller; the caller keeps ownership of `env` and `policy`.

        Args:
            env: environment of the robot.
            policy: policy that acts in one environment.
            shared: control of `env` by the policy and an operator who may take over.
            clock: clock of the environment.
            period: control period, s.
            stop: checked at each step; True ends the deployment.
            verdict: the operator's judgement, if it is the environment's judge.
            recording: records the episodes.
        """
        self._env, self._policy, self._clock, self._period_ms = env, policy, clock, period * 1e3
        self._shared, self._recording = shared, recording
        self._stop, self._verdict = stop, verdict
        self.timing = StepTimes()
        self._decision_ms = 0.0

    def warm_up(self) -> None:
        """Let the policy decide a few times; see `warm_up`."""
        env, act = self._env, self._policy.act_single
        warm_up(act, self._policy, env.observation_spec, env.asked, self._period_ms, self._clock)

    def run(self, number: int, seed: int) -> EpisodeResult:
        """Run one episode without exploration.

        Args:
            number: episode number, passed to the environment's `prepare`.
            seed: seed of the policy's noise.

        An episode begins when operator and robot are ready; a fault has to be acknowledged by an operator.

        Raises:
            Stopped: if the user ended the deployment; the episode does not count.
            RobotError: if the episode cannot begin, or the server is lost.
            RecorderError: if its recording cannot begin.
            DeviceError: if the operator's device is lost.
        """
        try:
            episode = self._run(number, seed)
            self._shared.end(episode.outcome)
            return episode
        except BaseException:
            # Keep the original error; at worst the lease expires.
            with suppress(RobotError):
                self._env.close()
            raise

    def commit(self, episode: EpisodeResult) -> None:
        """Commit the recording of the last episode, if there is one.

        Raises:
            RecorderError: if it could not be recorded.
        """
        if self._recording:
            self._recording.end(episode.outcome)

    def close(self) -> None:
        """Disarm the robot.

        Raises:
            RobotError: if it does not answer.
        """
        self._env.close()

    def _run(self, number: int, seed: int) -> EpisodeResult:
        if self._stop():
            raise Stopped
        obs = self._shared.begin(number, seed)
        if obs is None:
            raise Stopped
        self._policy.reset([0], [seed])
        if self._verdict:
            self._verdict.begin()
        began = self._clock.now()
        oldest: dict[str, float] = defaultdict(float)
        steps = refused = clipped = late = human = 0
        success, ended, interrupted = False, False, ""
        held = self._policy.runner.holds
        moving = [i for i, dim in enumerate(self._env.action_spec) if dim.kind != "gripper"]
        actions: list[np.ndarray] = []
        try:
            for step in Rollout(self._shared, self._act, obs):
                info = step.info
                steps += 1
                actions.append(step.action[moving])
                human += self._shared.source == "human"
                refused += bool(info["refused"])
                clipped += bool(info["clipped"])
                late += info["late_ms"] > LATE_FRACTION * self._period_ms
                self.timing.decisions.append(self._decision_ms)
                self.timing.late.append(info["late_ms"])
                for source, age in info["ages_ms"].items():
                    self.timing.ages[source].append(age)
                    oldest[source] = max(oldest[source], age)
                success, interrupted, ended = info["success"], info["interrupted"], bool(step.done)
                if self._verdict and self._verdict.failed:
                    break
        except _EndedByOperator:
            interrupted = self._shared.interrupted
        except (NoAnswer, ServerChanged):
            raise
        except RobotError as error:
            interrupted = str(error)
        seconds = (self._clock.now() - began) * 1e-9
        if interrupted or not ended:
            # Disarm at once: an arm without a lease soon latches a fault. If another client has the arm, the
            # next episode reports that.
            self._env.close()
        return EpisodeResult(
            episode=number,
            success=success,
            steps=steps,
            seconds=seconds,
            seed=seed,
            interrupted=interrupted,
            refused=refused,
            clipped=clipped,
            late_steps=late,
            oldest_ms=dict(oldest),
            holds=self._policy.runner.holds - held,
            jerk=mean_jerk(actions),
            interventions=self._shared.interventions,
            human_steps=human,
        )

    def _act(self, obs: Observation) -> np.ndarray:
        if self._stop():
            raise Stopped
        shared = self._shared
        shared.read()
        if shared.interrupted or shared.failed:
            raise _EndedByOperator
        proposed, self._decision_ms = self._decide(obs)
        return shared.action(proposed)

    def _decide(self, obs: Observation) -> tuple[np.ndarray, float]:
        """Compute the action. Returns it and the time that it took, ms."""
        before = self._clock.now()
        action = self._policy.act_single(obs)
        return action, (self._clock.now() - before) / MS
