"""A dead actor process is restarted, except after a user error or repeated deaths."""

import os
import signal
from pathlib import Path

import pytest

from robot_rl.errors import UserError
from robot_rl.hil.actor_job import ActorProcess
from tests.hardware.processes import eventually


@pytest.mark.full
def test_a_user_error_of_the_actor_is_not_retried(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    child = ActorProcess(["learner=nowhere", f"spool={tmp_path / 's'}"])
    try:
        with pytest.raises(UserError, match="ended with code 2; see its message above"):
            eventually(child.restart_if_dead, "its end")
        assert child.starts == 1
        assert not (tmp_path / "s").exists()
        assert "'nowhere' is not a robot's address" in capfd.readouterr().err
    finally:
        child.close()


@pytest.mark.full
def test_an_actor_that_dies_without_a_step_is_restarted_twice(tmp_path: Path) -> None:
    child = ActorProcess([f"learner=ipc://{tmp_path / 'l'}", f"spool={tmp_path / 's'}"])
    try:
        for starts in (2, 3):
            os.kill(child.pid, signal.SIGKILL)
            assert eventually(child.restart_if_dead, "its end") == -signal.SIGKILL
            assert child.starts == starts
        os.kill(child.pid, signal.SIGKILL)
        with pytest.raises(UserError, match="ended with code -9"):
            eventually(child.restart_if_dead, "its end")
    finally:
        child.close()
