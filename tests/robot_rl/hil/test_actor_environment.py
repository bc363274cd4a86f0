"""An actor's simulated environment runs in real time or as fast as possible, and reports late steps."""

import time
from collections.abc import Iterator

import numpy as np
import pytest

from robot_rl.envs.robosuite_env import RobosuiteEnv
from robot_rl.factory import make_robosuite_env
from robot_rl.hil.actor_environment import SimActorEnvironment
from robot_rl.robot.takeover import ControlState

PERIOD = 0.05


@pytest.fixture(scope="module")
def env() -> Iterator[RobosuiteEnv]:
    created = make_robosuite_env("lift")
    yield created
    created.close()


def test_a_late_step_is_reported_in_real_time(env: RobosuiteEnv) -> None:
    actor_env, still = SimActorEnvironment(env, realtime=True), np.zeros(7, np.float32)
    actor_env.reset(0, 0)
    start = time.monotonic()
    for _ in range(4):
        actor_env.step(still, ControlState.POLICY)
    assert time.monotonic() - start >= 4 * PERIOD * 0.99
    time.sleep(0.3)
    info = actor_env.step(still, ControlState.POLICY)[-1]
    assert info["late_ms"] >= (0.3 - PERIOD) * 1e3 * 0.99


def test_no_step_is_late_in_simulated_time(env: RobosuiteEnv) -> None:
    actor_env, still = SimActorEnvironment(env, realtime=False), np.zeros(7, np.float32)
    actor_env.reset(0, 0)
    for _ in range(3):
        before = actor_env.now()
        time.sleep(0.1)
        assert actor_env.step(still, ControlState.POLICY)[-1]["late_ms"] == 0
        assert actor_env.now() - before == round(PERIOD * 1e9)
