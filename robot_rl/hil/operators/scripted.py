"""An operator without a person: it watches the simulated arm, takes over at a fault, and hands back."""

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any, Final

import numpy as np

from robot_rl.envs.experts import make_expert
from robot_rl.envs.experts.base import EMPTY, PICK, Expert, hand, opening
from robot_rl.hil.operators.operator import Consent, Hand, Outcome, may_take_over
from robot_rl.hil.takeover import Cue

STALLED_S: Final = 3.0
"""Without a new best for so long, the policy is stuck."""
PROGRESS: Final = 0.02
"""m by which a new best has to be better."""
LOST_GROUND: Final = 0.08
"""m behind its best: the object was dropped, or knocked away."""
LASTS_S: Final = 0.5
"""How long that has to last, or the gripper to be closed on nothing: an object that falls where it shall be
is behind its best for a moment, too."""
_NOISE: Final = 0.1
"""Of the expert's actions: a person is not exact either."""


class Watch:
    """Whether an episode goes wrong, by what is left to do. Times are ns."""

    def begin(self, now: int) -> None:
        """From here on."""
        self._best, self._since = np.inf, now
        self._well = {"lost ground": now, "closed on nothing": now}
        """Since when what can go wrong for a moment may last."""

    def fault(self, left: float, width: float, now: int) -> str:
        """What is wrong, "" where nothing is.

        Args:
            left: m from the hand to the object, and from there to where it shall be.
            width: m between the fingers.
            now: time of this control step.
        """
        if left < self._best - PROGRESS:
            self._best, self._since = left, now
        if left <= self._best + LOST_GROUND:
            self._well["lost ground"] = now
        if width > EMPTY:
            self._well["closed on nothing"] = now
        for fault, since in self._well.items():
            if now - since >= LASTS_S * 1e9:
                return fault
        return "stalled" if now - self._since >= STALLED_S * 1e9 else ""


class ScriptedOperator:
    """The task's scripted expert at a device that is always fresh.

    It hands back once the object is in the hand and on its way. Where it was in the hand already, and at the
    second fault of an episode, it keeps at it until success. How often it is needed depends on the policy.
    """

    def __init__(self, task: str, sim: Callable[[], Any], fraction: float, seed: int) -> None:
        """Watch a task.

        Args:
            task: its name.
            sim: robosuite's environment as it is in this control step.
            fraction: of the episodes in which it may take over.
            seed: of whether it may, and of its hand's noise.

        Raises:
            ValueError: nothing is carried in this task, so there is nothing to measure progress by.
        """
        self._task, self._sim, self._fraction, self._seed = task, sim, fraction, seed
        self._watch = Watch()
        self._expert: Expert | None = None
        self.faults: list[str] = []
        """Why it took over in this episode."""
        try:
            self._make(0).grasp_and_target(sim())
        except ValueError as error:
            raise ValueError(f"hil.operator=scripted cannot watch {task}: {error}") from error

    def begin(self, number: int) -> Consent:
        self._hand = self._make(number)
        self._allowed = may_take_over(self._seed, number, self._fraction)
        self._expert, self._until_success = None, False
        self._begun = False
        self.faults = []
        return Consent()

    def elsewhere(self, stop: Callable[[], None]) -> AbstractContextManager[None]:
        return nullcontext()

    def look(self, now: int) -> Hand:
        if not self._allowed:
            return Hand(Cue.OPEN)
        sim = self._sim()
        if not self._begun:
            self._watch.begin(now)
            self._begun = True
        if self._expert is None:
            fault = self._watch.fault(*self._state(sim), now)
            if not fault:
                return Hand(Cue.OPEN)
            self.faults.append(fault)
            self._expert = self._hand
            self._until_success = len(self.faults) > 1 or self._expert.holds(sim)
            self._expert.take_over(sim)
        action = self._expert.act(sim)
        if not self._until_success and self._expert.phase not in (*PICK, "raise"):
            self._expert = None
            # What it sees on the way back to the policy is not the policy's doing.
            self._watch.begin(now)
            return Hand(Cue.OPEN)
        return Hand(Cue.DRIVING, action)

    def ended(self, outcome: Outcome) -> None:
        pass

    def _make(self, number: int) -> Expert:
        rng = np.random.default_rng([self._seed, number, 1])
        return make_expert(self._task, noise=_NOISE, skill=1.0, rng=rng)

    def _state(self, sim: Any) -> tuple[float, float]:
        """What is left to do, and the opening, m."""
        point, target = self._hand.grasp_and_target(sim)
        left = np.linalg.norm(hand(sim).pos - point) + np.linalg.norm(point - target)
        return float(left), opening(sim)
