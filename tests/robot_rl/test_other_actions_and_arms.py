"""Tasks of two arms, and of actions that are poses, through the commands that a user types."""

import json
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from robot_rl.cli.main import main
from robot_rl.data.dataset import Dataset
from robot_rl.envs.experts import EXPERTS
from robot_rl.hardware.plugins import VARIABLE
from tests.conftest import SMALL_BASE, SMALL_RL

TWO_ARMS = ("task.env=TwoArmLift", "task.horizon=110")
POSES = ("task=lift", "task.input_type=absolute", "task.horizon=100")


@pytest.fixture(autouse=True)
def with_expert(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A plugin with an expert for two arms, which is forgotten afterwards."""
    plugin = "tests.robot_rl.two_arm_expert"
    monkeypatch.setenv(VARIABLE, plugin)
    yield
    EXPERTS.pop("TwoArmLift", None)
    sys.modules.pop(plugin, None)


@pytest.mark.parametrize(
    ("task", "name", "action_size"),
    [
        pytest.param(POSES, "lift", 10, id="absolute actions"),
        pytest.param(TWO_ARMS, "TwoArmLift", 14, id="two arms", marks=pytest.mark.full),
    ],
)
def test_it_is_collected_trained_and_evaluated(
    task: tuple[str, ...],
    name: str,
    action_size: int,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)

    def run(*arguments: str) -> None:
        assert main(list(arguments)) == 0

    run("collect", *task, "episodes=2")
    dataset = Dataset(Path("data") / f"{name}.zarr")
    assert dataset.success.all()
    assert dataset["action"].shape[1] == action_size
    data = f"data=data/{name}.zarr"
    run("train", "method=bc", *task, data, "name=base", "method.steps=5", "threads=1", *SMALL_BASE)
    run(
        "train",
        "method=residual_chunk",
        data,
        *task,
        "base=runs/base",
        "name=tuned",
        *SMALL_RL,
        "method.steps=30",
        "method.warmup_steps=10",
    )
    if task == TWO_ARMS:
        run("states", *task, "count=2")
    run("eval", "policy=runs/tuned", "episodes=2")
    summary = json.loads((tmp_path / "runs" / "tuned" / "eval" / "summary.json").read_text())
    assert (summary["task"], summary["episodes"]) == (name, 2)
    assert list(summary["policies"]) == ["base", "tuned"]
