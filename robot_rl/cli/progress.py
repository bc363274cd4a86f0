"""Progress of long-running work: a bar in a terminal, otherwise a line of text every few seconds."""

import sys
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from typing import Protocol, Self, TextIO

from rich.console import Console, RenderableType
from rich.progress import BarColumn, TextColumn
from rich.progress import Progress as RichProgress
from rich.text import Text

Clock = Callable[[], float]

_LINE_EVERY = 10.0
"""s between lines of plain text."""
_RATE_OVER = 30.0
"""s over which the rate is averaged."""


class ProgressReporter(Protocol):
    """Anything that shows progress."""

    def update(self, step: int, **figures: float) -> None: ...


class Progress:
    """Context manager that shows steps done, chosen metrics, steps per second and the time left."""

    def __init__(
        self,
        total: int,
        description: str,
        unit: str = "steps",
        *,
        start: int = 0,
        stream: TextIO | None = None,
        clock: Clock = time.monotonic,
    ) -> None:
        """Start the timer.

        Args:
            total: number of steps.
            description: what is being done.
            unit: name of the steps, in the plural.
            start: steps already done by a resumed run; the rate does not count them.
            stream: where to write; stderr by default.
            clock: time in s.
        """
        self.total, self.description, self.unit = total, description, unit
        self._stream = stream or sys.stderr
        self._clock = clock
        self._step = start
        self._past: deque[tuple[float, int]] = deque([(clock(), start)])
        self._last_line = clock()
        self._shown: str | None = None
        self._figures: dict[str, float | str] = {}
        self._bar = _Bar(self._stream) if self._stream.isatty() else None
        self._task = (
            self._bar.add_task(description, total=total, completed=start, text="") if self._bar else None
        )

    def __enter__(self) -> Self:
        if self._bar:
            self._bar.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._bar:
            self._bar.stop()
        else:
            self._write_line()

    def update(self, step: int, **figures: float | str) -> None:
        """Report that `step` steps are done. A metric keeps its last value until it is given again."""
        now = self._clock()
        self._step = step
        self._figures.update(figures)
        self._past.append((now, step))
        while len(self._past) > 2 and now - self._past[1][0] >= _RATE_OVER:
            self._past.popleft()
        if self._bar and self._task is not None:
            self._bar.update(self._task, completed=step, text=self._text())
        elif now - self._last_line >= _LINE_EVERY:
            self._last_line = now
            self._write_line()

    def show_lines(self, lines: Sequence[str]) -> None:
        """Show these lines above the bar, in place of those before; nothing without a terminal."""
        if self._bar:
            self._bar.lines = lines

    def note(self, text: str) -> None:
        """Write a separate line, above the bar if there is one."""
        if self._bar:
            self._bar.console.print(text, highlight=False, markup=False)
        else:
            print(text, file=self._stream, flush=True)

    def _text(self) -> str:
        parts = [f"{self._step}/{self.total} {self.unit}"]
        parts += [f"{name.replace('_', ' ')} {_figure(value)}" for name, value in self._figures.items()]
        (then, first), (now, last) = self._past[0], self._past[-1]
        if now > then and last > first:
            rate = (last - first) / (now - then)
            parts.append(f"{rate:.3g} {self.unit}/s")
            if self._step < self.total:
                parts.append(f"{_duration((self.total - self._step) / rate)} left")
        return ", ".join(parts)

    def _write_line(self) -> None:
        line = f"{self.description}: {self._text()}"
        if line != self._shown:
            print(line, file=self._stream, flush=True)
            self._shown = line


def progress(total: int, description: str, unit: str = "steps", *, start: int = 0) -> Progress:
    """Progress on stderr: `with progress(1000, "train") as bar: bar.update(step, success=0.4)`."""
    return Progress(total, description, unit, start=start)


class _Bar(RichProgress):
    """A bar with lines of text above it."""

    def __init__(self, stream: TextIO) -> None:
        self.lines: Sequence[str] = ()
        columns = (TextColumn("{task.description}"), BarColumn(), TextColumn("{task.fields[text]}"))
        super().__init__(*columns, console=Console(file=stream))

    def get_renderables(self) -> Iterator[RenderableType]:
        yield from map(Text, self.lines)
        yield from super().get_renderables()


def _figure(value: float | str) -> str:
    return f"{value:.3g}" if isinstance(value, float) else str(value)


def _duration(seconds: float) -> str:
    minutes, second = divmod(round(seconds), 60)
    hours, minute = divmod(minutes, 60)
    return f"{hours}:{minute:02}:{second:02}" if hours else f"{minute}:{second:02}"
