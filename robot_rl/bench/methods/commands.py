"""The `robot-rl` commands that a protocol stands for."""

from pathlib import Path

from robot_rl.bench.methods.protocol import Protocol
from robot_rl.bench.methods.queue import Planned

BASE = "base"


def prepare(protocol: Protocol, home: Path) -> list[list[str]]:
    """Demonstrations, the weak base and its success: once per task.

    Always on the CPU, so that machines with and without a GPU have the same base.
    """
    data, task = f"data={home / 'demonstrations.zarr'}", f"task={protocol.task}"
    return [
        ["collect", task, data, *protocol.collect],
        [
            *("train", "method=bc", task, data, f"runs_dir={home}", f"name={BASE}"),
            *("device=cpu", "threads=1", *protocol.base),
        ],
        ["eval", f"policy={home / BASE}", f"episodes={protocol.eval_episodes}", "device=cpu"],
    ]


def train(planned: Planned, home: Path, device: str) -> list[str]:
    """One run, measured as it goes."""
    protocol = planned.protocol
    return [
        *("train", f"task={protocol.task}", f"data={home / 'demonstrations.zarr'}", f"base={home / BASE}"),
        *(f"runs_dir={home}", f"name={planned.name}", f"seed={planned.seed}", f"device={device}"),
        *("threads=1", f"eval_every={protocol.eval_every}", f"eval_episodes={protocol.eval_episodes}"),
        *planned.entry.options,
        f"method.steps={protocol.steps}",
    ]
