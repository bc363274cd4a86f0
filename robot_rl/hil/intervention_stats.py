"""What people did in an episode: counted, and written down beside what the policy would have done."""

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from robot_rl.hardware.durable import sync
from robot_rl.runs import write_text

FILE: Final = "interventions.jsonl"
_DIGITS: Final = 4


@dataclass
class Stretch:
    """One intervention."""

    first: int
    """Its first step in the episode."""
    applied: list[list[float]] = field(default_factory=list)
    proposed: list[list[float]] = field(default_factory=list)
    """By the muted policy."""


class InterventionStats:
    """The interventions of a run, a line each in `interventions.jsonl`."""

    def __init__(self, directory: Path, before: int) -> None:
        """Go on with episode `before`: what was written of it and of later ones is told again."""
        self._path = directory / FILE
        self._open: list[Stretch] = []
        self._last = -2
        self._steps = 0
        if self._path.is_file():
            lines = self._path.read_text().splitlines()
            write_text(self._path, "".join(f"{k}\n" for k in lines if json.loads(k)["episode"] < before))

    def step(self, index: int, source: str, applied: NDArray[Any], proposed: NDArray[Any]) -> None:
        """A control step of the open episode."""
        self._steps = index + 1
        if source != "human":
            return
        if not self._open or index > self._last + 1:
            self._open.append(Stretch(index))
        self._last = index
        self._open[-1].applied.append(_short(applied))
        self._open[-1].proposed.append(_short(proposed))

    def close(self, episode: int, success: bool) -> dict[str, float]:
        """Write the episode's interventions; the figures of it."""
        stretches, steps = self._open, self._steps
        lengths = [len(stretch.applied) for stretch in stretches]
        with self._path.open("a", encoding="utf-8") as file:
            for stretch in stretches:
                line = {
                    "episode": episode,
                    "first_step": stretch.first,
                    "steps": len(stretch.applied),
                    "success": success,
                    "applied": stretch.applied,
                    "proposed": stretch.proposed,
                }
                file.write(json.dumps(line) + "\n")
        sync(self._path)
        self.forget()
        figures = {
            "hil/intervention_rate": sum(lengths) / max(steps, 1),
            "hil/interventions": float(len(lengths)),
            "hil/alone": float(success and not lengths),
        }
        return figures | ({"hil/intervention_steps": float(np.mean(lengths))} if lengths else {})

    def forget(self) -> None:
        """The open episode broke off."""
        self._open, self._last, self._steps = [], -2, 0

    def state_dict(self) -> dict[str, Any]:
        stretches = [[s.first, np.array(s.applied), np.array(s.proposed)] for s in self._open]
        return {"open": stretches, "last": self._last, "steps": self._steps}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._last, self._steps = state["last"], state["steps"]
        self._open = [Stretch(first, a.tolist(), p.tolist()) for first, a, p in state["open"]]


def _short(values: NDArray[Any]) -> list[float]:
    return [round(float(value), _DIGITS) for value in values]
