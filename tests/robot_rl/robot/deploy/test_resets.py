"""Resets between the episodes of a deployment, with the simulated Panda's server."""

import itertools
from pathlib import Path

import pytest

from robot_rl.hardware.protocol.messages import Mode
from robot_rl.robot.deploy.resets import home_reset
from robot_rl.robot.deploy.terminal import Stopped
from tests.hardware.processes import eventually, serving


@pytest.mark.parametrize("polls", [0, 5])
def test_a_stop_ends_the_motion_of_a_reset(tmp_path: Path, polls: int) -> None:
    """At once, while the gripper opens or on the way home, and not only when the arm is there."""
    count = itertools.count()
    with serving(tmp_path) as server, server.client("deploy", "policy") as robot:
        with pytest.raises(Stopped):
            home_reset(robot, lambda: next(count) >= polls)(0)
        assert next(count) == polls + 1
        assert eventually(lambda: robot.sample().mode in (Mode.HOLD, Mode.ARMED), "it holds")
        assert robot.sample().lease_holder == ""
        robot.disarm()
