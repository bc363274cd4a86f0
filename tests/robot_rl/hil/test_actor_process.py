"""A child that dies is started again; one that cannot work is not, again and again."""

import os
import signal
from pathlib import Path

import pytest

from robot_rl.errors import UserError
from robot_rl.hil.actor_process import ActorProcess
from tests.hardware.processes import eventually


def test_what_the_user_has_to_mend_ends_it_at_once(capfd: pytest.CaptureFixture[str]) -> None:
    child = ActorProcess(["learner=nowhere"])
    try:
        with pytest.raises(UserError, match="ended with code 2; what was wrong it said above"):
            eventually(child.died, "its end")
        assert child.started == 1
        assert "'nowhere' is no address" in capfd.readouterr().err
    finally:
        child.close()


@pytest.mark.full
def test_one_that_dies_without_a_step_is_started_twice_more(tmp_path: Path) -> None:
    child = ActorProcess([f"learner=ipc://{tmp_path / 'l'}", f"spool={tmp_path / 's'}"])
    try:
        for started in (2, 3):
            os.kill(child.pid, signal.SIGKILL)
            assert eventually(child.died, "its end") == -signal.SIGKILL
            assert child.started == started
        os.kill(child.pid, signal.SIGKILL)
        with pytest.raises(UserError, match="ended with code -9"):
            eventually(child.died, "its end")
    finally:
        child.close()
