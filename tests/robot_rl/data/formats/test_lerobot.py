"""LeRobotDatasets: ours have the published layout and come back, others' are understood or refused.

The layout is that of lerobot 0.4 (`codebase_version` v3.0), whose own classes have read these files.
"""

import io
import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import av
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from PIL import Image

from robot_rl.cli.main import main
from robot_rl.data.dataset import Dataset
from robot_rl.data.formats.lerobot.files import find_problems
from tests.conftest import RunCommand
from tests.robot_rl.data.small_dataset import HEIGHT, RATE, WIDTH, same_data, write

LENGTHS = (40, 7, 9)
STEPS = sum(LENGTHS)
CAMERAS = ("front", "wrist")


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Dataset:
    return write(tmp_path_factory.mktemp("lerobot") / "a.zarr", LENGTHS, CAMERAS)


@pytest.fixture(scope="module")
def videos(source: Dataset, robot_rl: RunCommand) -> Path:
    out = source.path.parent / "videos"
    robot_rl("data convert", f"dataset={source.path}", f"out={out}", "to=lerobot")
    return out


@pytest.fixture(scope="module")
def pictures(source: Dataset, robot_rl: RunCommand) -> Path:
    out = source.path.parent / "pictures"
    robot_rl("data convert", f"dataset={source.path}", f"out={out}", "to=lerobot", "images=image")
    return out


def info(path: Path) -> dict[str, Any]:
    return json.loads((path / "meta/info.json").read_text())


def test_files_are_where_the_templates_say(videos: Path) -> None:
    there = {str(path.relative_to(videos)) for path in videos.rglob("*") if path.is_file()}
    assert there == {
        "meta/info.json",
        "meta/stats.json",
        "meta/tasks.parquet",
        "meta/robot_rl.json",
        "meta/episodes/chunk-000/file-000.parquet",
        "data/chunk-000/file-000.parquet",
        "videos/observation.images.front/chunk-000/file-000.mp4",
        "videos/observation.images.wrist/chunk-000/file-000.mp4",
    }


def test_info_has_every_key_with_its_value(videos: Path) -> None:
    told = info(videos)
    features = told.pop("features")
    assert told == {
        "codebase_version": "v3.0",
        "robot_type": "arm",
        "total_episodes": 3,
        "total_frames": STEPS,
        "total_tasks": 1,
        "chunks_size": 1000,
        "data_files_size_in_mb": 100,
        "video_files_size_in_mb": 200,
        "fps": RATE,
        "splits": {"train": "0:3"},
        "data_path": "data/chunk-{chunk_index:03d}/file-{file_index:03d}.parquet",
        "video_path": "videos/{video_key}/chunk-{chunk_index:03d}/file-{file_index:03d}.mp4",
    }
    assert isinstance(told["fps"], int)
    for name, feature in features.items():
        assert {"dtype", "shape", "names"} <= feature.keys()
        assert "/" not in name
    expected = {
        "observation.state": ("float32", [4], ["pos_0", "pos_1", "pos_2", "angle"]),
        "action": ("float32", [3], ["x", "y", "gripper"]),
        "observation.images.front": ("video", [HEIGHT, WIDTH, 3], ["height", "width", "channels"]),
        "next.reward": ("float32", [1], None),
        "next.done": ("bool", [1], None),
        "timestamp": ("float32", [1], None),
        "frame_index": ("int64", [1], None),
        "episode_index": ("int64", [1], None),
        "index": ("int64", [1], None),
        "task_index": ("int64", [1], None),
    }
    for name, values in expected.items():
        feature = features[name]
        assert (feature["dtype"], feature["shape"], feature["names"]) == values
    video = features["observation.images.wrist"]["info"]
    assert video["video.fps"] == RATE
    assert (video["video.height"], video["video.width"], video["video.channels"]) == (HEIGHT, WIDTH, 3)
    assert (video["video.codec"], video["video.pix_fmt"]) == ("h264", "yuv420p")
    # Policies of LeRobot take all that begins with these for an input or an action.
    assert [n for n in features if n.startswith("action")] == ["action"]
    assert {n for n in features if n.startswith("observation")} == {
        "observation.state", "observation.images.front", "observation.images.wrist",
    }  # fmt: skip


def test_steps_are_columns_of_the_features_types(videos: Path, source: Dataset) -> None:
    file = pq.ParquetFile(videos / "data/chunk-000/file-000.parquet")
    # One group of rows for each episode.
    assert [file.metadata.row_group(i).num_rows for i in range(file.num_row_groups)] == list(LENGTHS)
    table = file.read()
    features = {name: one for name, one in info(videos)["features"].items() if one["dtype"] != "video"}
    assert table.column_names == list(features)
    for name, feature in features.items():
        kind = table.schema.field(name).type
        if feature["shape"] == [1]:
            assert kind == pa.from_numpy_dtype(np.dtype(feature["dtype"])), name
        else:
            assert kind.list_size == feature["shape"][0], name
            assert kind.value_type == pa.from_numpy_dtype(np.dtype(feature["dtype"])), name
    frames = np.concatenate([np.arange(n) for n in LENGTHS])
    assert table["frame_index"].to_pylist() == frames.tolist()
    assert table["index"].to_pylist() == list(range(STEPS))
    assert table["episode_index"].to_pylist() == np.repeat(range(3), LENGTHS).tolist()
    np.testing.assert_array_equal(table["timestamp"].to_numpy(), (frames / RATE).astype(np.float32))
    np.testing.assert_array_equal(np.stack(table["action"].to_numpy()), source["applied_action"])
    np.testing.assert_array_equal(
        np.stack(table["observation.state"].to_numpy()), source.observations()["state"]
    )
    assert np.flatnonzero(table["next.done"].to_numpy()).tolist() == (np.cumsum(LENGTHS) - 1).tolist()
    assert np.flatnonzero(table["next.reward"].to_numpy()).tolist() == [39, 55]


def test_episodes_say_where_everything_is(videos: Path) -> None:
    table = pq.read_table(videos / "meta/episodes/chunk-000/file-000.parquet")
    rows = table.to_pylist()
    begins = [0, 40, 47]
    for number, row in enumerate(rows):
        assert row["episode_index"] == number
        assert row["tasks"] == ["put"]
        assert row["length"] == LENGTHS[number]
        assert (row["dataset_from_index"], row["dataset_to_index"]) == (
            begins[number], begins[number] + LENGTHS[number],
        )  # fmt: skip
        for prefix in ("data/", "videos/observation.images.front/", "meta/episodes/"):
            assert (row[f"{prefix}chunk_index"], row[f"{prefix}file_index"]) == (0, 0)
        for camera in CAMERAS:
            prefix = f"videos/observation.images.{camera}/"
            assert row[f"{prefix}from_timestamp"] == pytest.approx(begins[number] / RATE)
            assert row[f"{prefix}to_timestamp"] == pytest.approx((begins[number] + LENGTHS[number]) / RATE)
        for stat in ("min", "max", "mean", "std", "q01", "q10", "q50", "q90", "q99"):
            assert np.shape(row[f"stats/action/{stat}"]) == (3,)
            assert np.shape(row[f"stats/observation.images.front/{stat}"]) == (3, 1, 1)
        assert row["stats/action/count"] == [LENGTHS[number]]


def test_statistics_are_those_of_the_data(videos: Path, source: Dataset) -> None:
    stats = json.loads((videos / "meta/stats.json").read_text())
    assert set(stats) == set(info(videos)["features"])
    actions = source["applied_action"].astype(float)
    for name, values in (
        ("min", actions.min(0)),
        ("max", actions.max(0)),
        ("mean", actions.mean(0)),
        ("std", actions.std(0)),
    ):
        np.testing.assert_allclose(stats["action"][name], values, atol=1e-6)
    assert stats["action"]["count"] == [STEPS]
    seen = np.array(stats["observation.images.front"]["mean"])
    assert seen.shape == (3, 1, 1)
    np.testing.assert_allclose(seen[:, 0, 0] * 255, source["images.front"].mean((0, 1, 2)), atol=0.5)


def test_tasks_are_what_pandas_reads_as_an_index(videos: Path) -> None:
    table = pq.read_table(videos / "meta/tasks.parquet")
    assert table.to_pydict() == {"task_index": [0], "task": ["put"]}
    told = json.loads(table.schema.metadata[b"pandas"])
    assert told["index_columns"] == ["task"]
    assert {one["name"] for one in told["columns"]} == {"task_index", "task"}


def test_videos_have_an_image_for_each_step_at_its_time(videos: Path, source: Dataset) -> None:
    path = videos / "videos/observation.images.wrist/chunk-000/file-000.mp4"
    with av.open(str(path)) as container:
        stream = container.streams.video[0]
        assert (stream.codec_context.name, stream.pix_fmt) == ("h264", "yuv420p")
        assert stream.average_rate == RATE
        frames = list(container.decode(stream))
    assert len(frames) == STEPS
    np.testing.assert_allclose([frame.time for frame in frames], np.arange(STEPS) / RATE, atol=1e-6)
    shown = np.stack([frame.to_ndarray(format="rgb24") for frame in frames])
    assert np.abs(shown.astype(int) - source["images.wrist"]).mean() < 4


def test_ours_have_no_fault_and_come_back(
    videos: Path, pictures: Path, source: Dataset, tmp_path: Path, robot_rl: RunCommand
) -> None:
    for path in (videos, pictures):
        assert find_problems(path) == []
    robot_rl("data convert", f"dataset={pictures}", f"out={tmp_path}/p.zarr")
    exact = Dataset(tmp_path / "p.zarr")
    same_data(source, exact)
    assert (source.environment, source.collection) == (exact.environment, exact.collection)
    robot_rl("data convert", f"dataset={videos}", f"out={tmp_path}/v.zarr")
    near = Dataset(tmp_path / "v.zarr")
    same_data(source, near, [f"images.{camera}" for camera in CAMERAS])
    for camera in CAMERAS:
        difference = near[f"images.{camera}"].astype(int) - source[f"images.{camera}"]
        assert np.abs(difference).mean() < 4
        # The red one tells the step, by 5: no image is taken for its neighbour.
        assert np.abs(difference[..., 0].mean((1, 2))).max() < 2.5


def test_a_simulated_dataset_comes_back_to_the_bit(
    demonstrations: Path, tmp_path: Path, robot_rl: RunCommand
) -> None:
    robot_rl("data convert", f"dataset={demonstrations}", f"out={tmp_path}/l", "to=lerobot")
    robot_rl("data convert", f"dataset={tmp_path}/l", f"out={tmp_path}/b.zarr")
    one, other = Dataset(demonstrations), Dataset(tmp_path / "b.zarr")
    same_data(one, other)
    assert one.environment == other.environment


def foreign(path: Path, to: Path) -> Path:
    """As another program would have written them."""
    shutil.copytree(path, to)
    (to / "meta/robot_rl.json").unlink()
    told = info(to)
    told["features"] = {k: v for k, v in told["features"].items() if not k.startswith("robot_rl.")}
    (to / "meta/info.json").write_text(json.dumps(told))
    file = to / "data/chunk-000/file-000.parquet"
    table = pq.read_table(file)
    names = [name for name in table.column_names if not name.startswith("robot_rl.")]
    table = table.select(names)
    wide = np.stack(table["action"].to_numpy()) * np.float32(90)
    column = pa.FixedSizeListArray.from_arrays(pa.array(wide.reshape(-1)), wide.shape[1])
    pq.write_table(table.set_column(names.index("action"), "action", column), file)
    return to


@pytest.mark.parametrize("kind", ["videos", "pictures"])
def test_anothers_are_understood(
    videos: Path, pictures: Path, source: Dataset, tmp_path: Path, robot_rl: RunCommand, kind: str
) -> None:
    path = foreign(videos if kind == "videos" else pictures, tmp_path / "other")
    assert find_problems(path) == []
    robot_rl("data convert", f"dataset={path}", f"out={tmp_path}/x.zarr")
    dataset = Dataset(tmp_path / "x.zarr")
    assert dataset.success.tolist() == [True, False, True]
    assert dataset.environment["robot"] == "arm"
    assert dataset.environment["control_freq"] == RATE
    np.testing.assert_array_equal(dataset["state"], source.observations()["state"])
    scales = np.array([dim.scale for dim in dataset.action_spec], np.float32)
    assert [dim.name for dim in dataset.action_spec] == ["x", "y", "gripper"]
    # Powers of two: no bit is lost.
    assert (np.log2(scales) == np.round(np.log2(scales))).all()
    assert np.abs(dataset["action"]).max() <= 1
    np.testing.assert_array_equal(dataset["action"] * scales, source["applied_action"] * np.float32(90))
    if kind == "pictures":
        np.testing.assert_array_equal(dataset["images.wrist"], source["images.wrist"])
    assert dataset.collection["converted"]["format"] == "lerobot"


def edit_info(path: Path, **changes: Any) -> None:
    (path / "meta/info.json").write_text(json.dumps({**info(path), **changes}))


def older(path: Path) -> None:
    edit_info(path, codebase_version="v2.1")


def newer(path: Path) -> None:
    edit_info(path, codebase_version="v4.0")


def without_action(path: Path) -> None:
    told = info(path)
    del told["features"]["action"]
    edit_info(path, **told)


def without_outcome(path: Path) -> None:
    told = info(path)
    for name in ("next.reward", "next.success"):
        del told["features"][name]
    edit_info(path, **told)


def without_video(path: Path) -> None:
    (path / "videos/observation.images.front/chunk-000/file-000.mp4").unlink()


def without_steps(path: Path) -> None:
    (path / "data/chunk-000/file-000.parquet").unlink()


def torn_steps(path: Path) -> None:
    file = path / "data/chunk-000/file-000.parquet"
    file.write_bytes(file.read_bytes()[:500])


def without_column(path: Path) -> None:
    file = path / "data/chunk-000/file-000.parquet"
    table = pq.read_table(file)
    pq.write_table(table.drop_columns(["observation.state"]), file)


def no_episodes(path: Path) -> None:
    shutil.rmtree(path / "meta/episodes")


def tables_elsewhere(path: Path) -> None:
    edit_info(path, data_path="../../chunk-{chunk_index:03d}/file-{file_index:03d}.parquet")


def videos_elsewhere(path: Path) -> None:
    edit_info(path, video_path="/tmp/{video_key}.mp4")


def no_template(path: Path) -> None:
    edit_info(path, data_path="{chunk_index.nothing} {0}")


def camera_elsewhere(path: Path) -> None:
    """As somebody would write it who wants a video to be written outside of the dataset."""
    name, evil = "observation.images.front", "observation.images.../../../evil"
    found = info(path)["features"]
    edit_info(path, features={evil if key == name else key: one for key, one in found.items()})
    for file in (path / "meta/episodes").glob("*/*.parquet"):
        table = pq.read_table(file)
        columns = [column.replace(name, evil) for column in table.column_names]
        pq.write_table(table.rename_columns(columns), file)


def cameras_alike(path: Path) -> None:
    told = info(path)["features"]
    picture = {**told["observation.images.front"], "dtype": "image"}
    edit_info(path, features={**told, "observation.front": picture})


@pytest.mark.parametrize(
    ("damage", "answer"),
    [
        (cameras_alike, "would both be the camera front: rename one"),
        (tables_elsewhere, "leads out of the dataset"),
        (videos_elsewhere, "leads out of the dataset"),
        (no_template, "is no template of paths"),
        (camera_elsewhere, "leads out of the dataset|is not a valid name"),
        (
            older,
            "is a LeRobotDataset v2.1, this program reads v3.0: lerobot's own converter to v3.0 comes first",
        ),
        (newer, "is a LeRobotDataset v4.0, this program reads v3.0: it is newer"),
        (without_action, "lacks the feature action, which a policy needs"),
        (without_outcome, "does not say which episodes succeeded .* give success=true or success=false"),
        (without_video, "front/chunk-000/file-000.mp4 is missing; copy it again"),
        (without_steps, "file-000.parquet is missing; copy the dataset again"),
        (torn_steps, "file-000.parquet is damaged"),
        (without_column, "the tables lack observation.state, which is a feature"),
        (no_episodes, "is torn: meta/episodes has no parquet file"),
    ],
)
def test_what_another_lacks_is_named_and_nothing_is_made(
    videos: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    damage: Callable[[Path], None],
    answer: str,
) -> None:
    path = foreign(videos, tmp_path / "other")
    damage(path)
    assert main(["data", "convert", f"dataset={path}", f"out={tmp_path}/x.zarr"]) == 2
    assert re.search(answer, capsys.readouterr().err)
    assert [child.name for child in tmp_path.iterdir()] == ["other"]


INFO, OWN = "meta/info.json", "meta/robot_rl.json"
TABLES = {
    "tasks": "meta/tasks.parquet",
    "episodes": "meta/episodes/chunk-000/file-000.parquet",
    "data": "data/chunk-000/file-000.parquet",
}


def told(file: str, *names: Any, value: Any = None) -> Callable[[Path], None]:
    """Replaces a value in a JSON file, to which the names lead; `...` takes it out."""

    def damage(path: Path) -> None:
        content = json.loads((path / file).read_text())
        inner = content
        for name in names[:-1]:
            inner = inner[name]
        if value is ...:
            del inner[names[-1]]
        else:
            inner[names[-1]] = value
        (path / file).write_text(json.dumps(content))

    return damage


def cell(table: str, column: str, value: Any) -> Callable[[Path], None]:
    """Replaces a column of a table by one with this value in every row."""

    def damage(path: Path) -> None:
        found = pq.read_table(path / TABLES[table])
        at = found.column_names.index(column)
        values = pa.array([value] * found.num_rows)
        pq.write_table(found.set_column(at, column, values), path / TABLES[table])

    return damage


def tasks_of_another(path: Path) -> None:
    cell("tasks", "task_index", None)(path)
    (path / OWN).unlink()


@pytest.mark.parametrize(
    ("damage", "answer"),
    [
        (told(INFO, "fps"), "{path}/meta/info.json is damaged: Expected `float`, got `null` - at `$.fps`"),
        (told(INFO, "fps", value=float("inf")), "{path}/meta/info.json says fps inf"),
        (
            told(INFO, "features", value=[1]),
            "{path}/meta/info.json is damaged: Expected `object`, got `array`",
        ),
        (told(INFO, "features", "action", value=3), "the feature action of {path}/meta/info.json is damaged"),
        (
            told(INFO, "features", "action", "shape", value=[-3]),
            "the feature action of {path}/meta/info.json is damaged",
        ),
        (
            told(INFO, "features", "action", "dtype", value="float33"),
            "{path}/meta/info.json: the feature action is of the dtype 'float33', which is not known",
        ),
        (
            told(INFO, "features", "action", "dtype", value="string"),
            "{path}/meta/info.json: action is no feature of numbers",
        ),
        (
            told(INFO, "data_path", value=...),
            "{path}/meta/info.json is damaged: Object missing required field",
        ),
        (told(INFO, "video_path", value=...), "{path}/meta/info.json lacks video_path"),
        (told(OWN, "columns", value=...), "{path}/meta/robot_rl.json is damaged: Object missing"),
        (told(OWN, "columns", "extra", 2, value="x"), "{path}/meta/robot_rl.json: the column extra"),
        (told(OWN, "environment", value=[]), "{path}/meta/robot_rl.json is damaged: Expected `object`"),
        (told(OWN, "environment", "observation_spec", "image_size"), "{path}: observation_spec is damaged"),
        (told(OWN, "collection", "recorded", value=[]), "{path}/meta/robot_rl.json is damaged"),
        (told(OWN, "format", value="x"), "{path}/meta/robot_rl.json was made of a dataset of format x"),
        (tasks_of_another, "task_index of {path}/meta/tasks.parquet is damaged"),
        (cell("episodes", "length", None), "length of {path}/meta/episodes/chunk-000/file-000.parquet is"),
        (cell("episodes", "tasks", "put"), "tasks of {path}/meta/episodes/chunk-000/file-000.parquet is"),
        (cell("episodes", "episode_index", 0), "{path}: an episode is missing or there twice"),
        (
            cell("episodes", "videos/observation.images.front/from_timestamp", float("nan")),
            "from_timestamp of {path}/meta/episodes/chunk-000/file-000.parquet is damaged",
        ),
        (cell("data", "action", "x"), "{path}: action is "),
        (cell("data", "observation.state", {"a": 1}), "{path}: observation.state "),
    ],
)
def test_malformed_metadata_are_told_in_a_line_that_names_the_file(
    videos: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    damage: Callable[[Path], None],
    answer: str,
) -> None:
    path = tmp_path / "copy"
    shutil.copytree(videos, path)
    damage(path)
    assert main(["data", "convert", f"dataset={path}", f"out={tmp_path}/x.zarr"]) == 2
    (said,) = [line for line in capsys.readouterr().err.splitlines() if line.startswith("robot-rl: ")]
    assert answer.format(path=path) in said
    assert [child.name for child in tmp_path.iterdir()] == ["copy"]
    # Raises nothing.
    find_problems(path)


def columns(path: Path) -> tuple[Path, pa.Table]:
    """The file of the steps, and its table."""
    file = path / "data/chunk-000/file-000.parquet"
    return file, pq.read_table(file)


def test_a_feature_named_as_one_of_our_arrays_does_not_replace_it(
    videos: Path, tmp_path: Path, robot_rl: RunCommand, capsys: pytest.CaptureFixture[str]
) -> None:
    path = foreign(videos, tmp_path / "other")
    file, table = columns(path)
    more = {"reward": 7.0, "observation.time": 8.0}
    for name, value in more.items():
        table = table.append_column(name, pa.array(np.full(table.num_rows, value, np.float32)))
    pq.write_table(table, file)
    feature = {"dtype": "float32", "shape": [1], "names": None}
    edit_info(path, features=info(path)["features"] | dict.fromkeys(more, feature))
    robot_rl("data convert", f"dataset={path}", f"out={tmp_path}/x.zarr")
    dataset = Dataset(tmp_path / "x.zarr")
    assert dataset["reward"].max() == 1
    assert (dataset["lerobot.reward"] == 7).all()
    assert (dataset["lerobot.observation.time"] == 8).all()
    assert "reward becomes lerobot.reward" in capsys.readouterr().err


def png(size: tuple[int, int], form: str = "PNG") -> bytes:
    file = io.BytesIO()
    Image.new("RGB", size).save(file, form)
    return file.getvalue()


@pytest.mark.parametrize(
    ("content", "answer"),
    [
        (png((32, 24))[:-30], "is damaged or not in the table"),
        (png((32, 24))[:40], "is damaged or not in the table"),
        # Pillow would start another program for some formats.
        (png((32, 24), "EPS"), "is damaged or not in the table"),
        (png((9, 9)), r"is \(9, 9\), info.json says"),
    ],
)
def test_a_picture_that_is_none_is_named(
    pictures: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], content: bytes, answer: str
) -> None:
    path = foreign(pictures, tmp_path / "other")
    file, table = columns(path)
    name = next(name for name in table.column_names if name.startswith("observation.images."))
    rows = table[name].to_pylist()
    rows[0]["bytes"] = content
    at, kind = table.column_names.index(name), table.schema.field(name).type
    pq.write_table(table.set_column(at, name, pa.array(rows, kind)), file)
    assert main(["data", "convert", f"dataset={path}", f"out={tmp_path}/x.zarr"]) == 2
    assert re.search(answer, capsys.readouterr().err)


@pytest.mark.parametrize("others", [False, True])
def test_the_outcome_that_files_tell_is_not_overridden(
    videos: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], others: bool
) -> None:
    path = foreign(videos, tmp_path / "other") if others else videos
    assert main(["data", "convert", f"dataset={path}", f"out={tmp_path}/x.zarr", "success=true"]) == 2
    assert "says itself which episodes succeeded; leave it out" in capsys.readouterr().err


def one_table_missing(path: Path) -> None:
    file = path / TABLES["episodes"]
    pq.write_table(pq.read_table(file).slice(0, 2), file)


def rows_of_others_between(path: Path) -> None:
    file = path / TABLES["data"]
    table = pq.read_table(file)
    order = np.arange(table.num_rows)
    # Between the two rows is the end of the first episode.
    order[[0, -1]] = order[[-1, 0]]
    pq.write_table(table.take(order), file)


def dense_reward(path: Path) -> None:
    told(INFO, "features", "next.success", value=...)(path)
    columns_of = pq.read_table(path / TABLES["data"])
    at, values = columns_of.column_names.index("next.reward"), np.linspace(0, 0.3, columns_of.num_rows)
    column = pa.array(values.astype(np.float32))
    pq.write_table(columns_of.set_column(at, "next.reward", column), path / TABLES["data"])


@pytest.mark.parametrize(
    ("damage", "answer"),
    [
        (one_table_missing, "an episode is missing or there twice (meta/info.json knows 3 with"),
        (rows_of_others_between, "other episodes lie between the steps of episode 0"),
        (dense_reward, "next.reward has other values than 0 and 1"),
    ],
)
def test_anothers_files_are_not_converted_in_part(
    pictures: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    damage: Callable[[Path], None],
    answer: str,
) -> None:
    path = foreign(pictures, tmp_path / "other")
    damage(path)
    assert main(["data", "convert", f"dataset={path}", f"out={tmp_path}/x.zarr"]) == 2
    assert answer in capsys.readouterr().err
    assert not (tmp_path / "x.zarr").exists()


def test_a_dense_reward_is_kept_beside_the_success_that_is_given(
    pictures: Path, tmp_path: Path, robot_rl: RunCommand
) -> None:
    path = foreign(pictures, tmp_path / "other")
    dense_reward(path)
    robot_rl("data convert", f"dataset={path}", f"out={tmp_path}/x.zarr", "success=false")
    dataset = Dataset(tmp_path / "x.zarr")
    assert not dataset.success.any()
    assert not dataset["reward"].any()
    assert dataset["lerobot.next.reward"][-1] == pytest.approx(0.3)


def test_several_tasks_of_an_episode_are_no_instruction(
    pictures: Path, tmp_path: Path, robot_rl: RunCommand, capsys: pytest.CaptureFixture[str]
) -> None:
    path = foreign(pictures, tmp_path / "other")
    cell("episodes", "tasks", ["open the door", "close the door"])(path)
    robot_rl("data convert", f"dataset={path}", f"out={tmp_path}/x.zarr")
    assert not Dataset(tmp_path / "x.zarr").environment.get("instructions")
    assert "episode 0 has several" in "".join(capsys.readouterr())


def test_faults_are_all_told(videos: Path, tmp_path: Path) -> None:
    path = foreign(videos, tmp_path / "other")
    file = path / "data/chunk-000/file-000.parquet"
    table = pq.read_table(file)
    times = table["timestamp"].to_numpy().copy()
    times[45] += 0.02
    tasks = table["task_index"].to_numpy().copy()
    tasks[3] = 5
    for name, values in (("timestamp", times), ("task_index", tasks)):
        table = table.set_column(table.column_names.index(name), name, pa.array(values))
    pq.write_table(table, file)
    edit_info(path, total_frames=99)
    (path / "meta/stats.json").unlink()
    assert find_problems(path) == [
        "meta/stats.json is missing",
        "info.json says that there are 99 steps, there are 56",
        "task_index of episode 0 names a task that is not in meta/tasks.parquet",
        "timestamp of episode 1 is not frame_index / fps",
    ]


def test_a_rate_that_is_no_whole_number_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = write(tmp_path / "a.zarr", (4,), control_freq=12.5).path
    assert main(["data", "convert", f"dataset={path}", f"out={tmp_path}/x", "to=lerobot"]) == 2
    assert "has 12.5 steps/s; the format wants a whole number" in capsys.readouterr().err
    assert [child.name for child in tmp_path.iterdir()] == ["a.zarr"]
