"""A task that is seen by a camera, for the tests of methods."""

from pathlib import Path

import pytest

from tests.conftest import SMALL_BASE, RunCommand

SEEN = ("task.cameras=[agentview]", "task.image_size=[32,32]")


@pytest.fixture(scope="session")
def seen(tmp_path_factory: pytest.TempPathFactory, robot_rl: RunCommand) -> Path:
    """Two demonstrations of Lift with images."""
    path = tmp_path_factory.mktemp("seen") / "lift.zarr"
    robot_rl("collect", f"data={path}", "episodes=2", "noise=0.1", *SEEN)
    return path


@pytest.fixture(scope="session")
def seeing(tmp_path_factory: pytest.TempPathFactory, robot_rl: RunCommand, seen: Path) -> Path:
    """Run of a small base that uses the images."""
    runs = tmp_path_factory.mktemp("seeing")
    short = ("method.steps=2", "method.batch_size=8", "threads=1")
    run = (f"data={seen}", f"runs_dir={runs}", "name=base")
    robot_rl("train", "method=bc", *run, *short, *SEEN, *SMALL_BASE)
    return runs / "base"
