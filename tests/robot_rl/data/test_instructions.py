"""Instructions of episodes: stored, merged across tasks, exported, imported, and refused where they lack."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from robot_rl.cli.main import main
from robot_rl.data import demonstrations
from robot_rl.data.compatibility import all_instructions
from robot_rl.data.dataset import Dataset, make_windows
from robot_rl.data.formats.lerobot.files import LeRobotFiles, find_problems
from robot_rl.data.summary import dataset_lines
from robot_rl.data.validation import find_problems as problems_of
from robot_rl.data.writer import DatasetWriter
from robot_rl.envs.instruction import INSTRUCTION, encode_instruction
from robot_rl.envs.real_arm import asked_instruction
from robot_rl.envs.robot_task import RobotTask
from robot_rl.envs.task import TaskConfig
from robot_rl.methods.bc import BCConfig, BCMethod
from robot_rl.policies.bases.flow import FlowConfig
from robot_rl.policies.bases.uniform import UniformConfig, UniformPolicy
from robot_rl.saved_policies.loading import check_asked, load_networks
from robot_rl.training.components import build_offline
from robot_rl.training.context import RunInputs
from tests.conftest import RunCommand
from tests.robot_rl.data.small_dataset import arrays, environment, same_data, write

TEXTS = ("open the drawer", "close the drawer", "open the drawer")


def instructed(
    path: Path, texts: Sequence[str] = TEXTS, extra: Sequence[str] = (), **changes: Any
) -> Dataset:
    """A dataset with an episode for each text."""
    described = environment(**changes)
    described["observation_spec"]["instruction"] = True
    described["instructions"] = list(dict.fromkeys(texts))
    writer = DatasetWriter(path, described, {"states": False})
    for number, text in enumerate(texts):
        episode = {**arrays(6 + number, number, success=True)}
        episode |= {key: np.zeros((6 + number, 2)) for key in extra}
        episode[INSTRUCTION] = np.tile(encode_instruction(text), (6 + number, 1))
        del episode["source"]
        writer.append(episode, success=True, seed=number)
    return Dataset(path)


def test_demonstrations_of_other_instructions_are_left_out(tmp_path: Path) -> None:
    dataset = instructed(tmp_path / "a.zarr")
    every = np.ones(dataset.num_steps, bool)
    assert demonstrations._successful_episodes(dataset, every, ()) == dataset.episodes
    assert demonstrations._successful_episodes(dataset, every, TEXTS[1:2]) == dataset.episodes[1:2]
    with pytest.raises(ValueError, match="no successful episode of wash up"):
        demonstrations._successful_episodes(dataset, every, ["wash up"])


def test_episodes_of_other_instructions_are_not_added(tmp_path: Path) -> None:
    instructed(tmp_path / "a.zarr")
    with pytest.raises(ValueError, match=r"has the instructions .* not wash up; choose another path"):
        instructed(tmp_path / "a.zarr", ["wash up"])


def test_a_dataset_knows_the_instruction_of_each_episode(tmp_path: Path) -> None:
    dataset = instructed(tmp_path / "a.zarr")
    assert dataset.instructions == list(TEXTS)
    told = {line.name: line.text for line in dataset_lines(dataset.path)}
    assert told["instructions"] == "2 open the drawer; 1 close the drawer"
    windows = make_windows(dataset, 2, 3, np.ones(3, bool))
    assert windows.instruction is not None
    assert windows.instruction.shape == (dataset.num_steps, 128)
    assert problems_of(dataset.path) == []
    # A run is not resumed with other words for the same episodes.
    assert instructed(tmp_path / "b.zarr").sha256 == dataset.sha256
    assert instructed(tmp_path / "c.zarr", [TEXTS[1], *TEXTS[1:]]).sha256 != dataset.sha256


def test_a_dataset_without_instructions_loads_as_before(tmp_path: Path) -> None:
    dataset = write(tmp_path / "a.zarr")
    assert dataset.instructions == ["", "", ""]
    assert INSTRUCTION not in dataset.observations()
    assert make_windows(dataset, 1, 2, dataset.success).instruction is None


def test_a_lost_array_of_instructions_is_named(tmp_path: Path) -> None:
    described = environment()
    described["observation_spec"]["instruction"] = True
    writer = DatasetWriter(tmp_path / "a.zarr", described, {"states": False})
    writer.append(arrays(4, 0, success=True), success=True, seed=0)
    with pytest.raises(ValueError, match="data/instruction is missing"):
        Dataset(tmp_path / "a.zarr")


def test_datasets_of_several_tasks_are_merged_by_their_common_arrays(
    tmp_path: Path, robot_rl: RunCommand
) -> None:
    one = instructed(tmp_path / "a.zarr", extra=["drawer_pos"])
    elsewhere = {"task": "lift", "env": "Lift", "horizon": 999}
    other = instructed(tmp_path / "b.zarr", ["lift the cube"], extra=["cube_pos"], **elsewhere)
    robot_rl(
        "data merge", f"datasets=[{one.path},{other.path}]", f"out={tmp_path}/m.zarr", "across_tasks=true"
    )
    merged = Dataset(tmp_path / "m.zarr")
    assert merged.instructions == [*TEXTS, "lift the cube"]
    assert set(merged.keys) == set(one.keys) - {"drawer_pos"}
    assert merged.collection["parts"][1]["environment"] == {**elsewhere, "instructions": ["lift the cube"]}
    # Time limit and instructions are those of the scene that the description is of.
    assert merged.environment["horizon"] == one.environment["horizon"] < 999
    assert merged.environment["instructions"] == ["open the drawer", "close the drawer"]
    assert merged.environment["other_instructions"] == ["lift the cube"]
    assert problems_of(merged.path) == []


def test_a_policy_of_two_scenes_is_told_by_its_user_which_instruction_it_is_in() -> None:
    described = environment()
    described["observation_spec"]["instruction"] = True
    first = {**described, "instructions": ["open the drawer"]}
    other = {**described, "env": "Lift", "instructions": ["lift the cube"]}
    assert asked_instruction({**first, **all_instructions([first])}, None) == "open the drawer"
    both = {**first, **all_instructions([first, other])}
    with pytest.raises(ValueError, match="trained on open the drawer; lift the cube"):
        asked_instruction(both, None)
    assert asked_instruction(both, "lift the cube") == "lift the cube"
    # Further training on one scene, with replay of both, forgets neither.
    assert all_instructions([other, both]) == {
        "instructions": ["lift the cube"],
        "other_instructions": ["open the drawer"],
    }


def test_tasks_without_instructions_or_with_other_actions_or_targets_are_not_merged(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    one = instructed(tmp_path / "a.zarr")
    plain = write(tmp_path / "b.zarr")
    faster = instructed(tmp_path / "c.zarr", ["turn"], task="turn", control_freq=40)
    labelled = instructed(tmp_path / "d.zarr", ["turn"], extra=["target_action"], task="turn")
    for other, reason in (
        (plain, "b.zarr has no instructions"),
        (faster, "control_freq was 40, here it is 20"),
        (labelled, "differs in target_action"),
    ):
        arguments = [f"datasets=[{one.path},{other.path}]", f"out={tmp_path}/m.zarr", "across_tasks=true"]
        assert main(["data", "merge", *arguments]) == 2
        error = capsys.readouterr().err
        assert reason in error
        assert len(error.splitlines()) == 1
        assert not (tmp_path / "m.zarr").exists()


def test_an_instruction_is_lerobots_task_in_both_directions(tmp_path: Path, robot_rl: RunCommand) -> None:
    source = instructed(tmp_path / "a.zarr")
    robot_rl("data convert", f"dataset={source.path}", f"out={tmp_path}/le", "to=lerobot")
    files = LeRobotFiles(tmp_path / "le")
    assert files.tasks == ["open the drawer", "close the drawer"]
    assert [row["tasks"] for row in files.episodes] == [[text] for text in TEXTS]
    assert [int(files.table(row)["task_index"][0].as_py()) for row in files.episodes] == [0, 1, 0]
    assert list(find_problems(tmp_path / "le")) == []
    robot_rl("data convert", f"dataset={tmp_path}/le", f"out={tmp_path}/back.zarr")
    same_data(source, Dataset(tmp_path / "back.zarr"))
    # As another program's, without our metadata.
    (tmp_path / "le" / "meta" / "robot_rl.json").unlink()
    robot_rl("data convert", f"dataset={tmp_path}/le", f"out={tmp_path}/foreign.zarr")
    foreign = Dataset(tmp_path / "foreign.zarr")
    assert foreign.observation_spec.instruction
    assert foreign.instructions == list(TEXTS)
    assert foreign.environment["instructions"] == ["open the drawer", "close the drawer"]


def test_a_policy_is_for_the_instructions_of_its_dataset_and_its_replay(
    tmp_path: Path, robot_rl: RunCommand
) -> None:
    one, other = (instructed(tmp_path / f"{text[0]}.zarr", [text]).path for text in TEXTS[:2])
    small = ("method.steps=1", "method.batch_size=4", "base.width=8", "base.horizon=4", "base.execute=2")
    run = (f"runs_dir={tmp_path}", "name=run", "device=cpu", *small)
    robot_rl(
        "train", "method=bc", "base=diffusion", "task=robot", f"data={one}", f"method.replay={other}", *run
    )
    _, meta = load_networks(str(tmp_path / "run"))
    assert meta["environment"]["instructions"] == list(TEXTS[:2])


def test_scenes_are_mixed_only_for_a_policy_that_reads_which_one_it_is_in(tmp_path: Path) -> None:
    one = instructed(tmp_path / "a.zarr")
    other = instructed(tmp_path / "b.zarr", ["lift the cube"], task="lift", env="Lift")
    method = BCMethod(BCConfig(batch_size=8, replay=str(other.path)))
    robot, config = RobotTask(one.environment), FlowConfig(horizon=4, execute=2)
    inputs = RunInputs(TaskConfig(), config, str(one.path), 0, torch.device("cpu"), robot=robot)
    with pytest.raises(ValueError, match=r"dataset .*b.zarr was made in another environment"):
        build_offline(method, inputs)


def test_an_instruction_that_a_policy_was_not_trained_on_is_said(capsys: pytest.CaptureFixture[str]) -> None:
    environment = {"instructions": ["open the drawer"], "other_instructions": ["open the door"]}
    base = UniformPolicy(UniformConfig(), 4, 3)
    base.spec = replace(base.spec, instruction=True)
    check_asked(base, environment, "open the door")
    assert not capsys.readouterr().err
    check_asked(base, environment, "close the door")
    said = (
        "instruction='close the door' is new to this policy: it was trained on open the drawer; open the door"
    )
    assert capsys.readouterr().err == f"{said}\n"


def test_a_policy_that_reads_no_instructions_is_asked_for_nothing_else() -> None:
    environment = {"instructions": ["open the drawer"]}
    base = UniformPolicy(UniformConfig(), 4, 3)
    check_asked(base, environment, "open the drawer")
    with pytest.raises(ValueError, match="and does what it was trained on: open the drawer"):
        check_asked(base, environment, "close the drawer")
    with pytest.raises(ValueError, match="reads no instructions, and was trained without"):
        check_asked(base, {}, "open the drawer")
