"""An episode of a simulation comes out the same when it is acted again, and what differs is told."""

import shutil
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import zarr

from robot_rl.cli.main import main
from robot_rl.data.dataset import Dataset
from robot_rl.data.playback import groups, play, playback_env
from robot_rl.envs.robosuite_env import RobosuiteEnv
from tests.robot_rl.data.small_dataset import write


@pytest.fixture(scope="module")
def env(demonstrations: Path) -> Iterator[RobosuiteEnv]:
    env = playback_env(Dataset(demonstrations))
    yield env
    env.close()


def test_an_episode_comes_out_the_same_to_the_bit(demonstrations: Path, env: RobosuiteEnv) -> None:
    dataset = Dataset(demonstrations)
    for number in (2, 0):
        playback = play(dataset, env, number)
        assert playback.exact
        assert playback.success is playback.recorded is True
        rows = dataset.episodes[number]
        assert playback.success_step == playback.steps - 1 == rows.stop - rows.start - 1


def test_every_number_of_the_state_belongs_to_one_group(env: RobosuiteEnv) -> None:
    env.reset(seed=0)
    found = groups(env)
    columns = np.concatenate([columns for columns, _ in found.values()])
    assert sorted(columns.tolist()) == list(range(len(env.get_state())))
    assert {"robot0 joints", "cube position", "cube orientation", "velocities"} <= set(found)
    assert len(found["robot0 joints"][0]) == 7
    # It is where robosuite's own observation says.
    np.testing.assert_array_equal(env.get_state()[found["cube position"][0]], env.raw["cube_pos"])


def test_what_deviates_is_told_with_its_place(
    demonstrations: Path, env: RobosuiteEnv, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "a.zarr"
    shutil.copytree(demonstrations, path)
    (column, *_), _ = groups(env)["cube position"]
    begin = Dataset(path).episodes[1].start
    states = zarr.open_group(path, mode="r+")["data/sim_state"]
    states[begin + 4, column] = states[begin + 4, column] + 0.25  # type: ignore[index]
    assert main(["replay", f"dataset={path}", "episode=1"]) == 0
    told = capsys.readouterr().out
    line = next(line for line in told.splitlines() if line.startswith("cube position"))
    assert line.split()[2:] == ["0.25", "4", "0", "m"]
    assert "not the same to the bit; success, as recorded" in told
    with pytest.raises(SystemExit) as ended:
        main(["data", "validate", f"dataset={path}", "replay=3"])
    assert ended.value.code == 1
    assert "episode 1 comes out otherwise: cube position by 0.25 m" in capsys.readouterr().out
    assert main(["data", "validate", f"dataset={demonstrations}", "replay=2"]) == 0


@pytest.fixture(scope="module")
def stateless(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write(tmp_path_factory.mktemp("stateless") / "a.zarr", (4,)).path


@pytest.mark.parametrize(
    ("arguments", "answer"),
    [
        (["episode=7"], "episode=7: the episodes of "),
        (["speed=0"], "speed=0: choose it above 0 and at most 1"),
        (["speed=1.5"], "speed=1.5: choose it above 0 and at most 1"),
        ([], "has no saved states"),
    ],
)
def test_what_cannot_be_replayed_is_answered_in_a_line(
    stateless: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], answer: str
) -> None:
    assert main(["replay", f"dataset={stateless}", *arguments]) == 2
    assert answer in capsys.readouterr().err


def test_another_environment_is_refused_by_what_differs(
    demonstrations: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "a.zarr"
    shutil.copytree(demonstrations, path)
    file = path / "meta" / ".zattrs"
    file.write_text(file.read_text().replace('"mujoco": "3.', '"mujoco": "2.'))
    assert main(["replay", f"dataset={path}"]) == 2
    assert "versions.mujoco was 2." in capsys.readouterr().err
