"""Run the benchmark of methods: the planned runs of the protocols that have no result yet.

Every run writes its own files, so results of several machines can be merged by copying. Ctrl-C stops cleanly,
and the same command resumes. `robot-rl bench table` shows the results.
"""

import sys
from dataclasses import dataclass, field
from pathlib import Path

from robot_rl.bench.methods.protocol import read_protocols
from robot_rl.bench.methods.queue import run_queue, select_runs
from robot_rl.bench.methods.results import read_result
from robot_rl.bench.methods.runner import Runner
from robot_rl.cli.progress import progress
from robot_rl.cli.signals import stop_on_signal
from robot_rl.errors import as_user_errors
from robot_rl.evaluation.initial_states import TEST, check_split
from robot_rl.launchers import make_launcher
from robot_rl.launchers.lock import lock_folder
from robot_rl.saved_policies.loading import choose_device
from robot_rl.training.provenance import check_committed, current_code


@dataclass
class Config:
    protocol: str = "benchmarks/protocol/states"
    """Folder of protocols, one YAML file per task, or one of these files."""
    results: str = "benchmarks/results"
    """Folder of the results, in a subfolder named after the protocol's; runs with a result are skipped."""
    runs_dir: str | None = None
    """Working directory: demonstrations, bases and runs; `runs/bench/<folder of the protocol>` if null."""
    tasks: list[str] = field(default_factory=list)
    """Tasks to run; all if empty."""
    only: list[str] = field(default_factory=list)
    """Entries to run, as patterns such as `residual*`; all if empty."""
    seeds: list[int] = field(default_factory=list)
    """Seeds to run; all if empty."""
    split: str = "validation"
    """`validation`, evaluated while training, or `test`, evaluated afterwards, which needs committed code."""
    jobs: int = 1
    """Parallel runs, each with one thread of torch."""
    launcher: str = "local"
    """Where they run: `local`, on this machine, `ray`, on a Ray cluster, or `slurm`."""
    device: str = "auto"
    """`cpu`, `cuda`, or `auto` for a GPU where there is one."""

    def __post_init__(self) -> None:
        if self.jobs < 1:
            raise ValueError(f"jobs={self.jobs}: ask for at least 1")
        check_split(self.split)


def run(config: Config) -> None:
    results = Path(config.results)
    with as_user_errors():
        if config.launcher == "local":
            # The machines of a cluster may have a GPU where this one has none.
            choose_device(config.device)
        split = check_split(config.split)
        protocols = read_protocols(Path(config.protocol), split)
        runs_dir = Path(config.runs_dir or Path("runs/bench") / protocols[0].group)
        planned = select_runs(run_queue(protocols), config.tasks, config.only, config.seeds)
        todo = [run for run in planned if read_result(run, results) is None]
        if todo and split == TEST:
            check_committed(current_code())
    print(f"{len(planned) - len(todo)} of {len(planned)} runs have results in {results}")
    if not todo:
        return
    with (
        lock_folder(runs_dir, "robot-rl bench methods", "runs_dir") as keep_open,
        make_launcher(config.launcher, config.device, [keep_open]) as launcher,
        stop_on_signal() as stop,
        progress(len(todo), "bench methods", "runs") as show,
    ):
        runner = Runner(runs_dir, results, config.device, launcher)
        failures = runner.run(todo, config.jobs, stop, show)
    if stop():
        print("stopped; the same command goes on from here", file=sys.stderr)
        raise KeyboardInterrupt
    if failures:
        count = "1 run has no result" if len(failures) == 1 else f"{len(failures)} runs have no result"
        print(f"{count}; the same command tries again:", file=sys.stderr)
        print("\n".join(failures), file=sys.stderr)
        raise SystemExit(1)
