"""What a search varies: options with ranges in Hydra's grammar, like `tag(log,interval(1e-5,1e-3))`."""

import re
from collections.abc import Mapping
from dataclasses import dataclass

from hydra.core.override_parser.types import IntervalSweep, Override, Sweep

from robot_rl.cli.multirun import parse_sweep
from robot_rl.errors import UserError

_LONGEST = 100
"""Characters of a trial's name."""


@dataclass(frozen=True)
class Interval:
    """Numbers between two ends, which belong to it."""

    low: float
    high: float
    log: bool
    """Whether equal ratios are equally likely, rather than equal differences."""
    whole: bool
    """Whether only whole numbers are meant."""

    def ends(self) -> tuple[str, ...]:
        """Values at its ends, as they are written on a command line."""
        return repr(self.low), repr(self.high)


@dataclass(frozen=True)
class Values:
    """Some values, as they are written on a command line."""

    texts: tuple[str, ...]
    ordered: bool
    """Whether neighbours are alike, as in a range of numbers."""

    def ends(self) -> tuple[str, ...]:
        """All values, or the first and the last of an ordered list."""
        return (self.texts[0], self.texts[-1]) if self.ordered else self.texts


Space = Mapping[str, Interval | Values]
"""Range of each option that is varied."""


def read_space(pairs: Mapping[str, str]) -> Space:
    """The ranges among the arguments of a command.

    Args:
        pairs: text of each option's value.

    Raises:
        UserError: if a range cannot be read, or is empty.
    """
    swept = {key: parse_sweep(key, text) for key, text in pairs.items()}
    return {key: _range(f"{key}={pairs[key]}", override) for key, override in swept.items() if override}


def _range(written: str, override: Override) -> Interval | Values:
    sweep = override.value()
    assert isinstance(sweep, Sweep)
    if not isinstance(sweep, IntervalSweep):
        if sweep.tags:
            raise UserError(f"{written}: only an interval has tags, like tag(log,interval(1e-5,1e-3))")
        texts = tuple(dict.fromkeys(map(str, override.sweep_string_iterator())))
        if not texts:
            raise UserError(f"{written}: the range is empty")
        return Values(texts, ordered=override.is_range_sweep())
    low, high, log = sweep.start, sweep.end, sweep.tags == {"log"}
    assert low is not None
    assert high is not None
    if sweep.tags - {"log"}:
        raise UserError(f"{written}: the only tag is log, as in tag(log,interval(1e-5,1e-3))")
    if not low < high:
        raise UserError(f"{written}: the interval is empty; give the smaller end first")
    if log and low <= 0:
        raise UserError(f"{written}: an interval with tag(log,…) begins above 0")
    return Interval(low, high, log, isinstance(low, int))


def corners(space: Space) -> list[dict[str, str]]:
    """Values that a command must take: each end with the first ends of the others, and all last ends."""
    ends = {key: one.ends() for key, one in space.items()}
    first = {key: texts[0] for key, texts in ends.items()}
    found = [{**first, key: text} for key, texts in ends.items() for text in texts]
    return [*found, {key: texts[-1] for key, texts in ends.items()}]


def trial_name(number: int, values: Mapping[str, str]) -> str:
    """Name of a trial's run: its number and values, as far as they are fit for the name of a folder."""
    parts = [f"{number:03}", *(f"{key.rpartition('.')[2]}{_short(text)}" for key, text in values.items())]
    return "_".join(parts)[:_LONGEST]


def _short(text: str) -> str:
    try:
        return text if text.isdecimal() else f"{float(text):.3g}"
    except ValueError:
        return re.sub(r"[^\w.+-]+", "-", text).strip("-")


def words(arguments: Mapping[str, str]) -> list[str]:
    """`key=value` arguments of a command."""
    return [f"{key}={text}" for key, text in arguments.items()]
