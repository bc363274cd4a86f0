"""One policy for two scenes: collected, merged, trained, measured by instruction, and improved in one."""

import csv
import json
from pathlib import Path

import pytest

from robot_rl.cli.main import main
from robot_rl.data.dataset import Dataset
from robot_rl.envs.language_scenes import LanguageNutAssembly, LanguageStack
from robot_rl.training.logger import read_metrics
from tests.conftest import SMALL_RL, RunCommand

TASK = ("task.image_size=[24,24]", "task.horizon=8")
SMALL = (
    "base.channels=[8]",
    "base.tokens_width=8",
    "base.heads=1",
    "base.layers=1",
    "base.width=16",
    "base.depth=1",
    "method.steps=2",
    "method.batch_size=4",
    "method.successes_only=false",
    "threads=1",
)


def test_from_two_scenes_to_success_by_instruction(
    tmp_path: Path, robot_rl: RunCommand, capsys: pytest.CaptureFixture[str]
) -> None:
    paths = [tmp_path / f"{name}.zarr" for name in ("stack", "nut_assembly")]
    for path in paths:
        robot_rl("collect", f"task=language_{path.stem}", f"data={path}", "episodes=3", *TASK)
    together = tmp_path / "both.zarr"
    robot_rl("data merge", f"datasets=[{paths[0]},{paths[1]}]", f"out={together}", "across_tasks=true")
    known = {*LanguageStack.INSTRUCTIONS, *LanguageNutAssembly.INSTRUCTIONS}
    assert set(Dataset(together).instructions) <= known
    run = tmp_path / "run"
    arguments = (f"data={together}", f"runs_dir={tmp_path}", "name=run", *TASK, *SMALL)
    # All words, also of instructions that six episodes may not have.
    words = sorted({word for text in known for word in text.split()})
    robot_rl(
        "train", "method=bc", "base=vla", "task=language_stack", *arguments, f"base.words=[{','.join(words)}]"
    )
    capsys.readouterr()
    robot_rl("eval", f"policy={run}", "episodes=9", "num_envs=2")
    shown = capsys.readouterr().out
    summary = json.loads((run / "eval" / "summary.json").read_text())
    assert set(summary["instructions"]["base"]) == set(LanguageStack.INSTRUCTIONS)
    assert all(text in shown for text in LanguageStack.INSTRUCTIONS)
    with (run / "eval" / "episodes.csv").open() as file:
        assert {row["instruction"] for row in csv.DictReader(file)} == set(LanguageStack.INSTRUCTIONS)
    robot_rl("eval", f"policy={run}", "episodes=2", "num_envs=2", "swapped=true")
    assert (run / "eval" / "swapped" / "summary.json").is_file()
    robot_rl("eval", f"policy={run}", "episodes=2", "num_envs=2", "task=language_nut_assembly", *TASK)
    other = json.loads((run / "eval" / "language_nut_assembly" / "summary.json").read_text())
    assert set(other["instructions"]["base"]) <= set(LanguageNutAssembly.INSTRUCTIONS)
    capsys.readouterr()
    assert main(["eval", f"policy={run}", "task=language_pick_place", *TASK]) == 2
    error = capsys.readouterr().err
    assert "was not trained on" in error
    assert len(error.splitlines()) == 1
    one = f"task.instructions=[{LanguageStack.INSTRUCTIONS[1]}]"
    small = (*TASK, one, *SMALL_RL, "method.steps=24", "method.warmup_steps=8", "log_every=1")
    more = ("method.encoder=state", "method.demo_ratio=0", f"runs_dir={tmp_path}", "name=rl")
    robot_rl("train", "method=residual_chunk", f"base={run}", "task=language_stack", *small, *more)
    assert "learn/critic_loss" in read_metrics(tmp_path / "rl" / "metrics.csv")
