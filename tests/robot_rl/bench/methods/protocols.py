"""Small protocols and their results, for tests of the benchmark of methods."""

import json
from pathlib import Path
from typing import Any

from robot_rl.bench.methods.protocol import Entry, Protocol
from robot_rl.bench.methods.queue import PlannedRun
from robot_rl.bench.methods.result_writer import COLUMNS
from robot_rl.cli import main as cli

ROOT = Path(__file__).parents[4]


SHIPPED = ROOT / "benchmarks" / "protocol" / "states"


RESULTS = ROOT / "benchmarks" / "results"


GROUPS = sorted(SHIPPED.parent.iterdir())


PROTOCOL = Protocol(
    task="lift",
    group="protocol",
    title="Lift",
    collect=("episodes=3",),
    base=(),
    steps=200,
    eval_every=100,
    eval_episodes=20,
    save_every=50,
    test_episodes=30,
    curve_episodes=10,
    entries=(
        Entry("good", ("method=residual",), (0, 1), 1),
        Entry("good-less", ("method=residual", "method.utd=1"), (0,), 2),
        Entry("other", ("method=rlpd",), (0,), 1),
    ),
)
"""The protocol in `YAML`."""


YAML = """
collect: episodes=3
base:
steps: 200
eval_every: 100
eval_episodes: 20
save_every: 50
test_episodes: 30
curve_episodes: 10
entries:
  good: {options: method=residual, seeds: [0, 1], priority: 1}
  good-less: {options: method.utd=1, seeds: [0], priority: 2}
  other: {options: method=rlpd, seeds: [0], priority: 1}
"""


WITH_BC = f"""{YAML}
  bc: {{collect: episodes=9 noise=0.1, options: method=bc method.steps=5, seeds: [0, 1], priority: 1}}
  bc-exact: {{collect: noise=0, options: method.lr=1, seeds: [0], priority: 2}}
"""


BC = Entry("bc", ("method=bc", "method.steps=5"), (0, 1), 1, ("episodes=9", "noise=0.1"))


def protocol_file(folder: Path, text: str = YAML, task: str = "lift") -> Path:
    folder.mkdir(exist_ok=True)
    path = folder / f"{task}.yaml"
    path.write_text(text)
    return path


def write_result_files(
    results: Path, planned: PlannedRun, success: list[float], every: int | None = None, **changes: Any
) -> Path:
    """Write result files with these success rates at each evaluation and one minute of training."""
    path = planned.result(results)
    path.parent.mkdir(parents=True, exist_ok=True)
    steps = [(every or planned.protocol.eval_every) * (i + 1) for i in range(len(success))]
    lines = [
        f"{s},{y},20,0.0,1.0,50.0,{30.0 * (i + 1)}"
        for i, (s, y) in enumerate(zip(steps, success, strict=True))
    ]
    path.with_suffix(".csv").write_text("\n".join([",".join(COLUMNS), *lines]) + "\n")
    record = {
        "format": 1,
        "split": planned.protocol.split,
        "status": "done",
        "reason": None,
        "demonstrations": {"steps": 321, "sha256": "a"},
        "config": {"data_sha256": "a"},
        "protocol": planned.protocol.terms(planned.entry),
        "base": {"success": 0.5, "fingerprint": "a"},
        "final": {"success": success[-1]} if success else None,
        "training": {
            "lowest": {"step": 120, "success": 0.3, "minus_base": -0.2, "base_by_chance": 0.35},
        },
        "wall_seconds": 60.0,
        "machine": {"cpu": "a processor", "gpu": "a card"},
        "device": "cpu",
        **changes,
    }
    path.with_suffix(".json").write_text(json.dumps(record))
    return path.with_suffix(".json")


def bench(workspace: Path, *options: str) -> int:
    folders = (
        f"protocol={workspace / 'protocol'}",
        f"results={workspace / 'results'}",
        f"runs_dir={workspace / 'runs'}",
    )
    try:
        return cli.main(["bench", "methods", *folders, "device=cpu", *options])
    except SystemExit as end:
        return int(end.code or 0)
