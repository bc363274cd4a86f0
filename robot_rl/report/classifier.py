"""Reads the measured error rates of a success classifier, and draws its calibration."""

from pathlib import Path

import msgspec
from matplotlib.figure import Figure
from matplotlib.ticker import PercentFormatter

from robot_rl.errors import UserError
from robot_rl.learning.success_detection import Rates
from robot_rl.report.style import INK, MUTED, SURFACE, TUNED, page_style, to_svg
from robot_rl.stats import wilson

FILE = "classifier.json"


def read_classifier(run: Path) -> Rates | None:
    """The error rates of a run of `method=classifier`; None for another run.

    Raises:
        UserError: if the file is damaged.
    """
    if not (file := run / FILE).is_file():
        return None
    try:
        return msgspec.json.decode(file.read_bytes(), type=Rates)
    except (msgspec.DecodeError, RecursionError) as error:
        raise UserError(f"{file} is damaged or of an earlier version ({error}): train it again") from None


def calibration(rates: Rates) -> str:
    """Fraction of frames that show success over its predicted probability, with 95 % intervals."""
    with page_style():
        figure = Figure(figsize=(3.4, 3.1), layout="constrained")
        axes = figure.add_subplot()
        axes.plot((0, 1), (0, 1), color=MUTED, linewidth=1, linestyle=(0, (5, 3)))
        for part in rates.calibration:
            axes.plot((part.probability,) * 2, wilson(part.successes, part.frames), color=INK, linewidth=1.1)
        x = [part.probability for part in rates.calibration]
        y = [part.successes / part.frames for part in rates.calibration]
        axes.plot(x, y, "o", color=TUNED, markersize=6, markeredgecolor=SURFACE)
        axes.set_xlim(-0.03, 1.03)
        axes.set_ylim(-0.03, 1.03)
        for axis in (axes.xaxis, axes.yaxis):
            axis.set_major_formatter(PercentFormatter(1, symbol=" %"))
        axes.set_xlabel("predicted probability of success")
        axes.set_ylabel("frames that show success")
        points = "; ".join(f"{a:.0%}: {b:.0%}" for a, b in zip(x, y, strict=True))
        return to_svg(figure, "calibration", f"Frames that show success, by prediction: {points}")
