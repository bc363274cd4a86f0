"""The record of a search."""

from pathlib import Path

import pytest

from robot_rl.cli.search.record import Began, Ended, Evaluated, Record, Trial
from robot_rl.errors import UserError

EVENTS = (
    Began(1, {"method.utd": "2"}),
    Evaluated(1, 200, 0.25),
    Began(2, {"method.utd": "4"}),
    Evaluated(1, 400, 0.5),
    Ended(1, "finished"),
)


def written(path: Path) -> Path:
    record = Record(path)
    for event in EVENTS:
        record.add(event)
    return path


def test_events_are_read_as_they_were_written(tmp_path: Path) -> None:
    record = Record(written(tmp_path / "trials.jsonl"))
    assert record.events == list(EVENTS)
    assert record.trials == {
        1: Trial({"method.utd": "2"}, {200: 0.25, 400: 0.5}, "finished"),
        2: Trial({"method.utd": "4"}),
    }
    assert record.trials[1].last == (400, 0.5)


def test_after_a_crash_in_the_middle_of_a_line_the_record_goes_on(tmp_path: Path) -> None:
    path = written(tmp_path / "trials.jsonl")
    path.write_bytes(path.read_bytes()[:-9])
    record = Record(path)
    assert record.events == list(EVENTS[:-1])
    record.add(Ended(1, "stopped"))
    assert Record(path).events == [*EVENTS[:-1], Ended(1, "stopped")]


@pytest.mark.parametrize("line", ["[]", '{"event":"ended","trial":9,"how":"finished"}', '{"event":"began"}'])
def test_a_damaged_line_is_refused(tmp_path: Path, line: str) -> None:
    path = written(tmp_path / "trials.jsonl")
    with path.open("a") as file:
        file.write(f"{line}\n")
    with pytest.raises(UserError, match="line 6 is damaged"):
        Record(path)
