"""A program that serves world models of the point task, each at its own address, until it is killed.

`python -m tests.robot_rl.world_model_server.served_models oracle=ipc:///… state=ipc:///…`
"""

import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from threading import Event, Thread
from typing import Any

import torch

from robot_rl.hardware.child_process import child_environment
from robot_rl.imagination.config import RemoteModelConfig, StateModelConfig
from robot_rl.imagination.state_model import Shape, StateModel
from robot_rl.imagination.world_model import WorldModel
from robot_rl.world_model_server.client import RemoteModel
from robot_rl.world_model_server.server import serve_world_model
from tests.robot_rl.imagination.point_task import CHUNK, ENVIRONMENT, Oracle

SMALL = StateModelConfig(hidden=[32], batch_size=32, members=3)
ROOT = Path(__file__).resolve().parents[3]


def state_model(seed: int = 0) -> StateModel:
    return StateModel(SMALL, Shape(2, 2, CHUNK), seed)


MODELS: Mapping[str, Callable[[], WorldModel]] = {"oracle": Oracle, "state": state_model}


def connect(address: str, **options: Any) -> RemoteModel:
    environment = options.pop("environment", ENVIRONMENT)
    chunk = options.pop("chunk", CHUNK)
    return RemoteModel(RemoteModelConfig(address=address, **options), environment, (2, 2), chunk)


@contextmanager
def served(model: WorldModel, address: str, **options: Any) -> Iterator[str]:
    """The address of a server in a thread of this process."""
    ended = Event()
    given = {"environment": ENVIRONMENT, "chunk": CHUNK, "stop": ended.is_set, **options}
    thread = Thread(target=serve_world_model, args=(model, address), kwargs=given)
    thread.start()
    try:
        yield address
    finally:
        ended.set()
        thread.join()


@contextmanager
def served_elsewhere(*names: str, folder: Path) -> Iterator[tuple["subprocess.Popen[bytes]", dict[str, str]]]:
    """A process that serves models, and their addresses."""
    addresses = {name: f"ipc://{folder / name}" for name in names}
    pairs = [f"{name}={address}" for name, address in addresses.items()]
    command = [sys.executable, "-m", "tests.robot_rl.world_model_server.served_models", *pairs]
    with subprocess.Popen(command, cwd=ROOT, env=child_environment()) as process:
        try:
            while not all((folder / name / "ctrl").exists() for name in names):
                assert process.poll() is None, "the server has ended"
                time.sleep(0.05)
            yield process, addresses
        finally:
            process.kill()


if __name__ == "__main__":
    torch.set_num_threads(1)
    pairs = [argument.split("=") for argument in sys.argv[1:]]
    threads = [
        Thread(target=serve_world_model, args=(MODELS[name](), address, ENVIRONMENT, CHUNK))
        for name, address in pairs
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
