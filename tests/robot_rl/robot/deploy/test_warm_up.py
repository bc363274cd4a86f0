"""Before the first episode, a policy decides a few times with what it is going to be told."""

from types import SimpleNamespace
from typing import Any

import pytest

from robot_rl.envs.instruction import INSTRUCTION, encode_instruction
from robot_rl.envs.observation import ObservationSpec
from robot_rl.hardware.clock import MonotonicClock
from robot_rl.policies.acting import ActingPolicy
from robot_rl.robot.deploy.controller import Controller
from tests.policies.bases.test_vla import CAMERAS, SIZE, TEXTS, small


@pytest.mark.parametrize(("text", "known"), [(TEXTS[0], True), ("wash up", False)])
def test_a_policy_is_told_its_instruction(text: str, known: bool) -> None:
    spec = ObservationSpec(("state",), (3,), CAMERAS, SIZE, True)
    env: Any = SimpleNamespace(observation_spec=spec, asked={INSTRUCTION: encode_instruction(text)})
    shared: Any = None
    policy = ActingPolicy(small().eval(), 1)
    controller = Controller(
        env, policy, MonotonicClock(), 60.0, shared=shared, stop=bool, verdict=None, recording=None
    )
    if known:
        controller.warm_up()
    else:
        with pytest.raises(ValueError, match="wash"):
            controller.warm_up()
