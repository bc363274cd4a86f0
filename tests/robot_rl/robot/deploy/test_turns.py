"""Two clients of a robot take turns, as its server shows who acts."""

from pathlib import Path

import pytest

from robot_rl.envs.real_arm import RealArmEnv
from robot_rl.envs.robosuite_env import RobosuiteEnv
from robot_rl.envs.task_driver import TaskDriver
from robot_rl.hardware.clock import MonotonicClock
from robot_rl.hardware.connection import RequestRefused
from robot_rl.robot.deploy.turns import Turns
from robot_rl.robot.operators.shared_control import SharedRobot
from robot_rl.robot.takeover import ControlState
from tests.envs.test_real_arm import PATIENCE, STILL, Bridge, lift
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


def test_a_reset_begins_again_if_the_other_program_ends_and_disarms_the_arm_meanwhile(tmp_path: Path) -> None:
    clock = MonotonicClock()
    bridge = Bridge(TaskDriver(lift(), clock), tmp_path / "robot")
    plain = RobosuiteEnv(lift())
    resets: list[int] = []
    try:
        with bridge.client() as mine, bridge.client("operator") as other:

            def prepare(number: int) -> None:
                resets.append(number)
                mine.arm()
                if len(resets) % 2:
                    other.disarm()
                with mine.lease("script"):
                    mine.command("cartesian_delta", [0.0] * 6)

            env = RealArmEnv(mine, plain.describe(), prepare=prepare, max_age_ms=PATIENCE * 1e3)
            turns = Turns(mine, "operator", first=True)
            shared = SharedRobot(env, mine, mine, clock, turns)
            shared.reset(7, 0)
            assert resets == [7, 7]
            assert not turns.is_others_turn(), "an episode without a command is no turn"
            shared.step(STILL, ControlState.POLICY)
            assert turns.is_others_turn()
            with pytest.raises(RequestRefused):
                SharedRobot(env, mine, mine, clock).reset(8, 0)
            env.close()
    finally:
        plain.close()
        bridge.close()
