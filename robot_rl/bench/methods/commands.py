"""The `robot-rl` commands that a protocol stands for."""

from pathlib import Path

from robot_rl.bench.methods.protocol import Protocol
from robot_rl.bench.methods.queue import Planned

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
        ["eval", f"policy={home / BASE}", f"episodes={protocol.eval_episodes}", "device=cpu"],
    ]


def train(planned: Planned, home: Path, device: str) -> list[str]:
    """One run, measured as it goes; imitation of its own demonstrations is measured by `evaluate`."""
    protocol = planned.protocol
    where = (f"runs_dir={home}", f"name={planned.name}", f"seed={planned.seed}", f"device={device}")
    if planned.entry.collect is not None:
        data = f"data={own_data(planned, home)}"
        return ["train", f"task={protocol.task}", data, *where, "threads=1", *planned.entry.options]
    return [
        *("train", f"task={protocol.task}", f"data={home / 'demonstrations.zarr'}", f"base={home / BASE}"),
        *where,
        *("threads=1", f"eval_every={protocol.eval_every}", f"eval_episodes={protocol.eval_episodes}"),
        *planned.entry.options,
        f"method.steps={protocol.steps}",
    ]


def own_data(planned: Planned, home: Path) -> Path:
    """Where the demonstrations are that a run collects for itself."""
    return home / f"{planned.name}.zarr"


def collect(planned: Planned, home: Path) -> list[str]:
    """The demonstrations that a run collects for itself."""
    where = (f"task={planned.protocol.task}", f"data={own_data(planned, home)}", f"seed={planned.seed}")
    return ["collect", *where, *(planned.entry.collect or ())]


def evaluate(planned: Planned, home: Path, device: str) -> list[str]:
    """What a run has become."""
    episodes = f"episodes={planned.protocol.eval_episodes}"
    return ["eval", f"policy={home / planned.name}", episodes, f"device={device}"]
