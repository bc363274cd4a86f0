"""A dataset always opens and always tells the truth, or says what is wrong with it."""

import json
import os
import pickle
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numcodecs
import numpy as np
import pytest
import zarr

from robot_rl.data import writer
from robot_rl.data.compatibility import check_same_environment
from robot_rl.data.dataset import Dataset
from robot_rl.data.writer import DatasetWriter, Episode
from tests.hardware.processes import PATIENCE
from tests.robot_rl.data import small_dataset

DIM = {"name": "x", "kind": "delta", "unit": "m", "scale": 0.05, "frame": "base"}
ENVIRONMENT = {
    "task": "lift",
    "controller": "OSC_POSE",
    "horizon": 200,
    "action_spec": [DIM, {**DIM, "name": "y"}],
    "observation_spec": {
        "state_keys": ["pos", "angle"],
        "state_dims": [3, 1],
        "cameras": [],
        "image_size": [84, 84],
    },
    "versions": {"mujoco": "3.3.1"},
}
COLLECTION = {"expert": "lift", "noise": 0.1, "seed": 0}


def episode(length: int, number: int) -> Episode:
    """Rows that tell which episode and step they are."""
    rng = np.random.default_rng(number)
    rows = 1000.0 * number + np.arange(length, dtype=np.float32)[:, None]
    return {
        "pos": np.repeat(rows, 3, axis=1),
        "angle": rows[:, 0],
        "action": rng.uniform(-1, 1, (length, 2)).astype(np.float32),
        "applied_action": rng.uniform(-1, 1, (length, 2)).astype(np.float32),
        "sim_state": rng.normal(size=(length, 5)),
        "reward": np.zeros(length, np.float32),
        "terminated": np.arange(length) == length - 1,
        "truncated": np.zeros(length, bool),
    }


LENGTHS = [5, 9, 1]


def write(path: Path, lengths: list[int] = LENGTHS, **changes: Any) -> Path:
    writer = DatasetWriter(path, {**ENVIRONMENT, **changes}, COLLECTION)
    for i in range(writer.num_episodes, len(lengths)):
        writer.append(episode(lengths[i], i), success=i != 1, seed=2**31 + i)
    return path


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write(tmp_path_factory.mktemp("written") / "lift.zarr")


@pytest.fixture
def path(written: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(written, tmp_path / "lift.zarr"))


def check(found: Dataset, lengths: list[int]) -> None:
    """The dataset holds exactly these episodes."""
    assert [rows.stop - rows.start for rows in found.episodes] == lengths
    assert found.success.tolist() == [i != 1 for i in range(len(lengths))]
    assert found.seeds.tolist() == [2**31 + i for i in range(len(lengths))]
    for i, rows in enumerate(found.episodes):
        for key, values in episode(lengths[i], i).items():
            read = found[key][rows]
            np.testing.assert_array_equal(read, values)
            assert read.dtype == values.dtype


def edit_attributes(path: Path, **changes: Any) -> None:
    file = path / "meta" / ".zattrs"
    file.write_text(json.dumps({**json.loads(file.read_text()), **changes}))


def test_what_was_written_is_read(path: Path) -> None:
    found = Dataset(path)
    check(found, LENGTHS)
    assert found.environment == ENVIRONMENT
    assert found.collection == COLLECTION
    assert [dim.name for dim in found.action_spec] == ["x", "y"]
    state = found.observations()["state"]
    assert state.shape == (15, 4)
    assert state.dtype == np.float32
    np.testing.assert_array_equal(state[:, 3], found["angle"])


def test_layout_is_that_of_diffusion_policys_replay_buffer(path: Path) -> None:
    assert json.loads((path / ".zgroup").read_text()) == {"zarr_format": 2}
    root = zarr.open_group(path, mode="r")
    ends = root["meta"]["episode_ends"]
    assert ends.dtype == np.int64
    assert ends[:].tolist() == np.cumsum(LENGTHS).tolist()
    assert set(dict(root["data"].members())) == set(episode(1, 0))
    for _, array in root["data"].arrays():
        assert array.shape[0] == ends[-1]
        assert array.metadata.zarr_format == 2


def test_writer_adds_to_what_is_there(path: Path) -> None:
    lengths = [*LENGTHS, 4, 1100]  # over the border of a chunk
    write(path, lengths)
    check(Dataset(path), lengths)


def test_dataset_without_an_episode_opens(tmp_path: Path) -> None:
    empty = Dataset(write(tmp_path / "new.zarr", []))
    assert (empty.num_steps, empty.num_episodes, empty.episodes) == (0, 0, [])
    check(Dataset(write(tmp_path / "new.zarr")), LENGTHS)


def test_an_episode_of_zeros_is_no_torn_one(tmp_path: Path) -> None:
    """zarr leaves out chunks of zeros, and a reader takes them for lost."""
    for goes_on in range(2):
        writer = DatasetWriter(tmp_path / "a.zarr", ENVIRONMENT, COLLECTION)
        zeros = {key: np.zeros_like(values) for key, values in episode(3, 0).items()}
        writer.append(zeros, success=False, seed=0)
        assert Dataset(tmp_path / "a.zarr").num_episodes == goes_on + 1


def leave_rows(path: Path, keys: list[str]) -> None:
    """As a writer does that is killed before it has written the end of an episode."""
    root = zarr.open_group(path, mode="r+")
    with zarr.config.set({"array.write_empty_chunks": True}):
        for key in keys:
            root["data"][key].append(episode(3, 9)[key])


@pytest.mark.parametrize("keys", [["pos"], ["pos", "angle", "action"], list(episode(1, 0))])
def test_rows_without_an_end_do_not_count_and_are_cut(path: Path, keys: list[str]) -> None:
    leave_rows(path, keys)
    check(Dataset(path), LENGTHS)
    DatasetWriter(path, ENVIRONMENT, COLLECTION)
    root = zarr.open_group(path, mode="r")
    assert {array.shape[0] for _, array in root["data"].arrays()} == {sum(LENGTHS)}
    check(Dataset(write(path, [*LENGTHS, 6])), [*LENGTHS, 6])


def test_room_for_an_end_is_no_end(path: Path) -> None:
    leave_rows(path, list(episode(1, 0)))
    zarr.open_group(path, mode="r+")["meta"]["episode_ends"].resize((len(LENGTHS) + 1,))
    check(Dataset(path), LENGTHS)
    check(Dataset(write(path, [*LENGTHS, 6])), [*LENGTHS, 6])


def test_append_that_failed_halfway_leaves_no_trace_in_the_next(path: Path) -> None:
    writer = DatasetWriter(path, ENVIRONMENT, COLLECTION)
    leave_rows(path, ["pos", "angle"])
    writer.append(episode(6, 3), success=True, seed=2**31 + 3)
    check(Dataset(path), [*LENGTHS, 6])


WRITER = """
import importlib.util, sys
from pathlib import Path
spec = importlib.util.spec_from_file_location("writes", sys.argv[1])
writes = importlib.util.module_from_spec(spec)
spec.loader.exec_module(writes)
print("ready", flush=True)
writes.write(Path(sys.argv[2]), [3] * 100_000)
"""


def test_killed_writer_loses_at_most_the_episode_that_it_was_writing(tmp_path: Path) -> None:
    path = tmp_path / "killed.zarr"
    held = 0
    for pause in (0.0, 0.15, 0.333):
        command = [sys.executable, "-c", WRITER, __file__, str(path)]
        with subprocess.Popen(
            command, stdout=subprocess.PIPE, env={**os.environ, "PYTHONPATH": "."}
        ) as child:
            try:
                assert child.stdout is not None
                assert child.stdout.readline() == b"ready\n"
                deadline = time.monotonic() + PATIENCE
                while not (path.exists() and Dataset(path).num_episodes > held):
                    assert time.monotonic() < deadline
                    time.sleep(0.01)  # a reader beside a writer finds a whole dataset too
                time.sleep(pause)
            finally:
                os.kill(child.pid, signal.SIGKILL)
        left = Dataset(path)
        assert left.num_episodes > held
        held = left.num_episodes
        check(left, [3] * held)
    check(Dataset(write(path, [3] * (held + 1))), [3] * (held + 1))


def test_writer_that_was_killed_at_birth_leaves_no_half_dataset(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def killed(*arguments: Any) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(writer, "publish", killed)
        with pytest.raises(KeyboardInterrupt):
            write(tmp_path / "lift.zarr")
    assert not (tmp_path / "lift.zarr").exists()
    check(Dataset(write(tmp_path / "lift.zarr")), LENGTHS)
    assert [child.name for child in tmp_path.iterdir()] == ["lift.zarr"]


def as_file(path: Path) -> None:
    shutil.rmtree(path)
    path.write_text("not zarr")


def as_folder(path: Path) -> None:
    shutil.rmtree(path)
    (path / "photos").mkdir(parents=True)


def as_foreign(path: Path) -> None:
    shutil.rmtree(path)
    root = zarr.open_group(path, mode="w", zarr_format=2)
    for group, name in (("data", "action"), ("meta", "episode_ends")):
        root.create_group(group).create_array(name, shape=(3,), dtype="i8")


def as_array(path: Path) -> None:
    shutil.rmtree(path)
    zarr.create_array(path, shape=(3,), dtype="f4")


def cut_array(path: Path) -> None:
    root = zarr.open_group(path, mode="r+")
    root["data"]["action"].resize((7, 2))


def cut_chunk(path: Path) -> None:
    chunk = path / "data" / "action" / "0.0"
    chunk.write_bytes(chunk.read_bytes()[:20])


def put_nan(path: Path) -> None:
    zarr.open_group(path, mode="r+")["data"]["angle"][7] = np.nan


DAMAGES: list[tuple[Callable[[Path], object], str]] = [
    (shutil.rmtree, r"lift\.zarr does not exist; `robot-rl collect` or .* makes a dataset"),
    (as_file, "is a file, and no HDF5: give a dataset's folder"),
    (as_folder, "is no dataset: it has none of .zgroup"),
    (as_array, "is not a dataset: it is zarr without the groups data/ and meta/"),
    (as_foreign, "zarr group of another program"),
    (
        lambda path: shutil.rmtree(path / "data"),
        "is not a dataset: it is zarr without the groups data/ and meta/",
    ),
    (lambda path: (path / "meta" / ".zattrs").write_text("{"), "is damaged"),
    (lambda path: shutil.rmtree(path / "meta" / "episode_ends"), "meta/episode_ends is missing"),
    (lambda path: shutil.rmtree(path / "data" / "sim_state"), "data/sim_state is missing"),
    (lambda path: shutil.rmtree(path / "data" / "angle"), "data/angle is missing"),
    (cut_array, "torn: data/action has 7 of 15 rows"),
    (cut_chunk, "data/action cannot be decoded"),
    (lambda path: (path / "data" / "sim_state" / "0.0").unlink(), r"data/sim_state/0\.0 is missing"),
    (lambda path: (path / "data" / "reward" / "0").unlink(), "data/reward/0 is missing"),
    (lambda path: (path / "meta" / "episode_success" / "0").unlink(), "meta/episode_success/0 is missing"),
    (put_nan, r"NaN or infinity in data/angle \(episode 1, step 2\)"),
    (lambda path: edit_attributes(path, format_version=2), "has format 2; this program reads up to 1"),
]


class Bomb:
    """Makes a file when it is unpickled."""

    def __init__(self, sign: Path) -> None:
        self.sign = sign

    def __reduce__(self) -> tuple[Any, ...]:
        return Path.touch, (self.sign,)


def pickled(path: Path, sign: Path, **description: Any) -> None:
    """Replaces an array by one whose chunk is a pickle."""
    file = path / "meta" / "episode_seed" / ".zarray"
    file.write_text(json.dumps({**json.loads(file.read_text()), **description}))
    # Followed by what the rest of a chunk looks like: a codec may take the beginning.
    (file.parent / "0").write_bytes(pickle.dumps(Bomb(sign)))


@pytest.mark.parametrize(
    "description",
    [
        {"dtype": "|O", "filters": [{"id": "pickle"}], "compressor": None},
        {"dtype": "|O", "filters": None, "compressor": {"id": "pickle"}},
        {"dtype": "<i8", "filters": [{"id": "pickle"}], "compressor": None},
        {"dtype": "<i8", "filters": None, "compressor": {"id": "pickle"}},
    ],
)
def test_opening_a_dataset_runs_no_code_that_it_brings(
    path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, description: dict[str, Any]
) -> None:
    # As numcodecs does that is older than the oldest one allowed.
    monkeypatch.setattr(numcodecs.pickles, "ALLOW_UNSAFE_PICKLE_DECODE", True)
    sign = tmp_path / "sign"
    pickled(path, sign, **description)
    for read in (Dataset, write):
        with pytest.raises(ValueError, match="refused: meta/episode_seed is no array of plain numbers"):
            read(path)
    assert not sign.exists()


def test_descriptions_that_were_not_checked_are_not_used(path: Path, tmp_path: Path) -> None:
    """zarr would take those of a consolidated file, or of format 3, before or beside each array's own."""
    array = json.loads((path / "meta" / "episode_seed" / ".zarray").read_text())
    bad = {**array, "dtype": "|O", "filters": [{"id": "pickle"}], "compressor": None}
    content = {".zgroup": {"zarr_format": 2}, "episode_seed/.zarray": bad, "meta/episode_seed/.zarray": bad}
    for folder in (path, path / "meta"):
        (folder / ".zmetadata").write_text(json.dumps({"zarr_consolidated_format": 1, "metadata": content}))
    (path / "meta" / "episode_seed" / "zarr.json").write_text("{")
    check(Dataset(path), LENGTHS)


@pytest.mark.parametrize(
    ("description", "message"),
    [
        ({"dtype": "<M8[ns]"}, "is no array of plain numbers"),
        ({"dtype": [["x", "<f4"]]}, "is no array of plain numbers"),
        ({"filters": [{"id": "shuffle"}]}, "is no array of plain numbers"),
        ({"compressor": {"id": "lzma"}}, "is no array of plain numbers"),
        ({"zarr_format": 3}, "is no array of plain numbers"),
        ({"chunks": [1024, 1]}, "have to hold whole steps"),
        ({"chunks": [0, 2]}, "is no array of plain numbers"),
        ({"chunks": [1024]}, "have to hold whole steps"),
        ({"dtype": "<f7"}, "is damaged"),
        ({"order": "X"}, "is damaged"),
    ],
)
def test_arrays_that_are_not_read_are_named(path: Path, description: dict[str, Any], message: str) -> None:
    file = path / "data" / "action" / ".zarray"
    file.write_text(json.dumps({**json.loads(file.read_text()), **description}))
    with pytest.raises(ValueError, match=message):
        Dataset(path)


@pytest.mark.parametrize("compressor", [numcodecs.Zstd(), numcodecs.GZip(), numcodecs.LZ4(), None])
def test_common_compressors_are_read(path: Path, compressor: Any) -> None:
    values = Dataset(path)["action"]
    shutil.rmtree(path / "data" / "action")
    array = zarr.open_group(path / "data", mode="r+").create_array(
        "action", shape=values.shape, chunks=(4, 2), dtype=values.dtype, compressors=compressor
    )
    array[:] = values
    check(Dataset(path), LENGTHS)


@pytest.mark.parametrize(("damage", "message"), DAMAGES)
def test_damage_is_refused_and_named(path: Path, damage: Callable[[Path], object], message: str) -> None:
    damage(path)
    for read in (Dataset, write):
        if read is write and not path.exists():
            continue  # a writer makes it
        before = sorted(path.rglob("*"))
        with pytest.raises(ValueError, match=message):
            read(path)
        assert sorted(path.rglob("*")) == before


def broken(change: str) -> Episode:
    made = dict(episode(4, 3))
    if change == "length":
        made["pos"] = made["pos"][:3]
    elif change == "nan":
        made["applied_action"] = np.full((4, 2), np.nan, np.float32)
    elif change == "new":
        made["force"] = made["pos"]
    elif change == "size":
        made["action"] = np.zeros((4, 3), np.float32)
    elif change == "objects":
        made["angle"] = made["angle"].astype(object)
    elif change == "type":
        made["action"] = np.zeros((4, 2), np.float64)
    else:
        del made[change]
    return made


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ("length", "one length"),
        ("nan", "NaN or infinity in applied_action"),
        ("new", r"differs .* in force"),
        ("size", r"differs .* in action"),
        ("type", r"differs .* in action"),
        ("angle", r"differs .* in angle"),
        ("sim_state", "lacks sim_state"),
        ("objects", "angle is of type object: a dataset holds"),
    ],
)
def test_bad_episode_is_refused_before_anything_is_written(path: Path, change: str, message: str) -> None:
    writer = DatasetWriter(path, ENVIRONMENT, COLLECTION)
    with pytest.raises(ValueError, match=message):
        writer.append(broken(change), success=True, seed=0)
    root = zarr.open_group(path, mode="r")
    assert {array.shape[0] for _, array in root["data"].arrays()} == {sum(LENGTHS)}
    check(Dataset(path), LENGTHS)


@pytest.mark.parametrize(
    ("group", "change"),
    [
        ("environment", {"observation_spec": {}}),
        ("environment", {"action_spec": [{**DIM, "scale": "big"}]}),
        ("environment", {"action_spec": None}),
        ("environment", {"control_freq": 0}),
        ("environment", {"versions": ["3.3"]}),
        ("environment", {"state_layout": [["mujoco"]]}),
        ("environment", {"real_robot": "arm"}),
        ("collection", {"sources": 3}),
        ("collection", {"episodes": [{"labels": ["red"]}]}),
        ("collection", {"recorded": "yesterday"}),
        ("collection", {"parts": [{"dataset": "a"}]}),
    ],
)
def test_a_description_of_another_form_is_said_in_one_line(
    path: Path, group: str, change: dict[str, Any]
) -> None:
    attributes = path / "meta" / ".zattrs"
    told = json.loads(attributes.read_text())
    told[group] |= change
    attributes.write_text(json.dumps(told))
    with pytest.raises(ValueError, match=rf"dataset {path} is damaged: .*; copy or collect it again"):
        Dataset(path)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"task": "door"}, "task was lift, here it is door"),
        ({"controller": "JOINT_POSITION"}, "controller was OSC_POSE, here it is JOINT_POSITION"),
        ({"action_spec": [DIM]}, "action_spec was "),
        ({"versions": {"mujoco": "3.4.0"}}, "versions.mujoco was 3.3, here it is 3.4"),
        ({"gripper": "other"}, "gripper was None, here it is other"),
    ],
)
def test_other_environment_is_refused_and_the_difference_named(
    path: Path, changes: dict[str, Any], message: str
) -> None:
    current = {**ENVIRONMENT, **changes}
    with pytest.raises(ValueError, match="dataset .* was made in another environment: " + message):
        DatasetWriter(path, current, COLLECTION)
    with pytest.raises(ValueError, match=message):
        check_same_environment(Dataset(path).environment, current, "it")
    check_same_environment(Dataset(path).environment, current, "it", accept=tuple(changes))
    check(Dataset(path), LENGTHS)


def test_the_order_of_cameras_is_no_difference() -> None:
    one, other = (
        {**ENVIRONMENT, "observation_spec": {**ENVIRONMENT["observation_spec"], "cameras": cameras}}
        for cameras in (["front", "side"], ["side", "front"])
    )
    check_same_environment(one, other, "it")


def test_all_differences_are_named_at_once() -> None:
    with pytest.raises(ValueError, match=r"controller was .*; robot was "):
        check_same_environment(
            ENVIRONMENT, {**ENVIRONMENT, "robot": "Sawyer", "controller": "X"}, "it", ("gripper",)
        )


def test_of_another_task_no_more_is_said() -> None:
    # What it observes and how its state is laid out follow from it, and would fill a screen.
    only = r"^it was made in another environment: task was lift, here it is door$"
    with pytest.raises(ValueError, match=only):
        check_same_environment(ENVIRONMENT, {**ENVIRONMENT, "task": "door", "controller": "X"}, "it")


@pytest.mark.parametrize("same", [{"horizon": 7}, {"versions": {"mujoco": "3.3.9"}}])
def test_what_changes_no_meaning_is_no_difference(same: dict[str, Any]) -> None:
    check_same_environment(ENVIRONMENT, {**ENVIRONMENT, **same}, "it")


def test_other_collection_is_not_mixed_in(path: Path) -> None:
    with pytest.raises(ValueError, match=r"was collected with .* choose another path"):
        DatasetWriter(path, ENVIRONMENT, {**COLLECTION, "noise": 0.5})
    check(Dataset(path), LENGTHS)


def test_a_chunk_of_large_rows_is_one_that_a_reader_accepts(tmp_path: Path) -> None:
    """1024 rows of a depth image would be more than the reader takes for plausible."""
    dataset = small_dataset.write(tmp_path / "small.zarr", (3,))
    writer = DatasetWriter(tmp_path / "a.zarr", dataset.environment, dataset.collection)
    arrays = {name: dataset[name] for name in dataset.keys}
    writer.append({**arrays, "depth": np.zeros((3, 480, 640), np.float32)}, success=True, seed=0)
    assert Dataset(tmp_path / "a.zarr")["depth"].shape == (3, 480, 640)
