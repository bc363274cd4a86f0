"""`robot-rl bench serve` measures real servers in other processes."""

import json

import pytest

from tests.conftest import RunCommand


@pytest.mark.full
def test_last_line_is_json(robot_rl: RunCommand, capsys: pytest.CaptureFixture[str]) -> None:
    robot_rl("bench serve", "seconds=0.2", "json=true")
    speed = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert speed.keys() == {"round_trip_ms", "batched_per_s", "single_per_s"}
    assert 0 < speed["round_trip_ms"]["p50"] <= speed["round_trip_ms"]["p99"]
    assert speed["batched_per_s"] > 0
    assert speed["single_per_s"] > 0
