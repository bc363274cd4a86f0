"""A log is whole up to its last whole record, however it ends."""

import struct
from pathlib import Path

import pytest

from robot_rl.hardware.recording.log import MAX_RECORD, LogWriter, read_log

PAYLOADS = [b"header", b"\0", bytes(range(256)), b"last one"]


@pytest.fixture
def log(tmp_path: Path) -> Path:
    path = tmp_path / "log"
    writer = LogWriter(path)
    for payload in PAYLOADS:
        writer.append(payload)
    assert writer.size == path.stat().st_size
    writer.close()
    return path


def payloads(path: Path) -> list[bytes]:
    return [payload for _, payload in read_log(path)]


def test_what_was_appended_is_read_with_the_place_of_its_end(log: Path) -> None:
    assert payloads(log) == PAYLOADS
    ends = [end for end, _ in read_log(log)]
    assert ends[0] == 8 + len(PAYLOADS[0])
    assert ends[-1] == log.stat().st_size


def test_cut_off_anywhere_it_has_all_whole_records_and_no_other(log: Path, tmp_path: Path) -> None:
    whole = log.read_bytes()
    ends = [0, *(end for end, _ in read_log(log))]
    cut = tmp_path / "cut"
    for size in range(len(whole) + 1):
        cut.write_bytes(whole[:size])
        assert payloads(cut) == PAYLOADS[: sum(end <= size for end in ends) - 1]


def test_a_changed_byte_ends_the_log_before_it(log: Path, tmp_path: Path) -> None:
    whole = log.read_bytes()
    ends = [end for end, _ in read_log(log)]
    changed = tmp_path / "changed"
    for place in range(len(whole)):
        changed.write_bytes(whole[:place] + bytes([whole[place] ^ 0x10]) + whole[place + 1 :])
        assert payloads(changed) == PAYLOADS[: sum(end <= place for end in ends)]


@pytest.mark.parametrize(
    "tail",
    [b"\0" * 4096, b"\xff" * 64, struct.pack("<II", MAX_RECORD + 1, 0), struct.pack("<II", 10**6, 1)],
    ids=["zeros", "ones", "too long", "longer than the file"],
)
def test_what_a_power_cut_leaves_at_the_end_is_no_record(log: Path, tail: bytes) -> None:
    with log.open("ab") as file:
        file.write(tail)
    assert payloads(log) == PAYLOADS


def test_an_existing_log_is_never_written_to(log: Path) -> None:
    with pytest.raises(FileExistsError):
        LogWriter(log)
    assert payloads(log) == PAYLOADS
