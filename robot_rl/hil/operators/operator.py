"""Who may take over: what of it a control step sees."""

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Literal, Protocol

import numpy as np

from robot_rl.hil.takeover import Action, Cue

Verdict = Literal["", "success", "failure", "discard", "stop"]
"""What a person says of an episode."""
Outcome = Literal["success", "failure", "discarded", "interrupted"]
"""What became of an episode."""


@dataclass(frozen=True)
class Hand:
    """The operator in one control step."""

    cue: Cue
    action: Action | None = None
    """What the operator wants, while driving; NaN leaves a gripper as it is."""
    verdict: Verdict = ""


@dataclass(frozen=True)
class Consent:
    """What an operator says to an episode that shall begin."""

    why_not: str = ""
    """Why it cannot yet, "" where it can."""
    asks: Literal["", "stop", "arm"] = ""
    """For the software e-stop; or the arm is to be armed, and its fault, if any, was looked at."""


class Operator(Protocol):
    """One for the whole run."""

    def begin(self, number: int) -> Consent:
        """An episode shall begin; asked again until it can.

        Raises:
            DeviceError: the device is gone.
        """
        ...

    def elsewhere(self, stop: Callable[[], None]) -> AbstractContextManager[None]:
        """Within it nobody asks; `stop`, called from another thread, is the software e-stop all the same."""
        ...

    def look(self, now: int) -> Hand:
        """In the control step at `now` [ns]."""
        ...

    def ended(self, outcome: Outcome) -> None:
        """The episode is over."""
        ...


def may_take_over(seed: int, episode: int, fraction: float) -> bool:
    """Whether an episode of a run is one of those in which somebody may take over."""
    return bool(np.random.default_rng([seed, episode]).random() < fraction)


class Nobody:
    """The policy is alone."""

    def begin(self, number: int) -> Consent:
        return Consent()

    def elsewhere(self, stop: Callable[[], None]) -> AbstractContextManager[None]:
        return nullcontext()

    def look(self, now: int) -> Hand:
        return Hand(Cue.OPEN)

    def ended(self, outcome: Outcome) -> None:
        pass
