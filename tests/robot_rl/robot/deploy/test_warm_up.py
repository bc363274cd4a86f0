"""Before the first episode, a policy decides a few times with what it is going to be told."""

import time
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace
from typing import Any

import pytest

from robot_rl.envs.instruction import INSTRUCTION, encode_instruction
from robot_rl.envs.observation import ObservationSpec
from robot_rl.hardware.clock import MonotonicClock
from robot_rl.policies.acting import ActingPolicy
from robot_rl.policies.async_runner import execute_asynchronously
from robot_rl.policies.asynchronous import AsyncOptions
from robot_rl.policies.bases.base_policy import Chunk
from robot_rl.robot.deploy.controller import Controller
from tests.policies.bases.test_vla import CAMERAS, SIZE, TEXTS, small
from tests.policies.test_asynchronous import Counting


class Slow(Counting):
    """Takes 0.5 s for a chunk, and longer for the first one."""

    begun = 0

    def sample(self, *args: Any, **options: Any) -> Chunk:
        self.begun += 1
        time.sleep(1.0 if self.begun == 1 else 0.5)
        return super().sample(*args, **options)


def test_the_next_chunk_that_is_requested_at_once_does_not_count() -> None:
    env: Any = SimpleNamespace(observation_spec=ObservationSpec(("state",), (1,), (), None), asked={})
    shared: Any = None
    policy = ActingPolicy(Slow(12, 2), 1)
    with ThreadPoolExecutor(1) as pool:
        execute_asynchronously(policy, AsyncOptions("naive", 3), (False, True), pool.submit)
        controller = Controller(
            env, policy, MonotonicClock(), 0.25, shared=shared, stop=bool, verdict=None, recording=None
        )
        # Three periods suffice for a chunk, not for two.
        controller.warm_up()


class SlowAfterAPrefix(Counting):
    """Takes 0.5 s for a chunk that goes on from the last one, and hardly any time for a first one."""

    max_prefix = 2

    def sample_after(self, obs: Any, prefix: Any, **options: Any) -> Chunk:
        time.sleep(0.5)
        return self.sample(obs, **options)


def test_chunks_that_go_on_from_the_last_one_are_measured() -> None:
    env: Any = SimpleNamespace(observation_spec=ObservationSpec(("state",), (1,), (), None), asked={})
    shared: Any = None
    policy = ActingPolicy(SlowAfterAPrefix(12, 2), 1)
    with ThreadPoolExecutor(1) as pool:
        execute_asynchronously(policy, AsyncOptions("prefix", 2), (False, True), pool.submit)
        controller = Controller(
            env, policy, MonotonicClock(), 0.2, shared=shared, stop=bool, verdict=None, recording=None
        )
        with pytest.raises(ValueError, match=r"takes \d+ ms here.*asynchronous=blend delay=\d+ or more"):
            controller.warm_up()


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
