"""Measure the speed of imagination: fitting the world model, predictions, branches, training steps.

All figures belong to the machine that is printed; on a busy one the times are too long.
"""

import contextlib
import json
import sys
import tempfile
from dataclasses import asdict, dataclass
from pathlib import Path

import torch

from robot_rl.bench.imagine import measure
from robot_rl.machine import describe_machine, keep_freed_memory

_CHUNK_METHODS = ("residual_chunk", "expo", "dsrl_na")


@dataclass
class Config:
    learner: str = "residual_chunk"
    """Method whose learner is measured: `residual_chunk`, `expo` or `dsrl_na`."""
    seconds: float = 10.0
    """Duration of each figure in s, but at least three turns."""
    threads: int = 2
    """CPU threads of torch."""
    json: bool = False
    """End with one line of JSON."""

    def __post_init__(self) -> None:
        if self.learner not in _CHUNK_METHODS:
            raise ValueError(f"learner={self.learner}: choose one of {', '.join(_CHUNK_METHODS)}")


def run(config: Config) -> None:
    keep_freed_memory()
    torch.set_num_threads(config.threads)
    with (
        tempfile.TemporaryDirectory() as scratch,
        contextlib.redirect_stdout(sys.stderr),  # robosuite prints to stdout
    ):
        speed = measure(config.learner, config.seconds, Path(scratch))
    machine = describe_machine()
    print(f"{machine['cpu']}, {config.threads} CPU threads, torch {torch.__version__}")
    ratio = speed.train_step_ms["with"] / speed.train_step_ms["without"]
    print(f"first fit of 50 episodes       {speed.fit_s:.1f} s")
    print(f"predicted chunks               {speed.model_transitions_per_s:,.0f} /s")
    print(f"branches                       {speed.branches_per_s:,.0f} /s")
    print(
        f"training step                  {speed.train_step_ms['with']:.2f} ms, {ratio:.2f} times without it"
    )
    if config.json:
        print(json.dumps(asdict(speed)), flush=True)
