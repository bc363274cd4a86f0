"""Statistics of interventions, and a file with the applied and the policy's actions."""

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from robot_rl.files.durable import sync
from robot_rl.runs import write_text

FILE: Final = "interventions.jsonl"
_DIGITS: Final = 4


@dataclass
class Intervention:
    """Consecutive steps of an episode in which a person drove."""

    first: int
    """Index of the first step in the episode."""
    applied: list[list[float]] = field(default_factory=list)
    """Applied action [A] of each step."""
    proposed: list[list[float]] = field(default_factory=list)
    """Action [A] that the policy proposed in each step."""


class InterventionStats:
    """Counts the interventions of a run and writes each as a line of `interventions.jsonl`."""

    def __init__(self, directory: Path, before: int, actor: str = "") -> None:
        """Start or resume at episode `before`; lines of this and later episodes of this actor are deleted.

        `actor` is a name that is written with each line, "" for the only actor of a run.
        """
        self._path = directory / FILE
        self._actor = {"actor": actor} if actor else {}
        self._open: list[Intervention] = []
        self._last = -2
        self._steps = 0
        if self._path.is_file():
            # Without the last line, if a crash has cut it: its episode is deleted.
            lines = self._path.read_text().split("\n")[:-1]
            write_text(self._path, "".join(f"{k}\n" for k in lines if self._keeps(json.loads(k), before)))

    def step(self, index: int, source: str, applied: NDArray[Any], proposed: NDArray[Any]) -> None:
        """Add a step of the current episode."""
        self._steps = index + 1
        if source != "human":
            return
        if not self._open or index > self._last + 1:
            self._open.append(Intervention(index))
        self._last = index
        self._open[-1].applied.append(_rounded(applied))
        self._open[-1].proposed.append(_rounded(proposed))

    def end_episode(self, episode: int, success: bool) -> dict[str, float]:
        """Write the episode's interventions; returns its metrics."""
        interventions, steps = self._open, self._steps
        lengths = [len(intervention.applied) for intervention in interventions]
        with self._path.open("a", encoding="utf-8") as file:
            for intervention in interventions:
                line = {
                    **self._actor,
                    "episode": episode,
                    "first_step": intervention.first,
                    "steps": len(intervention.applied),
                    "success": success,
                    "applied": intervention.applied,
                    "proposed": intervention.proposed,
                }
                file.write(json.dumps(line) + "\n")
        sync(self._path)
        self.discard_episode()
        metrics = {
            "hil/intervention_rate": sum(lengths) / max(steps, 1),
            "hil/interventions": float(len(lengths)),
            "hil/alone": float(success and not lengths),
        }
        return metrics | ({"hil/intervention_steps": float(np.mean(lengths))} if lengths else {})

    def discard_episode(self) -> None:
        """Discard the current episode."""
        self._open, self._last, self._steps = [], -2, 0

    def state_dict(self) -> dict[str, Any]:
        interventions = [[s.first, np.array(s.applied), np.array(s.proposed)] for s in self._open]
        return {"open": interventions, "last": self._last, "steps": self._steps}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._last, self._steps = state["last"], state["steps"]
        self._open = [Intervention(first, a.tolist(), p.tolist()) for first, a, p in state["open"]]

    def _keeps(self, line: dict[str, Any], before: int) -> bool:
        """Whether a line is of an episode before `before`, or of another actor."""
        return line["episode"] < before or line.get("actor") != self._actor.get("actor")


def _rounded(values: NDArray[Any]) -> list[float]:
    return [round(float(value), _DIGITS) for value in values]
