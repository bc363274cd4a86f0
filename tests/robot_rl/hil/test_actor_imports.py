"""Modules that a remote actor imports."""

from pathlib import Path

import pytest

from robot_rl.hardware.plugins import VARIABLE
from tests.conftest import RunCommand
from tests.robot_rl.hil import no_learner_in_actor
from tests.robot_rl.hil.training import arguments


def test_an_actor_imports_neither_learner_nor_replay(
    robot_rl: RunCommand,
    demonstrations: Path,
    base_run: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    """Train with an actor in which these imports fail."""
    monkeypatch.setenv(VARIABLE, no_learner_in_actor.__name__)
    assert "robot_rl.data.replay_buffer" in no_learner_in_actor.FORBIDDEN
    more = ("method.steps=40", "hil.lockstep=true", "task.horizon=15")
    robot_rl("train", *arguments(demonstrations, base_run, tmp_path, "run", *more))
    assert no_learner_in_actor.NOTE in capfd.readouterr().err
