"""`robot-rl bench record` and `bench data` in short runs; no timing is asserted."""

import json

import pytest

from tests.conftest import RunCommand


@pytest.mark.full
@pytest.mark.parametrize("encoding", ["jpeg", "raw"])
def test_bench_record_reports_every_figure(
    robot_rl: RunCommand, capsys: pytest.CaptureFixture[str], encoding: str
) -> None:
    robot_rl("bench record", "seconds=6", f"encoding={encoding}", "json=true")
    figures = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert figures["lost_frames"] >= figures["dropped_by_cameras"] >= 0
    assert figures["commit_ms_p99"] > 0
    assert 0 < figures["cpu_fraction"] < 2
    assert figures["control_lateness_us_p99"] > 0
    assert figures["control_lateness_us_p99_without"] > 0
    assert figures["seconds"] >= 6
    # A busy machine loses much of both.
    assert 0 < figures["images_hz"] < 33
    assert 0 < figures["states_hz"] < 550


@pytest.mark.full
def test_bench_data_reports_every_figure(robot_rl: RunCommand, capsys: pytest.CaptureFixture[str]) -> None:
    robot_rl("bench data", "seconds=0.1", "image_size=[32,48]", "device=cpu", "json=true")
    figures = json.loads(capsys.readouterr().out.splitlines()[-1])
    for kind in ("zarr", "video"):
        assert min(figures[kind].values()) > 0
    assert figures["video"]["bytes_per_image"] < figures["zarr"]["bytes_per_image"]
    assert figures["memory_at_random_per_s"] > figures["zarr"]["at_random_per_s"]
    assert figures["needed_per_s"] > 0
    assert figures["device"] == "cpu"
