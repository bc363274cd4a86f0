"""What happened in a search, one line of JSON per event, from which the same command goes on."""

import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

import msgspec

from robot_rl.errors import UserError

FILE = "trials.jsonl"
End = Literal["finished", "stopped"]


class Began(msgspec.Struct, frozen=True, tag_field="event", tag="began"):
    """A trial got its values."""

    trial: int
    values: dict[str, str]
    """Text of each varied option."""


class Evaluated(msgspec.Struct, frozen=True, tag_field="event", tag="evaluated"):
    """A trial was evaluated during training."""

    trial: int
    step: int
    """Environment steps."""
    success: float
    """Share of the validation states, 0 to 1."""


class Ended(msgspec.Struct, frozen=True, tag_field="event", tag="ended"):
    """A trial is over: it took all its steps, or was bad and stopped."""

    trial: int
    how: End


Event = Began | Evaluated | Ended


@dataclass
class Trial:
    """One run of a search."""

    values: dict[str, str]
    """Text of each varied option."""
    evaluations: dict[int, float] = field(default_factory=dict)
    """Validation success at each step at which it was evaluated, in ascending order."""
    end: End | None = None
    """None while it runs, and after a failure, so that the same command tries it again."""
    failure: str = ""
    """Why it has failed in this process."""

    @property
    def last(self) -> tuple[int, float]:
        """Step and success of the last evaluation; 0 and 0.0 without one."""
        step = max(self.evaluations, default=0)
        return step, self.evaluations.get(step, 0.0)


class Record:
    """The events of a search, in a file to which each is appended at once.

    Args:
        path: the file, which need not exist; an incomplete last line, as after a power cut, is removed.

    Raises:
        UserError: if the file is damaged.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self.events: list[Event] = []
        self.trials: dict[int, Trial] = {}
        content = path.read_bytes() if path.is_file() else b""
        lines = content.split(b"\n")
        if lines.pop():
            os.truncate(path, content.rfind(b"\n") + 1)
        for number, line in enumerate(lines, 1):
            try:
                self._apply(msgspec.json.decode(line, type=Event))
            except (msgspec.MsgspecError, KeyError) as error:
                raise UserError(
                    f"{path}, line {number} is damaged ({error!r}); remove it and what follows, or choose "
                    "another name=… for the search"
                ) from error

    def add(self, event: Event) -> None:
        """Append an event, which survives a power cut."""
        with self._path.open("ab") as file:
            file.write(msgspec.json.encode(event) + b"\n")
            file.flush()
            os.fsync(file.fileno())
        self._apply(event)

    def _apply(self, event: Event) -> None:
        match event:
            case Began(number, values):
                self.trials[number] = Trial(values)
            case Evaluated(number, step, success):
                self.trials[number].evaluations[step] = success
            case Ended(number, how):
                self.trials[number].end = how
        self.events.append(event)
