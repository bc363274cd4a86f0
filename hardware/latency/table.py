"""Formats the measured delays as a text table."""

from collections.abc import Iterator

from robot_rl.hardware.latency.figures import Figures, Finding
from robot_rl.hardware.spec import Delay


def table(figures: Figures) -> str:
    """One line per delay, or the reason why it could not be determined."""
    rows = list(_rows(figures))
    first = max(len(start) for start, _, _ in rows) + 2
    second = max(len(end) for _, end, _ in rows) + 2
    lines = [f"{'from':<{first}}{'to':<{second}}{'ms':>8}{'±':>8}{'correlation':>14}"]
    lines += [f"{start:<{first}}{end:<{second}}{_value(found)}" for start, end, found in rows]
    return "\n".join(lines)


def _rows(figures: Figures) -> Iterator[tuple[str, str, Finding]]:
    yield "command sent", "arm moves", figures.total
    yield "  command sent", "server acts", figures.network
    yield "  server acts", "arm moves", figures.action
    yield "    server acts", "setpoint", figures.planner
    yield "    setpoint", "arm moves", figures.arm
    yield "command sent", "answer received", figures.answer
    yield "arm moves", "state received", figures.state
    for camera, found in figures.cameras.items():
        yield f"{camera}: arm moves", "image's time stamp", found
        yield f"{camera}: image's time stamp", "image received", figures.images[camera]


def _value(found: Finding) -> str:
    if not isinstance(found, Delay):
        return f"  refused: {found}"
    correlation = "" if found.correlation is None else f"{found.correlation:>14.3f}"
    return f"{found.ms:>8.1f}{found.spread_ms:>8.1f}{correlation}"
