"""Merging and splitting change no bit, refuse what does not belong together, and leave nothing half done."""

import errno
import json
import os
import re
import shutil
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zarr

from robot_rl.commands.data_split import Config, select_episodes
from robot_rl.data import merge as module
from robot_rl.data.dataset import Dataset
from robot_rl.data.episode_notes import notes_of, steps_by_source
from robot_rl.data.validation import find_problems
from tests.conftest import RunCommand
from tests.robot_rl.data.small_dataset import same_data, write


@pytest.fixture(scope="module")
def four(tmp_path_factory: pytest.TempPathFactory) -> Dataset:
    """Four episodes, to be read only."""
    return write(tmp_path_factory.mktemp("four") / "a.zarr", (4, 5, 6, 7))


@pytest.fixture(scope="module")
def with_camera(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write(tmp_path_factory.mktemp("camera") / "a.zarr", (4,), cameras=["front"]).path


def rows_of(dataset: Dataset, episodes: list[int], key: str) -> np.ndarray:
    return np.concatenate([dataset[key][dataset.episodes[number]] for number in episodes])


def test_a_merged_dataset_has_all_episodes_in_order(tmp_path: Path, robot_rl: RunCommand) -> None:
    one = write(tmp_path / "a.zarr", (5, 40), ("front",))
    other = write(tmp_path / "b.zarr", (7,), ("front",), first=5, horizon=99)
    robot_rl("data merge", f"datasets=[{one.path},{other.path}]", f"out={tmp_path}/m.zarr")
    merged = Dataset(tmp_path / "m.zarr")
    for key in one.keys:
        np.testing.assert_array_equal(merged[key], np.concatenate([one[key], other[key]]))
    assert merged.seeds.tolist() == [100, 101, 105]
    assert merged.success.tolist() == [True, False, True]
    assert merged.environment["horizon"] == 99
    # What the second one was otherwise is kept.
    assert [part.get("environment") for part in merged.collection["parts"]] == [None, {"horizon": 99}]
    notes = notes_of(merged)
    assert [(note["dataset"], note["index"]) for note in notes] == [
        ("a.zarr", 0),
        ("a.zarr", 1),
        ("b.zarr", 0),
    ]
    assert notes[0]["labels"] == {"operator": "carl"}
    assert find_problems(merged.path) == []


def test_a_video_is_copied_and_not_made_anew(tmp_path: Path, robot_rl: RunCommand) -> None:
    one = write(tmp_path / "a.zarr", (5, 8), ("front",), video=True)
    robot_rl("data split", f"dataset={one.path}", f"out={tmp_path}/x.zarr", "episodes=[1]")
    assert (tmp_path / "x.zarr/videos/front/000000.mp4").read_bytes() == (
        one.path / "videos/front/000001.mp4"
    ).read_bytes()
    assert find_problems(tmp_path / "x.zarr") == []


def test_a_split_and_its_rest_are_the_whole(tmp_path: Path, robot_rl: RunCommand) -> None:
    whole = write(tmp_path / "a.zarr", tuple(range(3, 13)))
    out = [f"out={tmp_path}/t.zarr", f"rest={tmp_path}/v.zarr"]
    robot_rl("data split", f"dataset={whole.path}", *out, "fraction=0.7", "seed=4")
    train, rest = Dataset(tmp_path / "t.zarr"), Dataset(tmp_path / "v.zarr")
    assert (train.num_episodes, rest.num_episodes) == (7, 3)
    picked = [[note["index"] for note in notes_of(part)] for part in (train, rest)]
    assert sorted(picked[0] + picked[1]) == list(range(10))
    for part, numbers in zip((train, rest), picked, strict=True):
        for key in whole.keys:
            np.testing.assert_array_equal(part[key], rows_of(whole, numbers, key))
    assert select_episodes(whole, Config(fraction=0.7, seed=4)) == picked[0]
    assert select_episodes(whole, Config(fraction=0.7, seed=5)) != picked[0]


def test_episodes_are_chosen_by_outcome_and_by_who_acted(four: Dataset) -> None:
    assert select_episodes(four, Config(outcomes=["failure"])) == [1, 3]
    assert select_episodes(four, Config(sources=["human"])) == [0, 3]
    assert select_episodes(four, Config(episodes=[3, 0, 3])) == [0, 3]


def test_notes_of_discarded_episodes_choose_too(tmp_path: Path) -> None:
    notes = [{"outcome": name} for name in ("success", "discarded")]
    whole = write(tmp_path / "a.zarr", (4, 5), notes=notes)
    assert select_episodes(whole, Config(outcomes=["discarded"])) == [1]


@pytest.mark.parametrize(
    ("choice", "answer"),
    [
        ({"fraction": 1.5}, "fraction=1.5: choose it between 0 and 1"),
        ({}, "say what to choose by one of fraction"),
        ({"fraction": 0.5, "episodes": [0]}, "say what to choose by one of fraction"),
        ({"episodes": [7]}, "has the episodes 0 to 3, not [7]"),
        ({"sources": ["robot"]}, "has no robot; it has human, policy"),
        ({"outcomes": ["won"]}, "has no won; it has failure, success"),
    ],
)
def test_what_cannot_be_chosen_is_named(four: Dataset, choice: dict[str, Any], answer: str) -> None:
    with pytest.raises(ValueError, match=re.escape(answer)):
        select_episodes(four, Config(**choice))


@pytest.mark.parametrize(
    ("changes", "answer"),
    [
        ({"task": "pull"}, "task was pull, here it is put"),
        ({"control_freq": 10}, "control_freq was 10, here it is 20"),
        ({"cameras": ("wrist",)}, "observation_spec.cameras was ['wrist'], here it is []"),
    ],
)
def test_datasets_of_different_environments_are_refused_by_what_differs(
    tmp_path: Path, robot_rl: RunCommand, changes: dict[str, Any], answer: str
) -> None:
    write(tmp_path / "a.zarr", (4,))
    write(tmp_path / "b.zarr", (4,), **changes)
    with pytest.raises(ValueError, match="cannot be merged") as error:
        robot_rl("data merge", f"datasets=[{tmp_path}/a.zarr,{tmp_path}/b.zarr]", f"out={tmp_path}/m.zarr")
    assert answer in str(error.value)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.zarr", "b.zarr"]


@pytest.mark.parametrize("name", ["../../evil", "/tmp/evil", "a/b", ".hidden", "", 3])
def test_a_camera_of_a_dataset_names_no_file_elsewhere(
    with_camera: Path, tmp_path: Path, robot_rl: RunCommand, name: object
) -> None:
    shutil.copytree(with_camera, tmp_path / "a.zarr")
    attributes = tmp_path / "a.zarr" / "meta" / ".zattrs"
    content = json.loads(attributes.read_text())
    content["environment"]["observation_spec"]["cameras"] = [name]
    attributes.write_text(json.dumps(content))
    for words in (
        ("data merge", f"datasets=[{tmp_path}/a.zarr,{tmp_path}/a.zarr]"),
        ("data convert", f"dataset={tmp_path}/a.zarr", "images=video"),
    ):
        with pytest.raises(ValueError, match="is not a valid name"):
            robot_rl(*words, f"out={tmp_path}/out.zarr")
    assert [path.name for path in tmp_path.iterdir()] == ["a.zarr"]


def test_other_arrays_are_refused_unless_they_are_left_out(tmp_path: Path, robot_rl: RunCommand) -> None:
    write(tmp_path / "a.zarr", (4,))
    other = write(tmp_path / "b.zarr", (4,))
    part = module.Part(other, [0])
    module.rewrite([part], tmp_path / "c.zarr", drop=["time"])
    arguments = [f"datasets=[{tmp_path}/a.zarr,{tmp_path}/c.zarr]", f"out={tmp_path}/m.zarr"]
    with pytest.raises(ValueError, match=r"time: missing against int64 \[\]; drop=\[time\] leaves them out"):
        robot_rl("data merge", *arguments)
    robot_rl("data merge", *arguments, "drop=[time]")
    assert "time" not in Dataset(tmp_path / "m.zarr").keys
    arguments[1] = f"out={tmp_path}/n.zarr"
    with pytest.raises(ValueError, match=r"drop=\[angle\]: .* needs it"):
        robot_rl("data merge", *arguments, "drop=[time,angle]")
    assert not (tmp_path / "n.zarr").exists()


def test_names_in_drop_that_no_dataset_has_are_refused_with_those_there_are(
    tmp_path: Path, robot_rl: RunCommand
) -> None:
    path = write(tmp_path / "a.zarr", (4,), ("front",)).path
    there = r"age_ms\.state, extra, source, time$"
    with pytest.raises(ValueError, match=rf"^drop=\[tmie\]: no dataset has it; .* left out are {there}"):
        robot_rl("data merge", f"datasets=[{path},{path}]", f"out={tmp_path}/m.zarr", "drop=[tmie,time]")
    assert [path.name for path in tmp_path.iterdir()] == ["a.zarr"]


def test_images_that_a_policy_observes_are_not_left_out(tmp_path: Path, robot_rl: RunCommand) -> None:
    path = write(tmp_path / "a.zarr", (4,), ("front",)).path
    with pytest.raises(ValueError, match=r"^drop=\[images.front\]: a dataset of .* needs it"):
        robot_rl("data merge", f"datasets=[{path},{path}]", f"out={tmp_path}/m.zarr", "drop=[images.front]")
    assert [path.name for path in tmp_path.iterdir()] == ["a.zarr"]


@pytest.mark.parametrize("first", ["arrays", "video"])
def test_images_as_arrays_and_as_video_are_merged_once_the_named_dataset_is_converted(
    tmp_path: Path, robot_rl: RunCommand, first: str
) -> None:
    arrays = write(tmp_path / "a.zarr", (4, 5), ("front",))
    video = write(tmp_path / "v.zarr", (6,), ("front",), first=2, video=True)
    order = (arrays, video) if first == "arrays" else (video, arrays)
    words = [f"datasets=[{order[0].path},{order[1].path}]", f"out={tmp_path}/m.zarr"]
    command = "data convert", f"dataset={video.path}", "out=x.zarr", "images=zarr"
    told = r"images.front: (video|uint8 \[24, 32, 3\]) against "
    with pytest.raises(ValueError, match=rf"{told}.*; `robot-rl {' '.join(command)}` makes arrays"):
        robot_rl("data merge", *words)
    robot_rl(*command[:2], f"out={tmp_path}/x.zarr", *command[3:])
    robot_rl("data merge", words[0].replace("v.zarr", "x.zarr"), words[1])
    merged = Dataset(tmp_path / "m.zarr")
    assert len(merged["images.front"]) == 15
    assert find_problems(merged.path) == []


def test_what_is_observed_in_two_forms_is_refused_without_advice_to_drop_it(
    tmp_path: Path, robot_rl: RunCommand
) -> None:
    one, other = (write(tmp_path / f"{name}.zarr", (4,)) for name in "ab")
    array = zarr.open_group(other.path, mode="r+", zarr_format=2)["data"]
    array.create_array("angle", data=other["angle"].astype("f8"), chunks=(4,), overwrite=True)
    with pytest.raises(ValueError, match=r"angle: float64 \[\] against float32 \[\]; a dataset needs them"):
        robot_rl("data merge", f"datasets=[{one.path},{other.path}]", f"out={tmp_path}/m.zarr")


def test_datasets_of_different_actors_are_merged_and_each_step_keeps_who_acted(
    tmp_path: Path, robot_rl: RunCommand
) -> None:
    one = write(tmp_path / "a.zarr", (5,))
    other = write(tmp_path / "b.zarr", (6,), first=1, sources=["human", "nobody", "policy"])
    # As `robot-rl collect` makes it: it does not say who acted.
    module.rewrite(
        [module.Part(write(tmp_path / "c.zarr", (4,), first=2), [0])], tmp_path / "d.zarr", drop=["source"]
    )
    attributes = tmp_path / "d.zarr" / "meta" / ".zattrs"
    content = json.loads(attributes.read_text())
    content["collection"]["expert"] = "put"
    attributes.write_text(json.dumps(content))
    paths = ",".join(f"{tmp_path}/{name}.zarr" for name in "abd")
    robot_rl("data merge", f"datasets=[{paths}]", f"out={tmp_path}/m.zarr")
    merged = Dataset(tmp_path / "m.zarr")
    assert merged.collection["sources"] == ["nobody", "policy", "human", "script", "handover"]
    assert steps_by_source(merged) == [*steps_by_source(one), *steps_by_source(other), Counter(script=4)]
    assert merged["source"].dtype == one["source"].dtype
    assert find_problems(merged.path) == []


def test_nothing_is_left_of_what_failed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, robot_rl: RunCommand
) -> None:
    whole = write(tmp_path / "a.zarr", (4, 5, 6))
    calls = []

    def full(*arguments: Any, **options: Any) -> Any:
        calls.append(1)
        if len(calls) == 2:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return real(*arguments, **options)

    real = module.arrays_of_all
    monkeypatch.setattr(module, "arrays_of_all", full)
    with pytest.raises(OSError, match="No space"):
        robot_rl(
            "data split",
            f"dataset={whole.path}",
            f"out={tmp_path}/x.zarr",
            f"rest={tmp_path}/y.zarr",
            "episodes=[0,1]",
        )
    assert len(calls) == 2
    assert [path.name for path in tmp_path.iterdir()] == ["a.zarr"]


def test_what_a_killed_one_left_is_no_hindrance(tmp_path: Path, robot_rl: RunCommand) -> None:
    whole = write(tmp_path / "a.zarr", (4, 5))
    left = tmp_path / ".writing-x.zarr"
    write(left, (3,))
    robot_rl("data split", f"dataset={whole.path}", f"out={tmp_path}/x.zarr", "episodes=[1]")
    assert Dataset(tmp_path / "x.zarr").seeds.tolist() == [101]
    assert not left.exists()


def test_images_change_their_form_and_nothing_else_does(tmp_path: Path, robot_rl: RunCommand) -> None:
    whole = write(tmp_path / "a.zarr", (5, 40), ("front",))
    robot_rl("data convert", f"dataset={whole.path}", f"out={tmp_path}/v.zarr", "images=video")
    video = Dataset(tmp_path / "v.zarr")
    same_data(whole, video, ["images.front"])
    assert "images.front" not in video.keys
    robot_rl("data convert", f"dataset={video.path}", f"out={tmp_path}/z.zarr", "images=zarr")
    arrays = Dataset(tmp_path / "z.zarr")
    np.testing.assert_array_equal(arrays["images.front"], video["images.front"])
    assert np.abs(arrays["images.front"].astype(int) - whole["images.front"]).mean() < 4
    assert find_problems(arrays.path) == find_problems(video.path) == []


def test_what_is_there_is_never_replaced(tmp_path: Path, robot_rl: RunCommand) -> None:
    whole = write(tmp_path / "a.zarr", (5, 4))
    (tmp_path / "b.zarr").write_text("mine")
    with pytest.raises(ValueError, match="exists; choose another path"):
        robot_rl("data split", f"dataset={whole.path}", f"out={tmp_path}/b.zarr", "episodes=[0]")
    assert (tmp_path / "b.zarr").read_text() == "mine"
