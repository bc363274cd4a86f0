"""Control of an arm that a policy shares with an operator, who may take over, judge, and stop it."""

from collections.abc import Callable
from contextlib import AbstractContextManager, suppress
from typing import Any, Final, Protocol

import numpy as np

from robot_rl.envs.action import ActionSpec
from robot_rl.envs.observation import Observation
from robot_rl.envs.real_arm import RealArmEnv
from robot_rl.hardware.client import RobotClient, insist_on_stop
from robot_rl.hardware.clock import Clock
from robot_rl.hardware.connection import NoAnswer, RequestRefused, RobotError, ServerChanged
from robot_rl.hardware.protocol.messages import Code, Mode
from robot_rl.policies.acting import ActingPolicy
from robot_rl.robot.deploy.terminal import Stopped
from robot_rl.robot.deploy.turns import Turns
from robot_rl.robot.operators.operator import Operator, OperatorInput, Outcome
from robot_rl.robot.takeover import SOURCE, Action, ControlState, Cue, Takeover

StepResult = tuple[Observation, float, bool, bool, dict[str, Any]]
"""Observation, reward, terminated, truncated, info; see `RobosuiteEnv` and `RealArmEnv`."""
_POLL_NS: Final = 50_000_000
"""Interval of attempts to begin an episode, ns: shorter than an episode of a program that takes turns."""
_INTERVENTION: Final = (ControlState.HUMAN, ControlState.HOLD)


class SharedEnvironment(Protocol):
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

    def disarm(self) -> None:
        """Disarm the arm at once, also on its way home; may be called from any thread.

        Raises:
            RobotError: if the robot does not answer, or refuses.
        """
        ...

    def acknowledge(self) -> None:
        """Acknowledge the robot's fault, if it is the one that `blocked` has named last.

        Raises:
            RequestRefused: if the robot refuses.
        """
        ...


class SharedRobot:
    """A robot behind its server. Its mode is `human` from the first step that a person drives."""

    def __init__(
        self,
        env: RealArmEnv,
        client: RobotClient,
        stopper: RobotClient,
        clock: Clock,
        turns: Turns | None = None,
    ) -> None:
        """Use connected clients, which the caller closes.

        Args:
            env: environment of the robot.
            client: client that commands the robot.
            stopper: client for `stop` and `disarm` from another thread; `client` if there is no such thread.
            clock: clock of the environment.
            turns: turn taking with another program, if any.
        """
        self._env, self._client, self._stopper, self._turns = env, client, stopper, turns
        self.action_spec, self.realtime = env.action_spec, True
        self._clock = clock
        self._named_fault = ""
        """Fault that the operator was told of."""

    def now(self) -> int:
        return self._clock.now()

    def blocked(self) -> str:
        state = self._client.sample()
        self._named_fault = state.fault
        if state.mode is Mode.FAULT:
            return f"the robot is in fault ({state.fault}): inspect it, then acknowledge the fault"
        return "it is the other client's turn" if self._turns and self._turns.is_others_turn() else ""

    def reset(self, number: int, seed: int) -> Observation:
        try:
            return self._env.reset(seed=number)[0]
        except RequestRefused as refusal:
            # The program whose turn has ended may end, and disarm the arm before this one has its lease.
            if not self._turns or refusal.code is not Code.MODE:
                raise
            return self._env.reset(seed=number)[0]

    def step(self, action: np.ndarray, state: ControlState) -> StepResult:
        # The person commands until the policy returns.
        self._env.commander = "human" if state in _INTERVENTION else "policy"
        made = self._env.step(action)
        if self._turns and not made[4]["refused"]:
            # Not at the reset: the other client sees a turn only if this one has commanded the arm.
            self._turns.take()
        return made

    def halt(self) -> None:
        # Must not hide an earlier error. If it fails, the lease expires and the server holds the arm.
        with suppress(RobotError):
            self._env.close()

    def stop(self, reason: str) -> None:
        self._stopper.stop(reason)

    def disarm(self) -> None:
        try:
            self._stopper.disarm()
        except RequestRefused as refusal:
            # A key without the role operator may stop the arm, but not disarm it for another client. What is
            # refused otherwise is an arm that follows no commands already.
            if refusal.code in (Code.NO_LEASE, Code.ROLE):
                self._stopper.stop("the operator disarms")

    def acknowledge(self) -> None:
        state = self._client.sample()
        # The operator may have pressed the button before this fault.
        if state.mode is Mode.FAULT and state.fault == self._named_fault:
            self._client.acknowledge(f"acknowledged by the operator: {state.fault}"[:500])


class SharedControl:
    """Episodes of one arm in which an operator may take over from a policy.

    In each control step: `read`, then unless the episode is over `action` and `step`.
    """

    def __init__(
        self,
        env: SharedEnvironment,
        operator: Operator,
        policy: ActingPolicy,
        clock: Clock,
        *,
        stopping: Callable[[], bool],
        say: Callable[[str], None],
        idle: Callable[[], None] = lambda: None,
        patient: bool = True,
    ) -> None:
        """Create without starting; the caller closes the arguments.

        Args:
            env: the arm.
            operator: who may take over.
            policy: policy that acts otherwise; it replans when it returns.
            clock: clock of this machine, used between episodes.
            stopping: polled; True ends the waiting for an episode.
            say: shows a line to the user.
            idle: called while an episode cannot begin yet.
            patient: wait for whatever a robot refuses to begin; otherwise for a fault and for turns alone.
        """
        self._env, self._operator, self._policy, self._clock = env, operator, policy, clock
        self._stopping, self._say, self._idle, self._patient = stopping, say, idle, patient
        self._takeover = Takeover(np.array([dim.kind == "gripper" for dim in env.action_spec]))
        self._input, self._now = OperatorInput(Cue.OPEN), 0
        self.interventions = 0
        """Takeovers of the current episode."""

    @property
    def state(self) -> ControlState:
        """Who controls the arm in this step."""
        return self._takeover.state

    @property
    def source(self) -> str:
        """The replay's source of this step."""
        return SOURCE[self.state]

    @property
    def interrupted(self) -> str:
        """Why the operator, or the loss of the device, ended the episode; "" if not."""
        if self._input.verdict in ("stop", "discard"):
            return self._input.verdict
        return "the operator's device is silent" if self.state is ControlState.LOST else ""

    @property
    def failed(self) -> bool:
        """Whether the operator ended the episode as a failure."""
        return self._input.verdict == "failure" and not self.interrupted

    def begin(self, number: int, seed: int) -> Observation | None:
        """Reset the arm once operator and robot are ready; None if the program must stop.

        Raises:
            RobotError: if the robot is lost, or refuses and this is not patient.
            DeviceError: if the operator's device is lost.
        """
        self._takeover.reset()
        self._input, self.interventions = OperatorInput(Cue.OPEN), 0
        reported = ""
        while not self._stopping():
            readiness = self._operator.begin(number)
            try:
                if readiness.request == "stop":
                    self._estop()
                elif readiness.request == "arm":
                    self._env.acknowledge()
                if not (reason := readiness.blocked or self._env.blocked()):
                    with self.listening():
                        return self._env.reset(number, seed)
            except RobotError as error:
                # A refusal, a late image, an arm that did not find home: the operator can help.
                in_fault = isinstance(error, RequestRefused) and error.code is Code.FAULT
                if isinstance(error, NoAnswer | ServerChanged) or not (self._patient or in_fault):
                    raise
                reason = str(error)
            except Stopped:
                # The user ends the run, or the operator disarms, which `begin` reports.
                continue
            if reason != reported:
                if readiness.request == "disarm":
                    self._env.halt()
                self._say(f"episode {number} cannot begin yet: {reason}")
                reported = reason
            self._idle()
            self._clock.sleep_until(self._clock.now() + _POLL_NS)
        return None

    def listening(self) -> AbstractContextManager[None]:
        """Within this context the operator can stop and disarm the arm while nothing calls `read`."""
        return self._operator.monitor(self._estop, self._env.disarm)

    def read(self) -> None:
        """Read the operator's input of this control step; a requested stop is executed at once.

        Raises:
            NoAnswer: if the robot does not answer a stop.
        """
        self._input, self._now = self._operator.read(self._env.now()), self._env.now()
        before, state = self._takeover.state, self._takeover.step(self._input.cue, self._now)
        if state is ControlState.RETURN and before is not ControlState.RETURN:
            # The chunk was planned before the person moved the arm.
            self._policy.replan(0)
        if self._input.verdict == "stop":
            self._estop()
        if not (self.interrupted or self.failed):
            self.interventions += state in _INTERVENTION and before not in _INTERVENTION

    def action(self, proposed: Action) -> Action:
        """Action [A] of this step, given the one that the policy has just computed."""
        runner = self._policy.runner
        action = self._takeover.action(proposed, self._input.action, self._now, held=runner.is_held(0))
        runner.overrule(0, action)
        return action

    def step(self, action: np.ndarray) -> StepResult:
        """Make the control step."""
        return self._env.step(action, self.state)

    def end(self, outcome: Outcome) -> None:
        """Tell the operator how the episode ended."""
        self._operator.end(outcome)

    def _estop(self) -> None:
        """Trigger the software e-stop; raises NoAnswer if the robot answers none of several attempts."""
        insist_on_stop(self._env.stop, "the operator's device")
