"""Command lines and paths of the `robot-rl` commands that a benchmark run consists of."""

from pathlib import Path

from robot_rl.bench.methods.protocol import Protocol
from robot_rl.bench.methods.queue import PlannedRun
from robot_rl.evaluation.initial_states import TEST
from robot_rl.runs import EVALUATIONS

BASE = "base"


def preparation_commands(protocol: Protocol, task_dir: Path) -> list[list[str]]:
    """Commands run once per task: collect demonstrations, train the base unless it is stored, evaluate it.

    Always on the CPU, so that machines with and without a GPU train the same base.
    """
    data, task = f"data={task_dir / 'demonstrations.zarr'}", f"task={protocol.task}"
    where = (f"runs_dir={task_dir}", f"name={BASE}", "device=cpu", "threads=1")
    train_base = ["train", "method=bc", task, data, *where, *protocol.base]
    return [
        ["collect", task, data, *protocol.collect],
        *([] if protocol.kept_base else [train_base]),
        ["eval", f"policy={task_dir / BASE}", *_states(protocol), "device=cpu"],
    ]


def _states(protocol: Protocol) -> tuple[str, str]:
    """Options of `robot-rl eval` that select the initial states."""
    return f"split={protocol.split}", f"episodes={protocol.final_episodes}"


def eval_directory(policy: Path, protocol: Protocol) -> Path:
    """Directory to which `robot-rl eval` writes the results of a policy."""
    return policy / "eval" / (TEST if protocol.split == TEST else "")


def evaluations_directory(planned: PlannedRun, task_dir: Path) -> Path:
    """Directory of the evaluations of a run at its steps, `<step>.json` each."""
    run = task_dir / planned.name
    return eval_directory(run, planned.protocol) if planned.protocol.split == TEST else run / EVALUATIONS


def collect_command(planned: PlannedRun, task_dir: Path) -> list[str]:
    """Collect the demonstrations of a behaviour-cloning baseline."""
    data = f"data={collected_data(planned, task_dir)}"
    where = (f"task={planned.protocol.task}", data, f"seed={planned.seed}")
    return ["collect", *where, *(planned.entry.collect or ())]


def train_command(planned: PlannedRun, task_dir: Path, device: str) -> list[str]:
    """Train a run.

    With validation states it is evaluated while it trains. With test states, and for behaviour-cloning
    baselines, `eval_command` evaluates it afterwards.
    """
    protocol = planned.protocol
    where = (f"runs_dir={task_dir}", f"name={planned.name}", f"seed={planned.seed}", f"device={device}")
    if planned.entry.collect is not None:
        data = f"data={collected_data(planned, task_dir)}"
        return ["train", f"task={protocol.task}", data, *where, "threads=1", *planned.entry.options]
    data, base = f"data={task_dir / 'demonstrations.zarr'}", f"base={task_dir / BASE}"
    return [
        *("train", f"task={protocol.task}", data, base),
        *where,
        *("threads=1", *_evaluation_options(protocol)),
        *planned.entry.options,
        f"method.steps={protocol.steps}",
    ]


def _evaluation_options(protocol: Protocol) -> tuple[str, ...]:
    if protocol.split == TEST:
        return (f"save_every={protocol.save_every}",)
    return f"eval_every={protocol.eval_every}", f"eval_episodes={protocol.eval_episodes}"


def eval_command(planned: PlannedRun, task_dir: Path, device: str) -> list[str]:
    """Evaluate a finished run, and its saved policies if it has any."""
    where = (f"policy={task_dir / planned.name}", *_states(planned.protocol), f"device={device}")
    curve = ("saved=true", f"curve_episodes={planned.protocol.curve_episodes}")
    return ["eval", *where, *(curve if planned.entry.collect is None else ())]


def demonstrations_path(planned: PlannedRun, task_dir: Path) -> Path:
    """Dataset of the demonstrations that a run learns from: the task's, or those that it collects itself."""
    collects = planned.entry.collect is not None
    return collected_data(planned, task_dir) if collects else task_dir / "demonstrations.zarr"


def collected_data(planned: PlannedRun, task_dir: Path) -> Path:
    """Dataset of the demonstrations that a behaviour-cloning baseline collects itself."""
    return task_dir / f"{planned.name}.zarr"
