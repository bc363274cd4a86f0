"""Interface of an operator who may take over, and the operator that never does."""

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Literal, Protocol

import numpy as np

from robot_rl.robot.takeover import Action, Cue

Verdict = Literal["", "success", "failure", "discard", "stop"]
"""An operator's judgement of an episode, which ends it."""
Outcome = Literal["success", "failure", "discarded", "interrupted"]
"""How an episode ended."""


def outcome_of(success: bool, interrupted: str) -> Outcome:
    """How an episode ended, from its success and the reason for which it was interrupted, if it was."""
    if success:
        return "success"
    if interrupted:
        return "discarded" if interrupted == "discard" else "interrupted"
    return "failure"


@dataclass(frozen=True)
class OperatorInput:
    """Input of the operator in one control step."""

    cue: Cue
    action: Action | None = None
    """Action of the operator while driving; NaN leaves a gripper as it is."""
    verdict: Verdict = ""


@dataclass(frozen=True)
class Readiness:
    """An operator's answer to whether the next episode can begin."""

    blocked: str = ""
    """Reason why it cannot begin yet, "" if it can."""
    request: Literal["", "stop", "arm", "disarm"] = ""
    """`stop` requests the software e-stop; `arm` acknowledges a fault and arms; `disarm` disarms."""


class Operator(Protocol):
    """An operator, for all episodes of a run."""

    def begin(self, number: int) -> Readiness:
        """Prepare for an episode; called again until it can begin.

        Raises:
            DeviceError: if the device is lost.
        """
        ...

    def monitor(self, estop: Callable[[], None], disarm: Callable[[], None]) -> AbstractContextManager[None]:
        """Within this context another thread reads the device and calls `estop` or `disarm`."""
        ...

    def read(self, now: int) -> OperatorInput:
        """Read the operator's input in the control step at `now` [ns]."""
        ...

    def end(self, outcome: Outcome) -> None:
        """Report how the episode ended."""
        ...

    def revoked(self) -> bool:
        """Whether the operator says that the episode that ended last as a success was none."""
        ...


def may_take_over(seed: int, episode: int, fraction: float) -> bool:
    """Whether the operator may take over in an episode; true for that fraction of the episodes."""
    return bool(np.random.default_rng([seed, episode]).random() < fraction)


class NoOperator:
    """An operator that never takes over."""

    def begin(self, number: int) -> Readiness:
        return Readiness()

    def monitor(self, estop: Callable[[], None], disarm: Callable[[], None]) -> AbstractContextManager[None]:
        return nullcontext()

    def read(self, now: int) -> OperatorInput:
        return OperatorInput(Cue.OPEN)

    def end(self, outcome: Outcome) -> None:
        pass

    def revoked(self) -> bool:
        return False
