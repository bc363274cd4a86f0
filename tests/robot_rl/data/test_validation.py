"""Each promise of the format that is broken is told; what is whole has no fault."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import av
import numcodecs
import numpy as np
import pytest
import zarr

from robot_rl.cli.main import main
from robot_rl.data.summary import lines_of
from robot_rl.data.validation import find_problems
from tests.robot_rl.data.recorded import Motion, record
from tests.robot_rl.data.small_dataset import write


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write(tmp_path_factory.mktemp("written") / "a.zarr", (12, 7), ("front",)).path


@pytest.fixture
def path(written: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(written, tmp_path / "a.zarr"))


def arrays(path: Path) -> Any:
    return zarr.open_group(path, mode="r+")["data"]


def edit(path: Path, change: Callable[[dict[str, Any]], None]) -> None:
    file = path / "meta" / ".zattrs"
    attributes = json.loads(file.read_text())
    change(attributes)
    file.write_text(json.dumps(attributes))


def test_what_is_whole_has_no_fault(path: Path) -> None:
    assert find_problems(path) == []
    assert main(["data", "validate", f"dataset={path}"]) == 0


def beyond(path: Path) -> None:
    arrays(path)["applied_action"][14, 1] = -1.5


def label_beyond(path: Path) -> None:
    labels = arrays(path)["applied_action"][:] * 0
    labels[3, 2] = 1.25
    arrays(path).create_array("target_action", data=labels, chunks=labels.shape)


def ends_early(path: Path) -> None:
    arrays(path)["terminated"][3] = True


def never_ends(path: Path) -> None:
    arrays(path)["truncated"][18] = False


def unpaid(path: Path) -> None:
    arrays(path)["reward"][11] = 0.0


def back_in_time(path: Path) -> None:
    arrays(path)["time"][5] = 0


def jitter(path: Path) -> None:
    times = arrays(path)["time"]
    times[4] = times[4] + 5_000_000


def not_finite(path: Path) -> None:
    arrays(path)["extra"][13, 1, 0] = np.inf


def nameless(path: Path) -> None:
    arrays(path)["source"][2] = 9


def unknown_robot(path: Path) -> None:
    edit(path, lambda attributes: attributes["environment"].pop("robot"))


def other_size(path: Path) -> None:
    edit(path, lambda attributes: attributes["environment"]["observation_spec"].update(image_size=[30, 30]))


def other_actions(path: Path) -> None:
    edit(path, lambda attributes: attributes["environment"]["action_spec"].pop())


def newer(path: Path) -> None:
    edit(path, lambda attributes: attributes.update(format_version=2))


def chunk_lost(path: Path) -> None:
    (path / "data/action/0.0").unlink()


@pytest.mark.parametrize(
    ("damage", "answer"),
    [
        (beyond, "data/applied_action is beyond [-1, 1]: -1.5 in episode 1, step 2, number 1"),
        (label_beyond, "data/target_action is beyond [-1, 1]: 1.25 in episode 0, step 3, number 2"),
        (ends_early, "episode 0 ends before its last step"),
        (never_ends, "episode 1 ends neither terminated nor truncated"),
        (unpaid, "episode 0 is a success, and its rewards sum to 0"),
        (back_in_time, "data/time does not increase in episode 0, step 5"),
        (jitter, "steps of episode 0 are 45.00 to 55.00 ms apart"),
        (not_finite, "data/extra has NaN or infinity in episode 1, step 1"),
        (nameless, "data/source has the number 9, which the collection does not name"),
        (unknown_robot, "the environment lacks robot: it cannot be built again"),
        (other_size, "data/images.front is uint8 [24, 32, 3] a step, the environment says uint8 [30, 30, 3]"),
        (other_actions, "data/action is [3] a step, the environment has 2 actions"),
        (newer, "has format 2; this program reads up to 1"),
        (chunk_lost, "is torn: data/action/0.0 is missing"),
    ],
)
def test_each_broken_promise_is_told(
    path: Path, capsys: pytest.CaptureFixture[str], damage: Callable[[Path], None], answer: str
) -> None:
    # Else zarr leaves out chunks that hold nothing but zeros, which is a separate fault.
    with zarr.config.set({"array.write_empty_chunks": True}):
        damage(path)
    found = find_problems(path)
    assert any(answer in fault for fault in found), found
    with pytest.raises(SystemExit) as ended:
        main(["data", "validate", f"dataset={path}"])
    assert ended.value.code == 1
    assert answer in capsys.readouterr().out


def damage_chunk(path: Path, array: str, number: int = -1) -> None:
    """Cut off the end of a chunk of an array, by default of its last one."""
    chunks = sorted((path / "data" / array).glob("[0-9]*"), key=lambda chunk: int(chunk.name.split(".")[0]))
    chunks[number].write_bytes(chunks[number].read_bytes()[:-20])


def test_a_damaged_chunk_of_any_array_is_told_by_the_arrays_name(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = write(tmp_path / "a.zarr", (40, 7), ("front", "wrist")).path
    for array in ("images.wrist", "source", "extra"):
        damage_chunk(path, array)
    damage_chunk(path, "images.front", 1)
    with pytest.raises(SystemExit, match="1"):
        main(["data", "validate", f"dataset={path}"])
    told = capsys.readouterr().out.splitlines()
    damaged = ["extra", "images.front", "images.wrist", "source"]
    assert len(told) == len(damaged) + 1
    for name, line in zip(damaged, told, strict=False):
        assert line.startswith(f"dataset {path} is damaged: data/{name} cannot be decoded")


@pytest.mark.parametrize("compressor", ["blosc", "zstd", "lz4", "gzip", "zlib", None])
def test_a_damaged_chunk_is_told_whatever_compressed_it(
    written: Path, tmp_path: Path, compressor: Any
) -> None:
    path = tmp_path / "a.zarr"
    shutil.copytree(written, path)
    codec = compressor and numcodecs.get_codec({"id": compressor})
    values = arrays(path)["extra"][:]
    root = zarr.open_group(path, mode="r+", zarr_format=2)
    root["data"].create_array("extra", data=values, chunks=values.shape, compressors=codec, overwrite=True)
    assert find_problems(path) == []
    (chunk,) = (path / "data/extra").glob("[0-9]*")
    whole = chunk.read_bytes()
    changed = bytes(byte ^ 0x55 for byte in whole)
    for content in (b"", whole[:1], whole[:-1], whole[: len(whole) // 2], *([changed] if compressor else [])):
        chunk.write_bytes(content)
        (fault,) = find_problems(path)
        assert fault.startswith(f"dataset {path} is damaged: data/extra cannot be decoded")


READING: list[list[str]] = [
    ["data", "view", "dataset={path}", "out={out}"],
    ["data", "convert", "dataset={path}", "out={out}", "to=robomimic"],
    ["data", "convert", "dataset={path}", "out={out}", "to=lerobot"],
    ["train", "task=robot", "method=bc", "data={path}", "runs_dir={out}"],
]
"""Commands that read the images of a dataset, however it stores them."""
READING_ARRAYS: list[list[str]] = [
    ["data", "convert", "dataset={path}", "out={out}", "to=dataset", "images=video"],
    ["data", "merge", "datasets=[{path},{path}]", "out={out}"],
    ["data", "split", "dataset={path}", "out={out}", "fraction=0.5"],
]
"""Commands that copy a video without reading it."""


def refusal(words: list[str], path: Path, capsys: pytest.CaptureFixture[str]) -> str:
    """The line that is said of the dataset at `path`, of which nothing may be made."""
    out = path.parent / "made"
    assert main([word.format(path=path, out=out) for word in words]) == 2
    (said,) = [line for line in capsys.readouterr().err.splitlines() if line.startswith("robot-rl: ")]
    assert words[0] == "train" or [child.name for child in path.parent.iterdir()] == [path.name]
    return said


@pytest.mark.parametrize("words", READING + READING_ARRAYS)
def test_a_damaged_chunk_of_images_is_told_in_a_line_by_each_command(
    path: Path, capsys: pytest.CaptureFixture[str], words: list[str]
) -> None:
    damage_chunk(path, "images.front", 0)
    answer = f"robot-rl: dataset {path} is damaged: data/images.front cannot be decoded"
    assert refusal(words, path, capsys).startswith(answer)


@pytest.mark.parametrize("words", READING)
@pytest.mark.parametrize("sound", [False, True])
def test_a_damaged_video_is_told_in_a_line_by_each_command(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], words: list[str], sound: bool
) -> None:
    path = write(tmp_path / "a.zarr", (12, 7), ("front",), video=True).path
    video = path / "videos/front/000000.mp4"
    video.write_bytes(b"nothing")
    if sound:
        with av.open(str(video), "w") as container:
            container.mux(container.add_stream("aac", rate=8000).encode())
    assert f"robot-rl: {video} is damaged" in refusal(words, path, capsys)


def test_several_faults_are_all_told(path: Path) -> None:
    for damage in (beyond, ends_early, jitter, nameless):
        damage(path)
    assert len(find_problems(path)) == 4


def test_a_video_that_lacks_images_is_told(tmp_path: Path) -> None:
    path = write(tmp_path / "a.zarr", (12, 7), ("front",), video=True).path
    assert find_problems(path) == []
    shutil.copy(path / "videos/front/000001.mp4", path / "videos/front/000000.mp4")
    assert find_problems(path) == [f"{path}/videos/front/000000.mp4 has 7 images, its episode 12 steps"]
    (path / "videos/front/000001.mp4").write_bytes(b"nothing")
    assert any("000001.mp4 is damaged" in fault for fault in find_problems(path))


def test_a_dataset_without_an_episode_is_a_fault_and_is_described(tmp_path: Path) -> None:
    path = write(tmp_path / "a.zarr", ()).path
    assert find_problems(path) == ["it has no episode"]
    assert {line.name: line.text for line in lines_of(path)}["episodes"] == "0, 0 steps, 0.0 s at 20 steps/s"


def test_recordings_are_looked_through(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    root = record(tmp_path / "x.raw", Motion(seconds=0.5), Motion(seconds=0.5, outcome="failure"))
    assert main(["data", "validate", f"dataset={root}"]) == 0
    assert main(["data", "info", f"dataset={root}"]) == 0
    told = capsys.readouterr().out
    assert "2, 1.0 s" in told
    assert "1 success, 1 failure" in told
    log = next((root / "episode_000001").glob("log"))
    log.write_bytes(log.read_bytes()[:-3])
    with pytest.raises(SystemExit):
        main(["data", "validate", f"dataset={root}"])
    assert "episode 1:" in capsys.readouterr().out


def test_info_says_what_there_is(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["data", "info", f"dataset={path}", "json=true"]) == 0
    told = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert told["episodes"] == "2, 19 steps, 0.9 s at 20 steps/s"
    assert told["outcomes"] == "1 success, 1 failure"
    assert told["steps by"] == "15 policy, 4 human"
    assert told["cameras"] == "front 32x24"
    assert told["labels"] == "2 operator=carl"


@pytest.mark.parametrize("command", ["info", "validate", "view", "convert"])
def test_what_is_no_dataset_is_told_in_a_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], command: str
) -> None:
    more = [f"out={tmp_path}/out.zarr"] if command == "convert" else []
    (tmp_path / "photos").mkdir()
    (tmp_path / "text.hdf5").write_text("words")
    for name, answer in (
        ("photos", "is no dataset: it has none of .zgroup"),
        ("text.hdf5", "is a file, and no HDF5"),
        ("nothing", "does not exist"),
    ):
        assert main(["data", command, f"dataset={tmp_path / name}", *more]) == 2
        assert answer in capsys.readouterr().err
    assert sorted(path.name for path in tmp_path.iterdir()) == ["photos", "text.hdf5"]
