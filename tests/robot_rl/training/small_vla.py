"""Trains a small vision-language-action policy in this process, or as one of those that torchrun has started.

`torchrun … -m tests.robot_rl.training.small_vla '<JSON of a Job>'`
"""

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch

from robot_rl.data.dataset import Dataset
from robot_rl.data.frames import ArrayFrames
from robot_rl.data.writer import DatasetWriter
from robot_rl.envs.instruction import INSTRUCTION, encode_instruction
from robot_rl.learning.distributed import AccelerateConfig, Accelerated, Processes
from robot_rl.methods.bc import BCConfig, BCLearner, BCMethod
from robot_rl.methods.method import DatasetContext
from robot_rl.policies.bases.vla import VLAConfig
from robot_rl.training.checkpoint import load_checkpoint, save_checkpoint
from tests.robot_rl.data.small_dataset import arrays, environment, images

ROOT = Path(__file__).parents[3]
CAMERAS = ("front", "wrist")
BATCH = 16
CPU = torch.device("cpu")
# With a prefix, the number of steps that count differs between the parts of a batch for two reasons.
BASE = VLAConfig(
    horizon=4,
    execute=2,
    max_prefix=2,
    channels=[8, 16],
    tokens_width=16,
    heads=2,
    layers=1,
    width=32,
    depth=1,
)


@dataclass(frozen=True)
class Job:
    """What to train."""

    dataset: str
    out: str
    """Folder of the checkpoint, and of `rows<rank>.json`: the images that a process has read."""
    accelerate: Mapping[str, Any] = field(default_factory=dict)
    updates: int = 6
    resume: str | None = None
    """Folder of the checkpoint to go on from."""


def write_dataset(path: Path, failed: int | None = None) -> None:
    """Three episodes with images and instructions, successful but for one that is named."""
    described = environment(CAMERAS)
    described["observation_spec"]["instruction"] = True
    described["instructions"] = ["open the drawer", "close the drawer"]
    writer = DatasetWriter(path, described, {"states": False})
    for number, length in enumerate((12, 7, 9)):
        episode = {**arrays(length, number, success=number != failed)}
        text = encode_instruction(described["instructions"][number % 2])
        episode[INSTRUCTION] = np.tile(text, (length, 1))
        episode |= {f"images.{name}": images(length, number, k) for k, name in enumerate(CAMERAS)}
        del episode["source"]
        writer.append(episode, success=number != failed, seed=number)


def make_learner(dataset: Path, processes: Processes) -> BCLearner:
    config = BCConfig(batch_size=BATCH, lr_warmup=2)
    return BCMethod(config).build_learner(DatasetContext(Dataset(dataset), BASE, 0, CPU, processes))


def launch(job: Job, processes: int) -> list[float]:
    """Train in so many processes; returns the losses."""
    subprocess.run(
        [
            *(sys.executable, "-m", "torch.distributed.run", "--standalone"),
            *("--nproc-per-node", str(processes), "-m", __name__, json.dumps(asdict(job))),
        ],
        cwd=ROOT,
        check=True,
        timeout=600,
    )
    losses: list[float] = json.loads(Path(job.out, "losses.json").read_text())
    return losses


def train(job: Job, processes: Processes) -> tuple[BCLearner, list[float]]:
    """Train in this process."""
    learner = make_learner(Path(job.dataset), processes)
    if job.resume:
        learner.load_state_dict(load_checkpoint(Path(job.resume))["learner"])
    losses = [float(learner.update()["loss"]) for _ in range(job.updates)]
    state = learner.state_dict()
    if processes.is_main:
        Path(job.out).mkdir(parents=True, exist_ok=True)
        Path(job.out, "losses.json").write_text(json.dumps(losses))
        save_checkpoint(
            Path(job.out),
            learner.updates,
            {"learner": state},
            lambda to: learner.save_policy(to / "policy", {}),
        )
    return learner, losses


def main(job: Job) -> None:
    read: list[int] = []
    inner = ArrayFrames.__getitem__

    def recorded(frames: ArrayFrames, rows: Any) -> Any:
        read.extend(rows.tolist())
        return inner(frames, rows)

    ArrayFrames.__getitem__ = recorded  # type: ignore[method-assign]
    processes = Accelerated(AccelerateConfig(**job.accelerate), CPU)
    torch.set_num_threads(1)
    train(job, processes)
    Path(job.out).mkdir(parents=True, exist_ok=True)
    Path(job.out, f"rows{os.environ['RANK']}.json").write_text(json.dumps(read))
    processes.close()


if __name__ == "__main__":
    main(Job(**json.loads(sys.argv[1])))
