"""What was recorded is read; what was left open is recovered; numbers are never used twice."""

import os
import shutil
import time
from pathlib import Path

import msgspec
import pytest

from robot_rl.hardware.recording.episode import Episode, EpisodeWriter
from robot_rl.hardware.recording.log import read_log, record_header
from robot_rl.hardware.recording.raw import RawDataset, RawWriter
from robot_rl.hardware.recording.records import FORMAT, Clock, Count, Header, Received
from tests.hardware.recording.samples import CAMERAS, STEP, STREAMS, footer, header, record

BEGUN = 10**12


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return tmp_path / "x.raw"


def write(writer: RawWriter, number: int, head: Header | None = None) -> EpisodeWriter:
    episode = writer.begin(head or header())
    for index in range(number):
        assert episode.write(record(index))
    return episode


def kill(episode: EpisodeWriter) -> Path:
    """As a killed recorder leaves it."""
    episode._closing.set()
    episode._syncing.join()
    episode._close_logs()
    return episode.folder


def read(episode: Episode) -> list[Received]:
    found = [record for record in episode.messages() if isinstance(record, Received)]
    for camera in episode.header.cameras:
        found += episode.images(camera)
    return sorted(found, key=lambda record: record.t)


def check(episode: Episode, number: int) -> None:
    found = read(episode)
    assert len(found) == number
    for index, mine in enumerate(found):
        expected = record(index)
        assert (mine.stream, mine.t, bytes(mine.frame)) == (
            expected.stream,
            expected.t,
            bytes(expected.frame),
        )


def test_what_was_recorded_is_read(root: Path) -> None:
    head = header(operator="carl")
    with RawWriter(root) as writer:
        episode = write(writer, 20, head)
        episode.write(Clock(t=BEGUN, offset=-5, bound=3))
        assert writer.commit(episode, footer("failure", labels={"why": "dropped"})) == 0
        assert writer.commit(write(writer, 3), footer()) == 1
    found = RawDataset(root)
    assert list(found.episodes) == [0, 1]
    assert found.open == []
    first = found.episodes[0]
    assert first.header == head
    assert first.footer is not None
    assert (first.footer.outcome, first.footer.labels) == ("failure", {"why": "dropped"})
    check(first, 20)
    assert [message for message in first.messages() if isinstance(message, Clock)] == [
        Clock(t=BEGUN, offset=-5, bound=3)
    ]
    check(found.episodes[1], 3)


def test_an_episode_does_not_count_before_it_is_committed(root: Path) -> None:
    with RawWriter(root) as writer:
        episode = write(writer, 9)
        assert RawDataset(root).episodes == {}
        check(RawDataset(root).open[0], 9)
        writer.commit(episode, footer("discarded"))
    assert RawDataset(root).open == []
    check(RawDataset(root).episodes[0], 9)


def test_what_a_killed_recorder_left_is_recovered_up_to_the_last_whole_record(root: Path) -> None:
    with RawWriter(root) as writer:
        folder = kill(write(writer, 60))
    for name in ("log", "front.images"):
        path = folder / name
        os.truncate(path, path.stat().st_size - 1)
    with RawWriter(root) as writer:
        episode = writer.repair()[0][0]
        assert writer.repair() == ({}, {})
        assert writer.commit(write(writer, 1), footer()) == 1
    left = read(episode)
    assert len(left) == 58
    # The last of the log is an event, that of the camera's an image.
    gone = {max(i for i in range(60) if STREAMS[i % 6] == stream) for stream in ("event", "front")}
    expected = [record(i) for i in range(60) if i not in gone]
    assert [(mine.stream, mine.t) for mine in left] == [(other.stream, other.t) for other in expected]
    found = episode.footer
    assert found is not None
    assert found.outcome == "recovered"
    assert found.counts["state"] == Count(received=30, longest_ns=2 * STEP)
    assert found.counts["front"].received == 9
    assert found.trouble == ("its recorder was killed",)
    assert found.flagged
    assert found.t == BEGUN + 59 * STEP
    assert episode.torn() > 0


def test_a_recorder_killed_before_the_rename_has_said_how_it_ended(root: Path) -> None:
    with RawWriter(root) as writer:
        episode = write(writer, 12)
        episode.close(footer("success"))
        assert RawDataset(root).episodes == {}
        repaired = writer.repair()[0][0]
    assert repaired.footer is not None
    assert repaired.footer.outcome == "success"
    check(repaired, 12)


def test_a_footer_that_is_torn_is_none(root: Path) -> None:
    with RawWriter(root) as writer:
        episode = write(writer, 12)
        episode.close(footer("success"))
        path = episode.folder / "footer"
        path.write_bytes(path.read_bytes()[:-1])
        repaired = writer.repair()[0][0]
    assert repaired.footer is not None
    assert repaired.footer.outcome == "recovered"
    assert repaired.footer.counts["wrist"].received == 2


def test_a_folder_without_a_header_is_told_and_never_removed(root: Path) -> None:
    with RawWriter(root) as writer:
        torn, damaged = (kill(write(writer, 3)) for _ in range(2))
        os.truncate(torn / "log", 20)
        log = damaged / "log"
        log.write_bytes(log.read_bytes()[:40] + b"#" + log.read_bytes()[41:])
        bare = root / "open-begun"
        bare.mkdir()
        (bare / "footer").touch()
        whole = write(writer, 5)
        kill(whole)
        assert [episode.folder for episode in RawDataset(root).open] == [whole.folder]
        assert list(writer.repair()[0]) == [0]
    check(RawDataset(root).episodes[0], 5)
    assert set(RawDataset(root).headless) == {torn, damaged, bare}
    assert (damaged / "front.images").stat().st_size > 0


def test_an_open_episode_that_cannot_be_read_stops_the_repair_of_no_other(root: Path) -> None:
    with RawWriter(root) as writer:
        newer = msgspec.structs.replace(header(), format=FORMAT + 1)
        unreadable = {
            kill(write(writer, 4, newer)): f"has format {FORMAT + 1}",
            kill(write(writer, 4)): "wrist.images is missing",
            kill(write(writer, 4)): "a record of 'tail'",
        }
        folders = list(unreadable)
        (folders[1] / "wrist.images").unlink()
        strange = msgspec.msgpack.encode(msgspec.structs.replace(record(0), stream="tail"))
        with (folders[2] / "log").open("ab") as file:
            file.write(record_header(strange) + strange)
        whole = [kill(write(writer, 5)) for _ in range(2)]
        repaired, left = writer.repair()
    assert list(repaired) == [0, 1]
    for episode in repaired.values():
        check(episode, 5)
    assert set(left) == set(unreadable)
    for folder, reason in unreadable.items():
        assert reason in left[folder]
        assert folder.is_dir()
    assert not any(folder.exists() for folder in whole)


def test_lost_messages_and_silence_are_counted_when_it_is_recovered(root: Path) -> None:
    with RawWriter(root) as writer:
        episode = writer.begin(header())
        for index in range(60):
            if not 12 <= index < 24:
                mine = record(index)
                # A pause of 2 s.
                late = 2_000_000_000 * (index >= 24)
                episode.write(msgspec.structs.replace(mine, t=mine.t + late))
        kill(episode)
        found = writer.repair()[0][0].footer
    assert found is not None
    assert found.counts["state"].lost == 6
    assert found.counts["wrist"].lost == 2
    assert found.counts["command"] == Count(longest_ns=60 * STEP + 2_000_000_000)
    assert set(found.trouble) == {f"{name}: nothing for 2.0 s" for name in ("state", *CAMERAS)} | {
        "its recorder was killed"
    }


def test_numbers_are_not_used_twice_and_no_episode_is_replaced(root: Path) -> None:
    with RawWriter(root) as writer:
        for _ in range(3):
            writer.commit(write(writer, 2), footer())
    shutil.rmtree(root / "episode_000001")
    with RawWriter(root) as writer:
        assert writer.commit(write(writer, 5), footer()) == 3
        (root / "episode_000004").mkdir()
        (root / "episode_000004" / "mine").touch()
        episode = write(writer, 7)
        with pytest.raises(OSError, match="not empty"):
            writer.commit(episode, footer())
        writer.repair()
    assert [len(read(RawDataset(root).episodes[number])) for number in (0, 2, 3, 5)] == [2, 2, 5, 7]


def test_one_recorder_at_a_time_and_nothing_but_a_raw_dataset(root: Path) -> None:
    with RawWriter(root), pytest.raises(ValueError, match="another recorder writes to"):
        RawWriter(root)
    (root / "sub").mkdir()
    (root / "sub" / "something").touch()
    with pytest.raises(ValueError, match="holds other files"):
        RawWriter(root / "sub")
    with pytest.raises(ValueError, match="is not a raw dataset"):
        RawDataset(root / "sub")
    with pytest.raises(ValueError, match="does not exist"):
        RawDataset(root / "nowhere")


def test_an_episode_of_a_newer_program_or_a_damaged_one_is_named_and_hides_no_other(root: Path) -> None:
    with RawWriter(root) as writer:
        newer = msgspec.structs.replace(header(), format=FORMAT + 1)
        for head in (newer, header(), header()):
            writer.commit(write(writer, 4, head), footer())
    # It may have what this one has never heard of.
    log = root / "episode_000000" / "log"
    (_, first), *_ = read_log(log)
    changed = msgspec.msgpack.encode({**msgspec.msgpack.decode(first), "mood": "good", "spec": "elsewhere"})
    log.write_bytes(record_header(changed) + changed)
    os.truncate(root / "episode_000001" / "log", 3)
    found = RawDataset(root).episodes
    with pytest.raises(ValueError, match=f"episode_000000 has format {FORMAT + 1}"):
        _ = found[0].header
    with pytest.raises(ValueError, match="episode_000001 is damaged"):
        _ = found[1].header
    check(found[2], 4)


def test_a_commit_does_not_grow_with_the_number_of_episodes(root: Path, monkeypatch) -> None:
    """Counted, not timed: what it asks of the file system."""

    def calls(number: int) -> int:
        with RawWriter(root) as writer:
            seen = 0
            for name in ("scandir", "open", "rename", "stat", "listdir"):
                original = getattr(os, name)

                def counted(*args, original=original, **kwargs):
                    nonlocal seen
                    seen += 1
                    return original(*args, **kwargs)

                monkeypatch.setattr(os, name, counted)
            for _ in range(number):
                writer.commit(write(writer, 1), footer())
            monkeypatch.undo()
        return seen

    few = calls(5)
    for number in range(1000, 1400):
        shutil.copytree(root / "episode_000000", root / f"episode_{number:06d}")
    assert few > 0
    assert calls(5) == few


def test_the_disk_has_it_within_a_second(root: Path, monkeypatch) -> None:
    synced: dict[int, int] = {}
    real = os.fdatasync

    def noted(file: int) -> None:
        synced[file] = synced.get(file, 0) + 1
        real(file)

    monkeypatch.setattr(os, "fdatasync", noted)
    with RawWriter(root) as writer:
        episode = write(writer, 4)
        deadline = time.monotonic() + 60
        while len(synced) < 3 or min(synced.values()) < 2:
            assert time.monotonic() < deadline
            time.sleep(0.05)
        writer.commit(episode, footer())


def test_a_camera_may_have_the_name_of_the_log(root: Path) -> None:
    with RawWriter(root) as writer:
        episode = writer.begin(header(cameras=("log",)))
        frames = [msgspec.structs.replace(record(i), stream="log") for i in (1, 7)]
        for each in (record(0), *frames):
            assert episode.write(each)
        writer.commit(episode, footer())
    found = RawDataset(root).episodes[0]
    assert len(list(found.messages())) == 1
    assert len(list(found.images("log"))) == 2
