"""The figures of the page about a run's imagination, as SVG."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator, MaxNLocator, NullFormatter, PercentFormatter, StrMethodFormatter
from scipy.integrate import trapezoid
from scipy.stats import norm

from robot_rl.imagination.gate import (
    MAX_ERROR,
    MAX_FALSE_EPISODES,
    MAX_GAP,
    MAX_MISSED,
    MIN_RANK,
    pooled,
)
from robot_rl.report.imagination_data import Decision, Horizon, ImaginationData
from robot_rl.report.style import BASE, MUTED, SURFACE, TUNED, page_style, to_svg

_LEVELS = np.linspace(0.05, 0.95, 19)
"""Nominal coverages of intervals."""
_POINTS = 600
"""Chunks in a scatter plot."""
_DECIDED = {
    "share": ("Imagined share of a batch", None),
    "error": ("Error relative to persistence", MAX_ERROR),
    "rank": ("Rank correlation of uncertainty and error", MIN_RANK),
    "missed": ("Successes called failures", MAX_MISSED),
    "false_success": ("Episodes that failed with a false success, of all", MAX_FALSE_EPISODES),
    "gap": ("Imagined minus real R + γV", MAX_GAP),
    "newest_error": ("Error relative to persistence, newest episodes", MAX_ERROR),
    "newest_gap": ("Imagined minus real R + γV, newest episodes", MAX_GAP),
}
"""Title and threshold of each figure of the gate."""


@dataclass(frozen=True)
class Roc:
    """How well the model tells successful chunks from others."""

    area: float
    svg: str


def horizon(found: Horizon) -> str:
    """Errors of the model, of a linear one and of persistence over the length of a rollout."""
    with page_style():
        figure, axes = _axes(4.6, 3.1)
        axes.plot(found.steps, found.persistence, color=MUTED, linestyle=(0, (5, 3)), marker=".")
        axes.plot(found.steps, found.linear, color=BASE, marker="o", markersize=4)
        axes.plot(found.steps, found.model, color=TUNED, marker="o", markersize=4)
        axes.set_ylim(bottom=0)
        axes.set_xlabel("imagined steps")
        axes.set_ylabel("error, in standard deviations")
        axes.xaxis.set_major_locator(MaxNLocator(6, integer=True))
        return to_svg(figure, "horizon", "Error over the length of a rollout")


def coverage(data: ImaginationData) -> str:
    """Part of the errors inside intervals of a nominal coverage."""
    seen, *parts = pooled(data.pool, "seen", "error", "disagreement")
    error, spread = (part[seen].abs().numpy() for part in parts)
    held_out = data.limits.error.numpy()
    width = norm.ppf((1 + _LEVELS) / 2)
    with page_style():
        figure, axes = _axes(4.6, 3.1)
        axes.plot((0, 1), (0, 1), color=MUTED, linestyle=(0, (5, 3)), linewidth=1)
        axes.plot(_LEVELS, [(error <= z * held_out).mean() for z in width], color=BASE)
        axes.plot(_LEVELS, [(error <= z * spread).mean() for z in width], color=TUNED)
        _percent_axes(axes)
        axes.set_xlabel("nominal coverage")
        axes.set_ylabel("errors inside")
        return to_svg(figure, "coverage", "Coverage of intervals")


def uncertainty(data: ImaginationData) -> str:
    """Error of tested chunks over the uncertainty of the model about them."""
    seen, *parts = pooled(data.pool, "seen", "error", "disagreement", "depth")
    error, disagreement, deep = (part[seen] for part in parts)
    size, depth = error.square().mean(1).sqrt().numpy(), deep.numpy()
    spread = data.limits.uncertainty_of(disagreement).numpy()
    chosen = np.linspace(0, len(size) - 1, min(len(size), _POINTS)).round().astype(int)
    with page_style():
        figure, axes = _axes(4.6, 3.1)
        for deeper, color in ((False, TUNED), (True, BASE)):
            some = chosen[(depth[chosen] > 0) == deeper]
            axes.plot(spread[some], size[some], ".", color=color, markersize=4, alpha=0.5)
        axes.axvline(data.limits.uncertainty[0], color=MUTED, linewidth=1, linestyle=(0, (5, 3)))
        axes.set_xscale("log")
        axes.set_yscale("log")
        for axis in (axes.xaxis, axes.yaxis):
            axis.set_major_locator(LogLocator(subs=(1, 2, 5)))
            axis.set_major_formatter(StrMethodFormatter("{x:g}"))
            axis.set_minor_formatter(NullFormatter())
        axes.set_xlabel("uncertainty, in held-out errors")
        axes.set_ylabel("error, in standard deviations")
        return to_svg(figure, "uncertainty", "Error over uncertainty")


def roc(data: ImaginationData) -> Roc | None:
    """True over false successes of tested chunks at all thresholds; None without a success or a failure."""
    score, truth = (part.numpy() for part in pooled(data.pool, "success", "succeeded"))
    if truth.all() or not truth.any():
        return None
    thresholds = np.unique(np.append(score, np.inf))[::-1]
    hits = np.array([(score[truth] >= t).mean() for t in thresholds])
    alarms = np.array([(score[~truth] >= t).mean() for t in thresholds])
    area = float(trapezoid(hits, alarms))
    at = score > data.limits.success
    with page_style():
        figure, axes = _axes(4.6, 3.1)
        axes.plot((0, 1), (0, 1), color=MUTED, linestyle=(0, (5, 3)), linewidth=1)
        axes.plot(alarms, hits, color=TUNED)
        point = at[~truth].mean(), at[truth].mean()
        axes.plot(*point, "o", color=BASE, markersize=7, markeredgecolor=SURFACE)
        _percent_axes(axes)
        axes.set_xlabel("other chunks judged successful")
        axes.set_ylabel("successful chunks found")
        return Roc(area, to_svg(figure, "roc", f"Receiver operating characteristic, area {area:.2f}"))


def history(decisions: Sequence[Decision]) -> list[dict[str, str]]:
    """One small curve for each figure of the gate: its `title`, `name` and `svg`."""
    found = []
    for name, (title, threshold) in _DECIDED.items():
        rows = [line for line in decisions if name in line]
        if not rows:
            continue
        x, y = ([float(line[key]) for line in rows] for key in ("step", name))
        passed = np.array([bool(line.get("passed", False)) for line in rows])
        tested = np.array(["passed" in line for line in rows])
        with page_style():
            figure, axes = _axes(3.0, 1.75)
            style = {"drawstyle": "steps-post"} if name == "share" else {}
            axes.plot(x, y, color=MUTED, linewidth=1.1, **style)  # type: ignore[arg-type]
            for kept, color in ((passed, TUNED), (tested & ~passed, BASE)):
                axes.plot(np.array(x)[kept], np.array(y)[kept], "o", color=color, markersize=4)
            for limit in _thresholds(name, threshold):
                axes.axhline(limit, color=MUTED, linewidth=0.9, linestyle=(0, (5, 3)))
            axes.xaxis.set_major_locator(MaxNLocator(4))
            axes.yaxis.set_major_locator(MaxNLocator(4))
            svg = to_svg(figure, f"gate-{name}", f"{title} over environment steps")
        found.append({"title": title, "name": name, "svg": svg})
    return found


def _thresholds(name: str, threshold: float | None) -> list[float]:
    if threshold is None:
        return []
    return [threshold, -threshold] if name.endswith("gap") else [threshold]


def _axes(width: float, height: float) -> tuple[Figure, Axes]:
    figure = Figure(figsize=(width, height), layout="constrained")
    return figure, figure.add_subplot()


def _percent_axes(axes: Axes) -> None:
    axes.set_xlim(0, 1)
    axes.set_ylim(0, 1.02)
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_major_formatter(PercentFormatter(1, symbol=" %"))
