"""What many tests need, made once: a simulated arm's server, a small dataset and a small base policy."""

import gc
from collections.abc import Callable, Generator, Iterator
from pathlib import Path

import pytest
import torch
from hypothesis import HealthCheck, settings

from robot_rl.cli.compose import compose
from robot_rl.cli.main import load_command
from tests.hardware.processes import Server, serving

# On a busy machine an example takes long, which says nothing about the code.
settings.register_profile("any machine", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("any machine")

SMALL_BASE = ("base.width=32", "base.depth=1", "base.train_steps=8", "base.inference_steps=2")
SMALL_VLA = (
    "base.channels=[8]",
    "base.tokens_width=8",
    "base.heads=1",
    "base.layers=1",
    "base.width=16",
    "base.depth=1",
)
SMALL_RL = (
    "method.num_envs=2",
    "method.utd=1",
    "method.hidden=[16,16]",
    "method.num_critics=3",
    "method.batch_size=16",
    "method.critic_warmup=10",
    "threads=1",
)

RunCommand = Callable[..., None]


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Keep the garbage collector away from what the tests import.

    These are 700 000 objects, which every full collection would visit, and robosuite makes one whenever an
    environment is closed.
    """
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


FIRST = (
    "tests/test_demo.py",
    "tests/robot_rl/hil/test_web.py",
    "tests/test_tutorials.py",
    "tests/hardware/",
    "tests/test_",
    "tests/robot_rl/training/",
)
"""Beginnings of the names of the tests that run first, in this order."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Let the longest begin first, or one process would be at them when the others are through.

    On a machine where the control loop is not compiled yet, one process compiles it. The tests of hardware,
    which need none, keep the others busy meanwhile: they would compile it too.
    """

    def rank(item: pytest.Item) -> int:
        return next((at for at, name in enumerate(FIRST) if item.nodeid.startswith(name)), len(FIRST))

    items.sort(key=rank)


@pytest.fixture(scope="session")
def robot_rl() -> RunCommand:
    """Runs a command in this process: `robot_rl("train", "method=bc", …)`."""
    torch.set_num_threads(1)

    def run(name: str, *arguments: str) -> None:
        command = load_command(name)
        command.run(compose(command, arguments))

    return run


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """The server of a simulated arm, one for all tests of a module."""
    with serving(tmp_path_factory.mktemp("r")) as server:
        yield server


@pytest.fixture(scope="session")
def demonstrations(tmp_path_factory: pytest.TempPathFactory, robot_rl: RunCommand) -> Path:
    """Three episodes of the Lift expert."""
    path = tmp_path_factory.mktemp("demonstrations") / "lift.zarr"
    robot_rl("collect", f"data={path}", "episodes=3", "noise=0.1")
    return path


@pytest.fixture(scope="session")
def base_run(tmp_path_factory: pytest.TempPathFactory, robot_rl: RunCommand, demonstrations: Path) -> Path:
    """The run of a small diffusion policy."""
    runs = tmp_path_factory.mktemp("runs")
    robot_rl(
        "train",
        "method=bc",
        f"data={demonstrations}",
        f"runs_dir={runs}",
        "name=base",
        "method.steps=30",
        "threads=1",
        *SMALL_BASE,
    )
    return runs / "base"


@pytest.fixture(scope="session")
def act_run(tmp_path_factory: pytest.TempPathFactory, robot_rl: RunCommand, demonstrations: Path) -> Path:
    """The run of a small base policy without noise."""
    runs = tmp_path_factory.mktemp("act")
    small = ("base.width=16", "base.heads=2", "base.layers=1", "method.steps=2", "threads=1")
    robot_rl(
        "train", "method=bc", "base=act", f"data={demonstrations}", f"runs_dir={runs}", "name=act", *small
    )
    return runs / "act"
