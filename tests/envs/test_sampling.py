"""Observables that are changed while an episode runs, against robosuite's own."""

import numpy as np
import pytest
from robosuite.environments.base import MujocoEnv
from robosuite.utils.observables import Observable, sensor

from robot_rl.envs.compiled import compile_control
from tests.envs.test_compiled import actions, make


def add_observables(env: MujocoEnv) -> None:
    @sensor("robot0_proprio")
    def one(_: dict) -> np.ndarray:
        return np.array([env.sim.data.qpos[1]])

    @sensor("extra")
    def other(cache: dict) -> np.ndarray:
        return cache.get("robot0_eef_pos", np.zeros(3))

    for made in (one, other):
        env.add_observable(Observable(made.__name__, made, sampling_rate=20))


def change(env: MujocoEnv, step: int) -> None:
    """Changes that a user may make to an environment before a step."""
    observables = env._observables
    match step:
        case 2:
            env.modify_observable("robot0_eef_pos", "enabled", False)
        case 4:
            env.modify_observable("robot0_eef_pos", "enabled", True)
            env.modify_observable("robot0_eef_quat", "active", False)
        case 6:
            add_observables(env)
        case 8:
            observables["one"].set_sensor(observables["robot0_joint_pos"]._sensor)
        case 10:
            env.modify_observable("other", "delayer", lambda: 0.011)
        case 13:
            env.modify_observable("other", "delayer", None)
            env.modify_observable("other", "corrupter", lambda value: value + 1)
        case 16:
            env.reset()
        case 19 | 21:
            for observable in observables.values():
                observable.set_enabled(step == 21)
        case 24:
            env.modify_observable("robot0_joint_pos", "sampling_rate", 500)
        case 28:
            for name in observables:
                env.modify_observable(name, "sampling_rate", 33)


@pytest.mark.parametrize("task", ["Lift", "PickPlaceCan"])
def test_observables_may_change_at_any_time(task: str) -> None:
    stock, ours = make(task), make(task)
    compile_control(ours)
    for step, action in enumerate(actions(ours, 36)):
        change(stock, step)
        change(ours, step)
        expected, got = stock.step(action)[0], ours.step(action)[0]
        assert list(expected) == list(got)
        for name, value in expected.items():
            assert (type(value), np.asarray(value).dtype) == (type(got[name]), np.asarray(got[name]).dtype)
            assert np.array_equal(value, got[name]), (step, name)
        for name, observable in stock._observables.items():
            mine = ours._observables[name]
            for timer in ("_time_since_last_sample", "_sampled", "_current_delay"):
                assert getattr(observable, timer) == getattr(mine, timer), (step, name, timer)
        assert stock._obs_cache.keys() == ours._obs_cache.keys()
        for name, value in stock._obs_cache.items():
            assert np.array_equal(value, ours._obs_cache[name]), (step, name)


def test_what_a_step_returned_does_not_change_afterwards() -> None:
    env = make("PickPlaceCan")
    compile_control(env)
    steps = actions(env, 4)
    kept = env.step(steps[0])[0]
    copies = {name: np.copy(value) for name, value in kept.items()}
    for action in steps[1:]:
        env.step(action)
    for name, value in kept.items():
        assert np.array_equal(value, copies[name]), name
