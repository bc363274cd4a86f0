"""One policy for two scenes: collected, merged, trained, measured by instruction, and improved in one."""

import csv
import json
from pathlib import Path

import pytest

from robot_rl.cli.main import main
from robot_rl.data.dataset import Dataset
from robot_rl.envs.language_scenes import LanguageNutAssembly, LanguageStack
from robot_rl.saved_policies.loading import load_policy
from robot_rl.training.logger import read_metrics
from tests.conftest import SMALL_RL, SMALL_VLA, RunCommand

TASK = ("task.image_size=[24,24]", "task.horizon=8")
KNOWN = {*LanguageStack.INSTRUCTIONS, *LanguageNutAssembly.INSTRUCTIONS}
# All words, also of instructions that a few episodes may not have.
WORDS = ",".join(sorted({word for text in KNOWN for word in text.split()}))
SMALL = (
    *SMALL_VLA,
    f"base.words=[{WORDS}]",
    "method.steps=2",
    "method.batch_size=4",
    "method.successes_only=false",
    "threads=1",
)


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory, robot_rl: RunCommand) -> Path:
    """The run of a small policy, from two scenes."""
    folder = tmp_path_factory.mktemp("words")
    paths = [folder / f"{name}.zarr" for name in ("stack", "nut_assembly")]
    for path in paths:
        robot_rl("collect", f"task=language_{path.stem}", f"data={path}", "episodes=2", *TASK)
    together = folder / "both.zarr"
    robot_rl("data merge", f"datasets=[{paths[0]},{paths[1]}]", f"out={together}", "across_tasks=true")
    assert set(Dataset(together).instructions) <= KNOWN
    arguments = (f"data={together}", f"runs_dir={folder}", "name=run", *TASK, *SMALL)
    robot_rl("train", "method=bc", "base=vla", "task=language_stack", *arguments)
    return folder / "run"


def test_success_is_listed_by_instruction(
    run: Path, robot_rl: RunCommand, capsys: pytest.CaptureFixture[str]
) -> None:
    # The first states with both instructions.
    robot_rl("eval", f"policy={run}", "episodes=9", "num_envs=1")
    shown = capsys.readouterr().out
    summary = json.loads((run / "eval" / "summary.json").read_text())
    assert set(summary["instructions"]["base"]) == set(LanguageStack.INSTRUCTIONS)
    assert all(text in shown for text in LanguageStack.INSTRUCTIONS)
    with (run / "eval" / "episodes.csv").open() as file:
        assert {row["instruction"] for row in csv.DictReader(file)} == set(LanguageStack.INSTRUCTIONS)


@pytest.mark.full
def test_it_learns_more_of_one_scene_with_replay_of_the_other(
    run: Path, robot_rl: RunCommand, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    data, other = (run.parent / f"{name}.zarr" for name in ("nut_assembly", "stack"))
    small = [word for word in SMALL if word.startswith(("method.", "threads"))]
    common = ["train", "method=bc", f"base={run}", f"runs_dir={tmp_path}", *TASK, *small]
    mixed = [f"data={data}", f"method.replay={other}", "task=language_nut_assembly"]
    robot_rl(*common, "name=more", *mixed)
    for text in KNOWN:
        load_policy(tmp_path / "more").base.check_instruction(text)
    unknown = tmp_path / "unknown.zarr"
    collect = ("collect", "task=language_pick_place", f"data={unknown}", "episodes=1", *TASK)
    robot_rl(*collect)
    capsys.readouterr()
    assert main([*common, "name=x", f"data={unknown}", "task=language_pick_place"]) == 2
    error = capsys.readouterr().err
    assert "was not trained on" in error
    assert len(error.splitlines()) == 1


@pytest.mark.full
def test_a_policy_is_measured_in_its_other_scene_and_with_swapped_words(
    run: Path, robot_rl: RunCommand, capsys: pytest.CaptureFixture[str]
) -> None:
    robot_rl("eval", f"policy={run}", "episodes=2", "num_envs=1", "swapped=true")
    assert (run / "eval" / "swapped" / "summary.json").is_file()
    robot_rl("eval", f"policy={run}", "episodes=2", "num_envs=1", "task=language_nut_assembly", *TASK)
    other = json.loads((run / "eval" / "language_nut_assembly" / "summary.json").read_text())
    assert set(other["instructions"]["base"]) <= set(LanguageNutAssembly.INSTRUCTIONS)
    capsys.readouterr()
    assert main(["eval", f"policy={run}", "task=language_pick_place", *TASK]) == 2
    error = capsys.readouterr().err
    assert "was not trained on" in error
    assert len(error.splitlines()) == 1


def test_rl_with_an_instruction_that_it_does_not_know_is_refused(
    run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    more = ("method.encoder=state", "method.demo_ratio=0", f"runs_dir={tmp_path}", "name=rl", *SMALL_RL)
    train = ["train", "method=residual_chunk", f"base={run}", "task=language_pick_place", *TASK, *more]
    assert main(train) == 2
    error = capsys.readouterr().err
    assert "was not trained on" in error
    assert len(error.splitlines()) == 1


@pytest.mark.full
def test_rl_improves_it_in_one_instruction_of_one_scene(
    run: Path, robot_rl: RunCommand, tmp_path: Path
) -> None:
    one = f"task.instructions=[{LanguageStack.INSTRUCTIONS[1]}]"
    small = (*TASK, one, *SMALL_RL, "method.steps=24", "method.warmup_steps=8", "log_every=1")
    more = ("method.encoder=state", "method.demo_ratio=0", f"runs_dir={tmp_path}", "name=rl")
    robot_rl("train", "method=residual_chunk", f"base={run}", "task=language_stack", *small, *more)
    assert "learn/critic_loss" in read_metrics(tmp_path / "rl" / "metrics.csv")
