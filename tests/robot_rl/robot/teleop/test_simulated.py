"""The simulation that `robot-rl teleop task=…` serves: however it ends, the user is told why."""

import os
import signal
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from robot_rl.cli.compose import load_group
from robot_rl.envs.task import TaskConfig
from robot_rl.errors import UserError
from robot_rl.robot.teleop.simulated import simulated_server
from tests.hardware.processes import eventually


def lift() -> TaskConfig:
    return load_group("task", "lift", TaskConfig)


def processes_with(argument: str) -> list[int]:
    """Ids of those whose command line has it."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            arguments = path.read_bytes().split(b"\0")
        except (FileNotFoundError, ProcessLookupError):
            continue
        if argument.encode() in arguments:
            found.append(int(path.parent.name))
    return found


@pytest.mark.parametrize(
    ("field", "why"),
    [
        ({"state_keys": ["nope"]}, "robosuite's Lift does not observe nope; it has cube_pos"),
        pytest.param({"env": "Lfit"}, "Lfit", marks=pytest.mark.full),
    ],
)
def test_why_a_simulation_did_not_begin_is_said(
    field: dict[str, Any], why: str, capfd: pytest.CaptureFixture[str]
) -> None:
    with (
        pytest.raises(UserError, match=f"^the simulation did not start: .*{why}"),
        simulated_server(replace(lift(), **field)),
    ):
        pytest.fail("it has begun")
    said = capfd.readouterr().err
    assert "Fatal Python error" not in said
    assert "Traceback" not in said


@pytest.mark.full
def test_that_a_simulation_has_ended_is_said(capfd: pytest.CaptureFixture[str]) -> None:
    with simulated_server(lift()) as address:
        (process,) = processes_with(f"address={address}")
        os.kill(process, signal.SIGTERM)
        ended = os.WEXITED | os.WNOHANG | os.WNOWAIT
        eventually(lambda: os.waitid(os.P_PID, process, ended) is not None, "it has ended")
    assert "robot-rl: the simulation has ended: exit code 0" in capfd.readouterr().err
