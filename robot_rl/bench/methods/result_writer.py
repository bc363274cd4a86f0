"""Writes result files: `<entry>_s<seed>.csv` with every evaluation, `.json` with everything else of a run.

They are in `<folder of the protocol>/<split>/<task>/`, where the split is that of the initial states. A run
has a result once its `.json` exists, which is written last.
"""

import csv
import io
import json
from pathlib import Path
from typing import Any

import numpy as np
import yaml

from robot_rl.bench.methods.bc_baseline import wall_seconds
from robot_rl.bench.methods.command_lines import (
    BASE,
    demonstrations_path,
    eval_directory,
    evaluations_directory,
)
from robot_rl.bench.methods.queue import PlannedRun
from robot_rl.data.dataset import Dataset
from robot_rl.runs import write_text
from robot_rl.stats import lowest_by_chance, rolling_success, wilson
from robot_rl.training.logger import Series, read_metrics

FORMAT = 1
WINDOW = 40
"""Training episodes of a rolling success rate."""
COLUMNS = ("step", "success", "episodes", "ci_low", "ci_high", "mean_length", "wall_seconds")
_POINTS = 100
"""Stored points of the training curve."""


def write_result(planned: PlannedRun, task_dir: Path, results: Path) -> dict[str, Any]:
    """Write the files of a finished or failed run and return the content of the `.json`."""
    run = task_dir / planned.name
    facts = json.loads((run / "run.json").read_text())
    metrics = read_metrics(run / "metrics.csv")
    evaluations = [
        _evaluation(path) for path in sorted(evaluations_directory(planned, task_dir).glob("[0-9]*.json"))
    ]
    rows = [_row(evaluation) for evaluation in evaluations]
    base = json.loads((eval_directory(task_dir / BASE, planned.protocol) / "summary.json").read_text())
    data = Dataset(demonstrations_path(planned, task_dir))
    base_success = base["policies"]["base"]["success"]
    record: dict[str, Any] = {
        "format": FORMAT,
        "task": planned.protocol.task,
        "entry": planned.entry.name,
        "seed": planned.seed,
        "split": planned.protocol.split,
        "status": "failed" if "failed" in facts else "done",
        "reason": facts.get("failed"),
        "protocol": planned.protocol.terms(planned.entry),
        "base": {**base["policies"]["base"], "episodes": base["episodes"]},
        "states": {key: base[key] for key in ("states", "states_sha256")},
        "demonstrations": {"steps": data.num_steps, "sha256": data.sha256},
        "final": _final(evaluations),
        "training": _training(metrics.get("train/success", []), base_success),
        # The last policy may be saved after the last metric was logged.
        "wall_seconds": max(
            [wall_seconds(planned, task_dir, metrics), *(row["wall_seconds"] for row in rows)]
        ),
        "eval_seconds": sum(evaluation["eval_seconds"] for evaluation in evaluations),
        **{key: facts[key] for key in ("method", "started", "machine", "versions")},
        "device": facts.get("device"),
        "commit": facts["commits"][-1],
        "dirty": facts["dirty"],
        "config_sha256": facts["config_sha256"],
        "config": yaml.safe_load((run / "config.yaml").read_text()),
    }
    path = planned.result(results)
    path.parent.mkdir(parents=True, exist_ok=True)
    table = io.StringIO()
    writer = csv.DictWriter(table, COLUMNS, lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    write_text(path.with_suffix(".csv"), table.getvalue())
    write_text(path.with_suffix(".json"), json.dumps(record, indent=1) + "\n")
    return record


def _evaluation(path: Path) -> dict[str, Any]:
    return json.loads(path.read_text())


def _row(evaluation: dict[str, Any]) -> dict[str, Any]:
    """Row of the CSV file; `wall_seconds` does not include evaluations."""
    wins, n = sum(evaluation["success"]), len(evaluation["success"])
    length = float(np.mean(evaluation["length"]))
    values = (evaluation["step"], wins / n, n, *wilson(wins, n), length, evaluation["wall_seconds"])
    return dict(zip(COLUMNS, values, strict=True))


def _final(evaluations: list[dict[str, Any]]) -> dict[str, Any] | None:
    """Outcomes of the last evaluation, one character per initial state: 1 is success."""
    if not evaluations:
        return None
    last = evaluations[-1]
    wins, n = sum(last["success"]), len(last["success"])
    return {
        "step": last["step"],
        "success": wins / n,
        "interval": wilson(wins, n),
        "outcomes": "".join(map(str, last["success"])),
        "lengths": last["length"],
    }


def _training(series: Series, base_success: float) -> dict[str, Any]:
    """Success rate while training, with exploration, over the last 40 episodes at each episode."""
    rates = rolling_success([success for *_, success in series], WINDOW)
    ends = series[WINDOW - 1 :]
    lowest = None
    curve: list[list[float]] = []
    if len(rates):
        at = int(rates.argmin())
        success = float(rates[at])
        lowest = {
            "step": ends[at][0],
            "success": success,
            "minus_base": success - base_success,
            # Expected lowest rate of the base itself in as many episodes, measured the same way.
            "base_by_chance": lowest_by_chance(base_success, len(series), WINDOW),
        }
        stored = np.unique(np.linspace(0, len(rates) - 1, _POINTS).astype(int))
        curve = [[ends[i][0], round(ends[i][1], 1), round(float(rates[i]), 4)] for i in stored]
    return {"episodes": len(series), "window": WINDOW, "lowest": lowest, "rolling": curve}
