"""Two clients of a robot take turns, as its server shows who acts."""

import pytest

from robot_rl.robot.deploy.turns import Turns
from tests.hardware.processes import Server, eventually


def test_each_waits_until_the_other_has_acted(server: Server) -> None:
    with server.client("forward", "operator") as forward, server.client("backward", "operator") as backward:
        forward.arm()
        turns = Turns(forward, "backward", first=True)
        assert not turns.is_others_turn(), "it is the first"
        turns.take()
        assert turns.is_others_turn()
        with backward.lease("script"):
            backward.command("cartesian_delta", [0.0] * 6)
            eventually(lambda: backward.state(10.0).mode == "script", "it goes home")
            assert turns.is_others_turn()
        assert turns.is_others_turn(), "going home is no turn"
        with backward.lease("policy"):
            backward.command("cartesian_delta", [0.0] * 6)
            eventually(lambda: forward.state(10.0).mode == "policy", "it acts")
            assert turns.is_others_turn(), "it is not over"
        eventually(lambda: not turns.is_others_turn(), "now it is")
        turns.take()
        assert turns.is_others_turn()
        forward.disarm()


def test_nobody_takes_turns_with_himself(server: Server) -> None:
    with server.client("me", "operator") as robot, pytest.raises(AssertionError):
        Turns(robot, "me", first=True)
