"""Failures of a real robot become cases: images of their beginnings, for who prepares the scenes again."""

from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from robot_rl.cli.main import main
from robot_rl.data.failure_cases import write_cases
from robot_rl.robot.deploy.cases import read_cases, show_case
from tests.robot_rl.data.small_dataset import write

CAMERAS = ("front", "wrist")


@pytest.mark.parametrize("video", [False, True])
def test_the_images_of_a_case_are_those_of_the_beginning(tmp_path: Path, video: bool) -> None:
    """Of three episodes the second fails, and in the first a person drives at some steps."""
    dataset = write(tmp_path / "a.zarr", (12, 8, 10), CAMERAS, video=video)
    assert write_cases(dataset, tmp_path / "cases") == [0, 1]
    cases = read_cases(tmp_path / "cases")
    assert [[path.name for path in case] for case in cases] == [
        ["000_front.png", "000_wrist.png"],
        ["001_front.png", "001_wrist.png"],
    ]
    for case, episode in zip(cases, [0, 1], strict=True):
        for path, camera in zip(case, CAMERAS, strict=True):
            (expected,) = dataset.frames(camera)[np.array([dataset.episodes[episode].start])]
            np.testing.assert_array_equal(np.asarray(Image.open(path)), expected)


def test_the_cases_take_turns_and_are_told_before_the_scene_is_prepared(tmp_path: Path) -> None:
    for name in ("7_table.JPG", "010.png", "003_front.png", "notes.txt", "front.png"):
        (tmp_path / name).touch()
    happened: list[str] = []
    wait = show_case(read_cases(tmp_path), lambda number: happened.append(f"ready {number}"), happened.append)
    for number in range(4):
        wait(number)
    told = [f"episode {n}: the scene of case {n % 3}, {tmp_path / name}" for n, name in enumerate(NAMES)]
    assert happened == [line for n in range(4) for line in (told[n], f"ready {n}")]


NAMES = ("003_front.png", "7_table.JPG", "010.png", "003_front.png")


def test_the_command_writes_them_without_a_task_and_replaces_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write(tmp_path / "a.zarr", cameras=CAMERAS)
    arguments = ["states", f"data={tmp_path / 'a.zarr'}", f"out={tmp_path / 'cases'}"]
    assert main(arguments) == 0
    assert "case 1: episode 1\n" in capsys.readouterr().out
    assert main(arguments) == 2
    assert f"{tmp_path / 'cases'} exists" in capsys.readouterr().err
    assert main(arguments[:2]) == 2
    assert "data=… and out=…" in capsys.readouterr().err


def test_data_that_shows_no_beginning_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="no images that show where"):
        write_cases(write(tmp_path / "blind.zarr"), tmp_path / "cases")
    good = write(tmp_path / "good.zarr", (5,), CAMERAS, sources=["policy", "policy", "policy", "policy"])
    with pytest.raises(ValueError, match="no failure and no takeover"):
        write_cases(good, tmp_path / "cases")
    assert not (tmp_path / "cases").exists()
