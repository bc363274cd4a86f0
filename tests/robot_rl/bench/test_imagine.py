"""`robot-rl bench imagine` in a short run; no timing is asserted."""

import json

import pytest

from robot_rl.cli import main as cli


@pytest.mark.full
def test_last_line_is_json_with_every_figure(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["bench", "imagine", "seconds=0.1", "threads=1", "--json"]) == 0
    found = json.loads(capsys.readouterr().out.splitlines()[-1])
    steps = found.pop("train_step_ms")
    assert set(steps) == {"with", "without"}
    assert set(found) == {"fit_s", "model_transitions_per_s", "branches_per_s"}
    assert min(*found.values(), *steps.values()) > 0


def test_a_method_without_chunks_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["bench", "imagine", "learner=rlpd"]) == 2
    assert "choose one of residual_chunk, expo, dsrl_na" in capsys.readouterr().err
