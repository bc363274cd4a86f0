"""The `robot-rl` commands that a protocol stands for."""

from pathlib import Path

from robot_rl.bench.methods.protocol import Protocol
from robot_rl.bench.methods.queue import Planned
from robot_rl.evaluation.initial_states import TEST
from robot_rl.training.periodic_evaluation import FOLDER

BASE = "base"


def prepare(protocol: Protocol, home: Path) -> list[list[str]]:
    """Demonstrations, the weak base unless it is kept, and its success: once per task.

    Always on the CPU, so that machines with and without a GPU have the same base.
    """
    data, task = f"data={home / 'demonstrations.zarr'}", f"task={protocol.task}"
    where = (f"runs_dir={home}", f"name={BASE}", "device=cpu", "threads=1")
    train_base = ["train", "method=bc", task, data, *where, *protocol.base]
    return [
        ["collect", task, data, *protocol.collect],
        *([] if protocol.kept_base else [train_base]),
        ["eval", f"policy={home / BASE}", *_states(protocol), "device=cpu"],
    ]


def _states(protocol: Protocol) -> tuple[str, str]:
    """Which initial states `robot-rl eval` uses."""
    return f"split={protocol.split}", f"episodes={protocol.final_episodes}"


def results_of(policy: Path, protocol: Protocol) -> Path:
    """Where `robot-rl eval` writes what a policy has become."""
    return policy / "eval" / (TEST if protocol.split == TEST else "")


def curve_of(planned: Planned, home: Path) -> Path:
    """Where the evaluations of a run are, `<step>.json` each."""
    run = home / planned.name
    return results_of(run, planned.protocol) if planned.protocol.split == TEST else run / FOLDER


def train(planned: Planned, home: Path, device: str) -> list[str]:
    """One run.

    On validation states it is measured as it goes. Imitation of its own demonstrations, and everything on
    test states, is measured afterwards, by `evaluate`.
    """
    protocol = planned.protocol
    where = (f"runs_dir={home}", f"name={planned.name}", f"seed={planned.seed}", f"device={device}")
    if planned.entry.collect is not None:
        data = f"data={own_data(planned, home)}"
        return ["train", f"task={protocol.task}", data, *where, "threads=1", *planned.entry.options]
    return [
        *("train", f"task={protocol.task}", f"data={home / 'demonstrations.zarr'}", f"base={home / BASE}"),
        *where,
        *("threads=1", *_measured(protocol)),
        *planned.entry.options,
        f"method.steps={protocol.steps}",
    ]


def _measured(protocol: Protocol) -> tuple[str, ...]:
    if protocol.split == TEST:
        return (f"save_every={protocol.save_every}",)
    return f"eval_every={protocol.eval_every}", f"eval_episodes={protocol.eval_episodes}"


def data_of(planned: Planned, home: Path) -> Path:
    """The demonstrations that a run has seen, as its base or its own."""
    return home / "demonstrations.zarr" if planned.entry.collect is None else own_data(planned, home)


def own_data(planned: Planned, home: Path) -> Path:
    """Where the demonstrations are that a run collects for itself."""
    return home / f"{planned.name}.zarr"


def collect(planned: Planned, home: Path) -> list[str]:
    """The demonstrations that a run collects for itself."""
    where = (f"task={planned.protocol.task}", f"data={own_data(planned, home)}", f"seed={planned.seed}")
    return ["collect", *where, *(planned.entry.collect or ())]


def evaluate(planned: Planned, home: Path, device: str) -> list[str]:
    """What a run has become; with its saved policies, also how."""
    where = (f"policy={home / planned.name}", *_states(planned.protocol), f"device={device}")
    curve = ("saved=true", f"curve_episodes={planned.protocol.curve_episodes}")
    return ["eval", *where, *(curve if planned.entry.collect is None else ())]
