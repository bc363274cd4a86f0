"""Compares training with and without interventions: result files, a figure and tables.

    python benchmarks/interventions.py [SETTING RUN...]

adds runs of `robot-rl train hil=on eval_every=...`, named `<arm>_s<seed>`, to
`benchmarks/results/interventions/<setting>/`, then draws all runs there to docs/interventions.png and prints
a table per setting.
"""

import csv
import json
import sys
from collections import defaultdict
from pathlib import Path

import numpy as np
import yaml
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import EngFormatter, MaxNLocator, PercentFormatter

from robot_rl.report.style import light_style
from robot_rl.stats import iqm
from robot_rl.training.logger import read_metrics

ROOT = Path(__file__).parent
RESULTS = ROOT / "results" / "interventions"
FIGURE = ROOT.parent / "docs" / "interventions.png"
MARK = 0.9
ARMS = {
    "helped": ("hasty, a takeover fails", "#1f66c7"),
    "on": ("hasty operator", "#0f8f6b"),
    "lasting": ("operator", "#b07d12"),
    "bridge": ("hasty, through the bridge", "#8a3fb5"),
    "alone": ("no operator", "#c23b5a"),
}
"""Names and colors, in table order. "Hasty" is the scripted operator before lost ground had to last 0.5 s."""
Columns = dict[str, np.ndarray]
"""Columns of a run's CSV file."""


def add(run: Path, folder: Path) -> None:
    """Write the result files of a run: a row per evaluation, its settings and its machine."""
    metrics = {name: np.array(series) for name, series in read_metrics(run / "metrics.csv").items()}
    rows, before = [], 0
    for step, _, success in metrics["eval/success"]:
        within = {
            name: series[(before < series[:, 0]) & (series[:, 0] <= step), 2]
            for name, series in metrics.items()
        }
        succeeded, lengths = within["train/success"], within["train/episode_length"]
        rows.append(
            {
                "step": int(step),
                "success": success,
                "episodes": int(within["eval/episodes"][-1]),
                "train_episodes": len(succeeded),
                "train_success": round(succeeded.mean(), 4),
                "alone": round(within["hil/alone"].mean(), 4),
                "intervention_rate": round(np.average(within["hil/intervention_rate"], weights=lengths), 4),
            }
        )
        before = step
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / f"{run.name}.csv").open("w", newline="") as file:
        writer = csv.DictWriter(file, rows[0], lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)
    facts = json.loads((run / "run.json").read_text())
    config = yaml.safe_load((run / "config.yaml").read_text())
    for key in ("data", "runs_dir", "name"):
        del config[key]
    del config["base"]["path"], config["hil"]["robot"]
    record = {key: facts[key] for key in ("machine", "versions", "wall_seconds")} | {"config": config}
    (folder / f"{run.name}.json").write_text(json.dumps(record, indent=1) + "\n")


def load(folder: Path) -> dict[str, list[Columns]]:
    """Load the columns of each run, by arm of a setting."""
    arms: dict[str, list[Columns]] = defaultdict(list)
    for path in sorted(folder.glob("*.csv")):
        with path.open() as file:
            rows = list(csv.DictReader(file))
        arms[path.stem.rpartition("_s")[0]].append(
            {name: np.array([float(row[name]) for row in rows]) for name in rows[0]}
        )
    return arms


def table(arms: dict[str, list[Columns]]) -> str:
    """Markdown table: steps to the mark, success, failures and intervention rate of each run."""
    lines = [
        f"| operator | seeds | steps to {MARK:g} | success at 10 k | at 20 k | at 30 k | at 60 k | training "
        "episodes that fail, first 20 k | intervention rate, first and last 5 k |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    for arm, (name, _) in ARMS.items():
        if not (runs := arms.get(arm)):
            continue
        reached = [next((f"{s / 1000:g} k" for s, v in _points(run) if v >= MARK), "—") for run in runs]
        at = " | ".join(" ".join(_success(run, step) for run in runs) for step in (10e3, 20e3, 30e3, 60e3))
        failed = " ".join(f"{_failed(run, 20e3):.0f}" for run in runs)
        rates = " ".join(f"{_rate(run, first=True):.2f}→{_rate(run, first=False):.3f}" for run in runs)
        lines.append(f"| {name} | {len(runs)} | {', '.join(reached)} | {at} | {failed} | {rates} |")
    return "\n".join(lines)


def _points(run: Columns) -> list[tuple[float, float]]:
    return list(zip(run["step"], run["success"], strict=True))


def _success(run: Columns, step: float) -> str:
    points = dict(_points(run))
    return f"{points[step]:.2f}" if step in points else "—"


def _failed(run: Columns, until: float) -> float:
    part = run["step"] <= until
    return float((run["train_episodes"] * (1 - run["train_success"]))[part].sum())


def _rate(run: Columns, *, first: bool) -> float:
    steps = run["step"]
    part = steps <= 5000 if first else steps > steps[-1] - 5000
    widths = np.diff(steps, prepend=0)
    return float(np.average(run["intervention_rate"][part], weights=widths[part]))


def draw(settings: dict[str, dict[str, list[Columns]]]) -> None:
    """Draw a row per setting: success and intervention rate over environment steps, each run and the IQM."""
    with light_style():
        figure = Figure(figsize=(8.4, 2.9 * len(settings) + 0.5), layout="constrained")
        axes = figure.subplots(len(settings), 2, squeeze=False, sharex=True)
        labels = {}
        for (setting, arms), (success, rate) in zip(settings.items(), axes, strict=True):
            for arm, (name, color) in ARMS.items():
                if runs := arms.get(arm):
                    labels[name] = _lines(success, runs, "success", color)
                    if arm != "alone":
                        _lines(rate, runs, "intervention_rate", color)
            success.axhline(MARK, color="#5b636e", linewidth=0.8, linestyle=(0, (5, 3)))
            success.set_title(f"{setting.replace('_', ' ')}: success of the policy alone", fontsize=9)
            rate.set_title("fraction of steps driven by the operator", fontsize=9)
            success.set_ylim(0, 1.02)
            rate.set_ylim(bottom=0)
        for panel in axes.flat:
            panel.yaxis.set_major_formatter(PercentFormatter(1, symbol=" %"))
            panel.set_xlim(left=0)
        for panel in axes[-1]:
            panel.set_xlabel("environment steps")
            panel.xaxis.set_major_locator(MaxNLocator(5))
            panel.xaxis.set_major_formatter(EngFormatter())
        figure.legend(labels.values(), labels, loc="outside lower center", ncols=len(labels), frameon=False)
        figure.savefig(FIGURE, dpi=150, metadata={"Software": None})


def _lines(axes: Axes, runs: list[Columns], column: str, color: str) -> Line2D:
    for run in runs:
        axes.plot(run["step"], run[column], color=color, alpha=0.3, linewidth=0.8)
    common = sorted(set.intersection(*(set(run["step"]) for run in runs)))
    middle = [iqm([run[column][list(run["step"]).index(step)] for run in runs]) for step in common]
    return axes.plot(common, middle, color=color, marker="o", markersize=3)[0]


def main(arguments: list[str]) -> None:
    """Add the given runs, then draw the figure and print the tables."""
    for argument in arguments[1:]:
        add(Path(argument), RESULTS / arguments[0])
    settings = {folder.name: load(folder) for folder in sorted(RESULTS.iterdir())}
    draw(settings)
    for name, arms in settings.items():
        print(f"{name}\n\n{table(arms)}\n")


if __name__ == "__main__":
    main(sys.argv[1:])
