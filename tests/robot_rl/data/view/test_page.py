"""The page shows what is in a dataset and names what looks wrong, in one file that needs nothing else."""

import base64
import json
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import av
import numpy as np
import pytest

from robot_rl.cli.main import main
from robot_rl.data.dataset import Dataset
from robot_rl.data.view.measures import Measures, find_anomalies, measure
from robot_rl.data.view.page import FRAMES, POINTS, SIDE, shrink
from robot_rl.data.writer import DatasetWriter, Entry
from tests.robot_rl.data.recorded import Motion, record
from tests.robot_rl.data.small_dataset import DIMS, RATE, SOURCES, arrays, environment, images, write


def data_of(page: Path) -> dict[str, Any]:
    found = re.search(
        r'<script type="application/json" id="data">(.*?)</script>', page.read_text(), re.DOTALL
    )
    assert found
    return json.loads(found[1])


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Dataset:
    """A dataset with its page beside it."""
    dataset = write(tmp_path_factory.mktemp("small") / "a.zarr", (12, 7, 9), ("front", "wrist"))
    assert main(["data", "view", f"dataset={dataset.path}"]) == 0
    return dataset


def test_the_page_needs_nothing_else_and_holds_every_episode(small: Dataset) -> None:
    page = small.path.with_suffix(".html")
    text = page.read_text()
    assert not re.search(r'(src|href)="(?!data:)', text)
    assert "http" not in text.replace("http://www.w3.org/2000/svg", "")
    data = data_of(page)
    assert [one["outcome"] for one in data["episodes"]] == ["success", "failure", "success"]
    first = data["episodes"][0]
    np.testing.assert_allclose(np.transpose(first["asked"]), small["action"][:12], atol=5e-4)
    np.testing.assert_allclose(np.transpose(first["applied"]), small["applied_action"][:12], atol=5e-4)
    assert first["rewards"] == [[11, 1.0]]
    assert first["by"] == {"policy": 8, "human": 4}
    assert first["who"] == [[step, 2 if step % 3 == 0 else 1] for step in range(12) if step % 3 != 2]
    assert first["labels"] == {"operator": "carl"}
    assert set(first["videos"]) == {"front", "wrist"}
    assert np.sum(data["counts"]) == small.num_steps * 3


def test_its_videos_are_the_images(small: Dataset, tmp_path: Path) -> None:
    uri = data_of(small.path.with_suffix(".html"))["episodes"][1]["videos"]["front"]
    (tmp_path / "x.mp4").write_bytes(base64.b64decode(uri.removeprefix("data:video/mp4;base64,")))
    with av.open(str(tmp_path / "x.mp4")) as container:
        frames = [frame.to_ndarray(format="rgb24") for frame in container.decode(video=0)]
        assert container.streams.video[0].average_rate == RATE
    assert len(frames) == 7
    assert np.abs(np.stack(frames).astype(int) - images(7, 1)).mean() < 6


def test_its_size_is_bounded(tmp_path: Path) -> None:
    length = 2 * POINTS + 1
    dataset = write(tmp_path / "a.zarr", (length,), ("front",))
    assert main(["data", "view", f"dataset={dataset.path}"]) == 0
    data = data_of(tmp_path / "a.html")
    (one,) = data["episodes"]
    assert len(one["asked"][0]) <= POINTS
    assert any(f"{POINTS} points of a curve and {FRAMES} images" in remark for remark in data["remarks"])
    wide = shrink(np.zeros((480, 641, 3), np.uint8))
    assert max(wide.shape) <= SIDE
    assert wide.shape[0] % 2 == wide.shape[1] % 2 == 0


@pytest.fixture(scope="module")
def page_of_bad(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Page of `bad`."""
    dataset = bad(tmp_path_factory.mktemp("bad") / "a.zarr")
    assert main(["data", "view", f"dataset={dataset.path}"]) == 0
    return dataset.path.with_suffix(".html")


def bad(path: Path) -> Dataset:
    """Episodes of which each has one thing wrong, among ones that are well."""
    writer = DatasetWriter(path, environment(("front",)), {"recorded": {"episodes": []}, "sources": SOURCES})
    entries = []
    for number in range(14):
        length = 300 if number == 3 else 40
        episode = arrays(length, 4 if number == 5 else number, success=True)
        pictures = images(length, number)
        pictures[..., 1] = (np.arange(length) * 7 % 256)[:, None, None]
        if number == 6:
            episode["action"][:30, 0] = 1.0
        if number == 7:
            episode["applied_action"][:, :2] = 0.0
            episode["applied_action"][:, 2] = -1.0
        if number == 8:
            pictures[10:] = pictures[9]
        if number == 9:
            episode["age_ms.state"][:20] = 200.0
        if number == 5:
            episode["pos"], episode["angle"] = arrays(40, 4, True)["pos"], arrays(40, 4, True)["angle"]
        entries.append(Entry({**episode, "images.front": pictures}, success=True, seed=number))
    writer.extend(entries)
    notes = [{"lost": {"front": 3}} if number == 10 else {} for number in range(14)]
    writer.describe(environment(("front",)), {"recorded": {"episodes": notes}, "sources": SOURCES})
    return Dataset(path)


def test_what_looks_wrong_is_named_with_its_episodes(page_of_bad: Path) -> None:
    found = dict(data_of(page_of_bad)["suspicions"])
    assert found == {
        "the same episode more than once": [4, 5],
        "much longer than the others": [3],
        "an action at the end of its range in more than half of the steps": [6],
        "nothing asked for in more than half of the steps": [7],
        "frozen images of front: the same again in more than a fifth of the moving steps": [8],
        "old data of state: by more than 1.5 steps in more than a tenth of the steps": [9],
        "messages were lost when it was recorded": [10],
        "the gripper is never used": [7],
    }


def test_a_hand_that_moves_by_absolute_poses_is_neither_idle_nor_at_its_end(tmp_path: Path) -> None:
    """40 cm in five seconds, by axes of the hand that are 1 by definition."""
    length = 100
    dims = [{"name": n, "kind": "absolute", "unit": "m", "scale": 1.5, "frame": "base"} for n in ("x", "xx")]
    told = environment(action_spec=[*dims, DIMS[2]])
    episode = arrays(length, 1, success=True)
    way = np.linspace(0, 0.4 / 1.5, length)
    poses = np.stack([way, np.ones(length), np.full(length, -1.0)], 1).astype(np.float32)
    writer = DatasetWriter(tmp_path / "a.zarr", told, {"recorded": {"episodes": []}, "sources": SOURCES})
    writer.append({**episode, "action": poses, "applied_action": poses}, success=True, seed=1)
    dataset = Dataset(tmp_path / "a.zarr")
    measures = measure(dataset, {name: dataset[name] for name in dataset.keys}, {}, {})
    assert measures.idle <= 1 / length
    assert max(measures.saturated) == 0


def test_an_idle_beginning_is_named() -> None:
    usual: dict[str, Any] = {
        "steps": 100, "saturated": (0.0,), "changed": 0.0, "idle": 0.3, "idle_begin": 0, "idle_end": 0,
        "grips": 1, "repeated": {}, "old": {}, "lost": 0, "bridged": False,
    }  # fmt: skip
    episodes = [Measures(**{**usual, "content": str(n), "idle_begin": 50 if n == 1 else 0}) for n in range(3)]
    assert find_anomalies(episodes, 20.0) == [("idle for more than 2 s at the beginning", [1])]


def test_recordings_are_shown_with_their_events(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    root = record(tmp_path / "x.raw", Motion(seconds=1.0), Motion(seconds=1.0, outcome="discarded"))
    assert main(["data", "view", f"dataset={root}"]) == 0
    data = data_of(tmp_path / "x.html")
    assert [one["outcome"] for one in data["episodes"]] == ["success", "discarded"]
    assert set(data["episodes"][0]["videos"]) == {"front", "wrist"}
    assert sorted(path.name for path in tmp_path.iterdir()) == ["x.html", "x.raw"]


def test_recordings_of_cameras_of_several_sizes_are_shown_as_the_message_says(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    root = record(tmp_path / "x.raw", Motion(seconds=1.0, widths={"wrist": 48}))
    assert main(["data", "view", f"dataset={root}"]) == 2
    told = "several sizes (front 32x24, wrist 48x24): name some with cameras=[…]"
    assert told in capsys.readouterr().err
    assert [path.name for path in tmp_path.iterdir()] == ["x.raw"]
    for cameras, answer in (
        ("front,front", "cameras=[front,front]: name each once"),
        ("top", "has no images of top; it has front, wrist"),
    ):
        assert main(["data", "view", f"dataset={root}", f"cameras=[{cameras}]"]) == 2
        assert answer in capsys.readouterr().err
    assert main(["data", "view", f"dataset={root}", "cameras=[wrist]"]) == 0
    assert set(data_of(tmp_path / "x.html")["episodes"][0]["videos"]) == {"wrist"}


def test_a_page_replaces_no_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = write(tmp_path / "x.zarr", (4,)).path
    root = record(tmp_path / "x.raw", Motion(seconds=1.0))
    page = tmp_path / "x.html"
    page.write_text("mine")
    for dataset in (path, root):
        assert main(["data", "view", f"dataset={dataset}"]) == 2
        told = f"robot-rl: {page} exists; choose another path, or remove it"
        assert capsys.readouterr().err.splitlines() == [told]
    assert page.read_text() == "mine"
    assert main(["data", "view", f"dataset={root}", f"out={tmp_path}/y.html"]) == 0
    assert sorted(child.name for child in tmp_path.iterdir()) == ["x.html", "x.raw", "x.zarr", "y.html"]


@pytest.mark.full
def test_states_are_drawn_where_there_is_no_camera(demonstrations: Path, tmp_path: Path) -> None:
    out = tmp_path / "x.html"
    assert main(["data", "view", f"dataset={demonstrations}", f"out={out}", "render=true"]) == 0
    for one in data_of(out)["episodes"]:
        assert set(one["videos"]) == {"drawn from states"}


def test_the_player_stands_above_the_distributions(page_of_bad: Path) -> None:
    text = page_of_bad.read_text()
    places = [text.index(f'id="{name}"') for name in ("suspicions", "list", "detail", "card")]
    assert places == sorted(places)


@pytest.mark.skipif(shutil.which("chromium") is None, reason="needs a browser")
def test_a_browser_shows_it_without_an_error(page_of_bad: Path, tmp_path: Path) -> None:
    done = subprocess.run(
        ["chromium", "--headless", "--no-sandbox", "--disable-gpu", f"--user-data-dir={tmp_path}/user",
         "--enable-logging=stderr", "--virtual-time-budget=3000", "--dump-dom", page_of_bad.as_uri()],
        capture_output=True, text=True, timeout=300,
    )  # fmt: skip
    assert "Uncaught" not in done.stderr, done.stderr
    assert done.stdout.count("<figure>") >= 9
    # The first of what looks wrong is shown at once.
    assert "Episode 4: success" in done.stdout
    assert done.stdout.count("data-n=") == 14


@pytest.mark.parametrize(
    ("arguments", "answer"),
    [
        (["out=."], "out=. is a folder; name a file"),
        (["render=true"], "has no saved states"),
        (["rate=0"], "rate=0: it must be more than 0"),
        (["cameras=[front]"], "cameras=… is for recordings, and"),
        (["rate=3"], "rate=… is for recordings, and"),
    ],
)
def test_what_cannot_be_shown_is_answered_in_a_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], answer: str
) -> None:
    path = write(tmp_path / "a.zarr", (4,)).path
    assert main(["data", "view", f"dataset={path}", *arguments]) == 2
    assert answer in capsys.readouterr().err
    assert [child.name for child in tmp_path.iterdir()] == ["a.zarr"]


def test_an_empty_dataset_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = write(tmp_path / "a.zarr", ()).path
    assert main(["data", "view", f"dataset={path}"]) == 2
    assert "has no episode to look at" in capsys.readouterr().err
