"""Plots success over environment steps and over wall-clock, as PNG in the style of the reports."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, MaxNLocator, PercentFormatter

from robot_rl.bench.methods.page import short
from robot_rl.bench.methods.results import Row, interval, with_ablations
from robot_rl.evaluation.initial_states import TEST
from robot_rl.report.figures import time_unit
from robot_rl.report.style import light_style
from robot_rl.stats import iqm

_BASE = "#b3621b"
_COLORS = (
    *("#1f66c7", "#0f8f6b", "#8a3fb5", "#c23b5a", "#5b636e"),
    *("#2aa4c9", "#7a9a01", "#d08a00", "#3d3d8f", "#9a6a4f"),
)


def write_plots(rows: Sequence[Row], folder: Path) -> list[Path]:
    """Write `<task>.png` with the entries and `<task>-<entry>.png` with its ablations; returns the paths.

    They are in a subfolder named after the protocol's folder, those of test states in its subfolder `test`.
    Only rows with results are shown.
    """
    task, split = rows[0].protocol.task, rows[0].protocol.split
    folder = folder / rows[0].protocol.group / (split if split == TEST else "")
    entries = with_ablations(rows)
    groups = {folder / f"{task}.png": [entry for entry, _ in entries]}
    for entry, ablations in entries:
        if any(row.done for row in ablations):
            groups[folder / f"{task}-{entry.entry.name}.png"] = [entry, *ablations]
    written = []
    for path, group in groups.items():
        if shown := [row for row in group if row.done]:
            folder.mkdir(parents=True, exist_ok=True)
            _plot(shown, path)
            written.append(path)
    return written


def _plot(rows: Sequence[Row], path: Path) -> None:
    with light_style():
        figure = Figure(figsize=(8.4, 3.6), layout="constrained")
        by_step, by_time = figure.subplots(1, 2, sharey=True)
        longest = max(row.curve()[1].max() for row in rows)
        unit, unit_name = time_unit(longest)
        for row, color in zip(rows, _COLORS * len(rows), strict=False):
            steps, seconds, success = row.curve()
            _draw(by_step, steps, row, success, color)
            _draw(by_time, seconds.mean(0) / unit, row, success, color)
        for axes, name in ((by_step, "environment steps"), (by_time, f"wall-clock of training, {unit_name}")):
            _base_line(axes, rows)
            axes.set_xlabel(name)
            axes.set_xlim(left=0)
            axes.set_ylim(-0.02, 1.03)
            axes.xaxis.set_major_locator(MaxNLocator(5))
        by_step.set_ylabel("success, IQM and 95 % interval")
        by_step.yaxis.set_major_formatter(PercentFormatter(1, symbol=" %"))
        by_step.xaxis.set_major_formatter(FuncFormatter(lambda value, _: short(value)))
        handles, labels = by_step.get_legend_handles_labels()
        figure.legend(handles, labels, loc="outside lower center", ncols=4, frameon=False)
        # No software version, so that the same results give the same bytes.
        figure.savefig(path, dpi=150, metadata={"Software": None})


def _draw(axes: Axes, x: np.ndarray, row: Row, success: np.ndarray, color: str) -> None:
    """Plot the IQM over the seeds of success [n, T]; it starts at the base's success if the run does.

    Behaviour-cloning baselines are evaluated once and are a point.
    """
    bounds = [interval(scores) for scores in success.T]
    label = f"{row.entry.name}, {len(success)} seed{'s' if len(success) > 1 else ''}"
    if row.entry.collect is not None:
        point = iqm(success)
        low, high = bounds[-1] or (point, point)
        around = [[point - low], [high - point]]
        axes.errorbar(
            x, [point], around, color=color, fmt="D", markersize=4.5, capsize=3, elinewidth=1.2, label=label
        )
        return
    middle = [iqm(scores) for scores in success.T]
    known = [bound for bound in bounds if bound]
    if row.entry.from_base:
        base = float(np.mean([result.base_success for result in row.done]))
        x, middle, known = np.array([0, *x]), [base, *middle], [(base, base), *known]
    axes.plot(x, middle, color=color, marker="o", markersize=3.5, label=label)
    if len(known) == len(middle):
        low, high = np.array(known).T
        axes.fill_between(x, low, high, color=color, alpha=0.15, linewidth=0)


def _base_line(axes: Axes, rows: Sequence[Row]) -> None:
    base = float(np.mean([result.base_success for row in rows for result in row.done]))
    axes.axhline(base, color=_BASE, linewidth=1.2, linestyle=(0, (5, 3)), label="base", zorder=1)
