"""What is written so is on the disk when the call returns, and appears whole or not at all."""

from pathlib import Path

import pytest

from robot_rl.files import durable
from robot_rl.files.durable import atomic_directory, make_folder, publish, restore_replaced, write_file
from tests.disk import Disk


@pytest.fixture
def disk(monkeypatch: pytest.MonkeyPatch) -> Disk:
    return Disk(monkeypatch)


def test_a_file_is_on_the_disk_with_its_name_and_its_folders(disk: Disk, tmp_path: Path) -> None:
    make_folder(tmp_path / "a" / "b")
    write_file(tmp_path / "a" / "b" / "c", b"content")
    assert disk.lost(tmp_path / "a") == []
    write_file(tmp_path / "a" / "b" / "c", b"other")
    assert disk.lost(tmp_path / "a") == []
    assert [path.name for path in (tmp_path / "a" / "b").iterdir()] == ["c"]


def test_what_was_built_is_on_the_disk_before_its_name_is(disk: Disk, tmp_path: Path) -> None:
    building = tmp_path / "building"
    (building / "a" / "b").mkdir(parents=True)
    (building / "a" / "b" / "c").write_bytes(b"content")
    (building / "link").symlink_to("nowhere")
    publish(building, tmp_path / "place")
    assert disk.lost(tmp_path / "place") == []
    assert not building.exists()


def test_a_write_that_fails_leaves_what_was_there(tmp_path: Path) -> None:
    path = tmp_path / "a"
    write_file(path, b"before")
    with pytest.raises(TypeError):
        write_file(path, "no bytes")  # type: ignore[arg-type]
    assert path.read_bytes() == b"before"
    assert [one.name for one in tmp_path.iterdir()] == ["a"]


def test_a_folder_that_cannot_be_replaced_stays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    place = tmp_path / "place"
    with atomic_directory(place) as building:
        (building / "a").write_bytes(b"before")

    def full(path: Path) -> None:
        raise OSError(f"{path}: the disk is full")

    def again() -> None:
        with atomic_directory(place) as building:
            (building / "a").write_bytes(b"after")

    with monkeypatch.context() as patch:
        patch.setattr(durable, "sync_tree", full)
        with pytest.raises(OSError, match="full"):
            again()
    assert [path.name for path in tmp_path.iterdir()] == ["place"]
    assert (place / "a").read_bytes() == b"before"
    with atomic_directory(place) as building:
        (building / "b").write_bytes(b"after")
    assert [path.name for path in tmp_path.rglob("*")] == ["place", "b"]


def test_a_folder_whose_replacement_was_interrupted_is_there_again(tmp_path: Path) -> None:
    (tmp_path / ".replaced-a").mkdir()
    (tmp_path / ".replaced-a" / "old").touch()
    for name in (".replaced-b", "b"):
        (tmp_path / name).mkdir()
    restore_replaced(tmp_path)
    assert sorted(path.name for path in tmp_path.rglob("*")) == ["a", "b", "old"]


def test_the_disk_of_the_tests_tells_what_was_not_synced(disk: Disk, tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"content")
    assert disk.lost(tmp_path / "a") == ["a"]
    with pytest.raises(AssertionError, match="before"):
        (tmp_path / "a").replace(tmp_path / "b")
