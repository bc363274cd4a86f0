"""The simulation that `robot-rl teleop task=…` serves: however it ends, the user is told why."""

from dataclasses import replace

import pytest

from robot_rl.cli.compose import load_group
from robot_rl.envs.task import TaskConfig
from robot_rl.errors import UserError
from robot_rl.robot.teleop.simulated import simulated_server


def test_why_a_simulation_did_not_begin_is_said(capfd: pytest.CaptureFixture[str]) -> None:
    lift = load_group("task", "lift", TaskConfig)
    why = "robosuite's Lift does not observe nope; it has cube_pos"
    with (
        pytest.raises(UserError, match=f"^the simulation did not start: .*{why}"),
        simulated_server(replace(lift, state_keys=["nope"])),
    ):
        pytest.fail("it has begun")
    said = capfd.readouterr().err
    assert "Fatal Python error" not in said
    assert "Traceback" not in said
