"""Learning with and without somebody who takes over: the result files, a figure and a table of them.

    python benchmarks/interventions.py RUN...

adds runs of `robot-rl train hil=on eval_every=...`, named `<arm>_s<seed>`, to
`benchmarks/results/interventions/`, and draws all that are there: docs/interventions.png, and the table on
standard output. Without runs it only draws.
"""

import csv
import json
import sys
from collections import defaultdict
from pathlib import Path

import numpy as np
import yaml
from matplotlib.figure import Figure
from matplotlib.ticker import PercentFormatter

from robot_rl.bench.methods.plots import light_style
from robot_rl.logger import read_metrics
from robot_rl.statistics import iqm

ROOT = Path(__file__).parent
RESULTS = ROOT / "results" / "interventions"
FIGURE = ROOT.parent / "docs" / "interventions.png"
MARK = 0.9
ARMS = {
    "helped": ("takes over, a takeover fails", "#1f66c7"),
    "on": ("takes over, value goes on", "#0f8f6b"),
    "bridge": ("the same through the bridge", "#8a3fb5"),
    "alone": ("nobody", "#c23b5a"),
}
"""In the order of the table."""
Columns = dict[str, np.ndarray]
"""Of a run's CSV."""


def add(run: Path) -> None:
    """Write the result files of a run: what happened up to each evaluation, its settings and its machine."""
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
    RESULTS.mkdir(parents=True, exist_ok=True)
    with (RESULTS / f"{run.name}.csv").open("w", newline="") as file:
        writer = csv.DictWriter(file, rows[0], lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)
    facts = json.loads((run / "run.json").read_text())
    config = yaml.safe_load((run / "config.yaml").read_text())
    for key in ("data", "runs_dir", "name"):
        del config[key]
    del config["base"]["path"], config["hil"]["robot"]
    record = {key: facts[key] for key in ("machine", "versions", "wall_seconds")} | {"config": config}
    (RESULTS / f"{run.name}.json").write_text(json.dumps(record, indent=1) + "\n")


def load() -> dict[str, list[Columns]]:
    """The columns of each run of each arm."""
    arms: dict[str, list[Columns]] = defaultdict(list)
    for path in sorted(RESULTS.glob("*.csv")):
        with path.open() as file:
            rows = list(csv.DictReader(file))
        arms[path.stem.rpartition("_s")[0]].append(
            {name: np.array([float(row[name]) for row in rows]) for name in rows[0]}
        )
    return arms


def table(arms: dict[str, list[Columns]]) -> str:
    """Markdown: when each run was first at the mark, and how much it was helped at first and in the end."""
    lines = [
        f"| operator | seeds | steps to {MARK:g} | success at 10 k | at 20 k | training episodes that fail, "
        "first 20 k | intervention rate, first and last 5 k |",
        "|---|---|---|---|---|---|---|",
    ]
    for arm, (name, _) in ARMS.items():
        if not (runs := arms.get(arm)):
            continue
        reached = [next((f"{s / 1000:g} k" for s, v in _points(run) if v >= MARK), "—") for run in runs]
        at = [
            " ".join(f"{dict(_points(run)).get(step, np.nan):.2f}" for run in runs) for step in (10e3, 20e3)
        ]
        failed = " ".join(f"{_failed(run, 20e3):.0f}" for run in runs)
        rates = " ".join(f"{_rate(run, first=True):.2f}→{_rate(run, first=False):.3f}" for run in runs)
        lines.append(
            f"| {name} | {len(runs)} | {', '.join(reached)} | {at[0]} | {at[1]} | {failed} | {rates} |"
        )
    return "\n".join(lines)


def _points(run: Columns) -> list[tuple[float, float]]:
    return list(zip(run["step"], run["success"], strict=True))


def _failed(run: Columns, until: float) -> float:
    part = run["step"] <= until
    return float((run["train_episodes"] * (1 - run["train_success"]))[part].sum())


def _rate(run: Columns, *, first: bool) -> float:
    steps = run["step"]
    part = steps <= 5000 if first else steps > steps[-1] - 5000
    widths = np.diff(steps, prepend=0)
    return float(np.average(run["intervention_rate"][part], weights=widths[part]))


def draw(arms: dict[str, list[Columns]]) -> None:
    """Success and intervention rate over environment steps: each run, and the IQM of an arm."""
    with light_style():
        figure = Figure(figsize=(8.4, 3.4), layout="constrained")
        success, rate = figure.subplots(1, 2)
        for arm, (name, color) in ARMS.items():
            for column, axes in (("success", success), ("intervention_rate", rate)):
                if not (runs := arms.get(arm)) or (column != "success" and arm == "alone"):
                    continue
                for run in runs:
                    axes.plot(run["step"], run[column], color=color, alpha=0.3, linewidth=0.8)
                common = sorted(set.intersection(*(set(run["step"]) for run in runs)))
                middle = [
                    iqm([run[column][list(run["step"]).index(step)] for run in runs]) for step in common
                ]
                label = f"{name}, {len(runs)} seed{'s' if len(runs) > 1 else ''}"
                axes.plot(common, middle, color=color, marker="o", markersize=3, label=label)
        success.axhline(MARK, color="#5b636e", linewidth=0.8, linestyle=(0, (5, 3)))
        for axes, name in (
            (success, "success of the policy alone"),
            (rate, "part of the steps that are the operator's"),
        ):
            axes.set_xlabel("environment steps")
            axes.set_title(name, fontsize=9)
            axes.yaxis.set_major_formatter(PercentFormatter(1, symbol=" %"))
            axes.set_xlim(left=0)
            axes.set_ylim(bottom=0)
        handles, labels = success.get_legend_handles_labels()
        figure.legend(handles, labels, loc="outside lower center", ncols=2, frameon=False)
        figure.savefig(FIGURE, dpi=150, metadata={"Software": None})


if __name__ == "__main__":
    for argument in sys.argv[1:]:
        add(Path(argument))
    found = load()
    draw(found)
    print(table(found))
