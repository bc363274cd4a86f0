"""`robot-rl bench control` in a short run; no timing is asserted."""

import json

import pytest

from tests.conftest import RunCommand


@pytest.mark.full
def test_bench_control_reports_every_figure(robot_rl: RunCommand, capsys: pytest.CaptureFixture[str]) -> None:
    robot_rl("bench control", "seconds=1", "json=true")
    figures = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert set(figures["round_trip_us"]) == {"p50", "p99", "curve_p99"}
    assert set(figures["loop_lateness_us"]) == {"p50", "p99", "overrun_fraction"}
    assert set(figures["command_loss_to_hold_ms"]) == {"sigkill", "sigstop"}
    assert figures["hold_to_soft_stop_ms"] > 400
    assert figures["state_rate_hz"] > 0
    assert "image_age_ms_p99" in figures
    assert set(figures["machine"]) == {"echo_us_p50", "echo_us_p99", "wake_us_p50", "wake_us_p99"}
    assert min(figures["machine"].values()) > 0
