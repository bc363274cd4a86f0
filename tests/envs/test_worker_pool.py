"""Physics of several environments in threads without the GIL."""

import shutil
import threading
from collections.abc import Generator
from pathlib import Path

import numpy as np
import pytest
from robosuite.environments.base import MujocoEnv

import robot_rl.envs.compiled
from robot_rl.envs.compiled import CompiledControl, WorkerPool, compile_control
from robot_rl.envs.compiled.cache_key import digest
from robot_rl.envs.compiled.worker_pool import COLLECT, work
from tests.envs.test_compiled import actions, make


@pytest.fixture(scope="module")
def controls() -> list[CompiledControl]:
    made = []
    for seed, task in enumerate(("Lift", "Stack", "Lift", "Door", "Lift")):
        env: MujocoEnv = make(task, seed=seed)
        made.append(compile_control(env))
    return made


def rollout(controls: list[CompiledControl], pool: WorkerPool | None, steps: int = 15) -> list[np.ndarray]:
    """Joint positions of every environment after every step from the same beginning."""
    rows = []
    for control in controls:
        control.env.rng.bit_generator.state = np.random.default_rng(7).bit_generator.state
        control.env.reset()
    commands = [actions(control.env, steps) for control in controls]
    for step in range(steps):
        if pool is None:
            results = [c.step(command[step]) for c, command in zip(controls, commands, strict=True)]
        else:
            steppers = [c.stepping(command[step]) for c, command in zip(controls, commands, strict=True)]
            results = pool.drive(steppers)
        rows += [np.append(c.env.sim.data.qpos, r[1]) for c, r in zip(controls, results, strict=True)]
    return rows


@pytest.mark.parametrize("threads", [1, 2, 4])
def test_results_do_not_depend_on_the_number_of_threads(
    controls: list[CompiledControl], threads: int
) -> None:
    pool = WorkerPool([control.batch for control in controls], threads)
    for expected, got in zip(rollout(controls, None), rollout(controls, pool), strict=True):
        assert np.array_equal(expected, got)
    pool.close()


def test_observables_that_sample_within_a_batch(controls: list[CompiledControl]) -> None:
    """An observable with another rate splits the batch; the other environments continue meanwhile."""
    for control in controls:
        control.env.modify_observable("robot0_eef_pos", "sampling_rate", 130)
    pool = WorkerPool([control.batch for control in controls], 2)
    for expected, got in zip(rollout(controls, None), rollout(controls, pool), strict=True):
        assert np.array_equal(expected, got)
    pool.close()
    for control in controls:
        control.env.modify_observable("robot0_eef_pos", "sampling_rate", control.env.control_freq)


def test_after_an_error_nothing_is_running_and_the_pool_goes_on(controls: list[CompiledControl]) -> None:
    pool = WorkerPool([control.batch for control in controls], 3)
    steppers: list[Generator[None, None, object]]
    steppers = [control.stepping(np.zeros(control.env.action_dim)) for control in controls[:-1]]
    steppers.append(controls[-1].stepping(np.full(controls[-1].env.action_dim, np.nan)))
    with pytest.raises(ValueError, match="not finite"):
        pool.drive(steppers)
    rollout(controls, pool, steps=2)
    assert pool._queue["todo"][0].tobytes()[:4] == b"\0\0\0\0"  # glibc's count of a semaphore
    assert pool._queue["finished"][0].tobytes()[:4] == b"\0\0\0\0"
    pool.close()


def test_ctrl_c_as_a_batch_ends_leaves_the_pool_usable(
    controls: list[CompiledControl], monkeypatch: pytest.MonkeyPatch
) -> None:
    pool = WorkerPool([control.batch for control in controls], 2)
    steppers = [control.stepping(np.zeros(control.env.action_dim)) for control in controls]

    def interrupted(*arguments: object) -> int:
        index = work(*arguments)
        if arguments[0] == COLLECT:
            monkeypatch.undo()
            raise KeyboardInterrupt  # where Python would raise it: after the call, before anything else
        return index

    monkeypatch.setattr(robot_rl.envs.compiled.worker_pool, "work", interrupted)
    with pytest.raises(KeyboardInterrupt):
        pool.drive(steppers)
    assert pool._queue["running"][0] == 0
    rollout(controls, pool, steps=2)
    pool.close()


def test_a_singular_mass_matrix_is_an_error_in_its_environment_alone() -> None:
    controls = [compile_control(make()) for _ in range(2)]
    pool = WorkerPool([control.batch for control in controls], 2)
    zeros = np.zeros(7)
    pool.drive([control.stepping(zeros) for control in controls])
    # qM's addresses of the second arm lead nowhere: a mass matrix of zeros
    controls[1]._arms[0].record["inertia"][:] = -1
    with pytest.raises(ValueError, match="singular or not finite"):
        pool.drive([control.stepping(zeros) for control in controls])
    pool.close()


def test_closing_ends_the_threads(controls: list[CompiledControl]) -> None:
    before = threading.active_count()
    pool = WorkerPool([control.batch for control in controls], 4)
    assert threading.active_count() == before + 3
    pool.close()
    assert threading.active_count() == before


def test_what_is_cached_on_disk_knows_all_sources(tmp_path: Path) -> None:
    folder = Path(robot_rl.envs.compiled.__file__).parent
    copied = tmp_path / "compiled"
    shutil.copytree(folder, copied)
    assert digest(copied) == digest(folder)
    with (copied / "lapack" / "svd.py").open("a") as file:
        file.write("# changed\n")
    assert digest(copied) != digest(folder)
    assert digest(folder) in [cell.cell_contents for cell in work.py_func.__closure__]
