"""Environments in processes behave as those in threads, and no process is left behind."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from functools import partial
from multiprocessing import active_children, resource_tracker
from operator import getitem
from pathlib import Path

import numpy as np
import pytest

from robot_rl.cli.compose import load_group
from robot_rl.envs.process_vector import ProcessVectorEnv
from robot_rl.envs.robosuite_env import RobosuiteEnv
from robot_rl.envs.task import TaskConfig
from robot_rl.envs.vector import TaskVectorEnv, ThreadVectorEnv
from robot_rl.factory import make_vector_env

HORIZON = 6
NUM_ENVS = 2


def lift(**change: object) -> TaskConfig:
    task = load_group("task", "lift", TaskConfig)
    task.horizon = HORIZON
    for name, value in change.items():
        setattr(task, name, value)
    return task


def makers() -> list[partial[RobosuiteEnv]]:
    return [partial(RobosuiteEnv, lift())] * NUM_ENVS


@pytest.fixture(scope="module")
def threads() -> Iterator[ThreadVectorEnv]:
    vector = ThreadVectorEnv(makers())
    yield vector
    vector.close()


@pytest.fixture(
    scope="module",
    params=[NUM_ENVS, pytest.param(1, marks=pytest.mark.full)],
    ids=["a process each", "one process"],
)
def processes(request: pytest.FixtureRequest) -> Iterator[ProcessVectorEnv]:
    vector = ProcessVectorEnv(makers(), workers=request.param)
    assert len(active_children()) == request.param
    yield vector
    vector.close()
    assert active_children() == []


def actions(count: int) -> np.ndarray:
    return 2 * np.random.default_rng(0).uniform(-1, 1, (count, NUM_ENVS, 7)).astype(np.float32)


def life(vector: TaskVectorEnv) -> list[np.ndarray]:
    """All that is to be seen of several episodes, begun by mask with seeds and with states."""
    seen = [vector.reset(seed=3)[0]["state"]]
    rng = np.random.default_rng(0)
    for t, action in enumerate(actions(2 * HORIZON)):
        obs, *rest, info = vector.step(action)
        done = rest[1] | rest[2]
        assert vector.observation_space.contains(obs)
        seen += [obs["state"], *rest, info["success"], info["applied_action"], *vector.get_states()]
        if t == 2:
            seen.append(vector.reset(seed=[7, 8], options={"reset_mask": [False, True]})[0]["state"])
        if done.any():
            options = {"reset_mask": done, "states": [vector.get_states()[1], None]}
            seeds = rng.integers(100, size=NUM_ENVS).tolist()
            seen.append(vector.reset(seed=seeds, options=options)[0]["state"])
    return seen


def test_processes_give_the_same_as_threads(threads: ThreadVectorEnv, processes: ProcessVectorEnv) -> None:
    expected, got = life(threads), life(processes)
    assert len(expected) == len(got)
    for one, two in zip(expected, got, strict=True):
        assert (one.dtype, one.shape) == (two.dtype, two.shape)
        np.testing.assert_array_equal(one, two)


def test_what_is_told_of_the_environments_is_the_same(
    threads: ThreadVectorEnv, processes: ProcessVectorEnv
) -> None:
    assert processes.metadata == threads.metadata
    assert processes.task == threads.task
    assert processes.describe() == threads.describe() == threads.envs[0].describe()
    assert processes.observation_space == threads.observation_space
    assert processes.action_space == threads.action_space
    assert processes.action_spec == threads.action_spec
    assert processes.observation_spec == threads.observation_spec


def test_results_are_the_callers_to_keep(processes: ProcessVectorEnv) -> None:
    processes.reset(seed=0)
    obs, *rest, info = processes.step(actions(2)[0])
    held = [obs["state"], *rest, *info.values()]
    before = [value.copy() for value in held]
    processes.step(actions(2)[1])
    assert all(map(np.array_equal, held, before))


def test_states_go_there_and_back(threads: ThreadVectorEnv, processes: ProcessVectorEnv) -> None:
    threads.reset(seed=0)
    obs, *_ = threads.step(actions(2)[0])
    states = threads.get_states()
    processes.reset(seed=30)
    np.testing.assert_array_equal(processes.set_states(states)["state"], obs["state"])
    np.testing.assert_array_equal(processes.get_states(), states)
    ahead = threads.step(actions(2)[1])[0]["state"]
    np.testing.assert_array_equal(processes.step(actions(2)[1])[0]["state"], ahead)


def test_what_is_refused_is_refused_as_in_threads(
    threads: ThreadVectorEnv, processes: ProcessVectorEnv
) -> None:
    bad = actions(1)[0]
    bad[1, 3] = np.nan
    refused: list[Callable[[TaskVectorEnv], object]] = [
        lambda vector: vector.step(bad),
        lambda vector: vector.step(bad[:1]),
        lambda vector: vector.step(bad[:, :6]),
        lambda vector: vector.reset(seed=[1]),
        lambda vector: vector.set_states([np.zeros(3)] * NUM_ENVS),
        lambda vector: vector.set_states(vector.get_states()[:1]),
    ]
    for vector in (threads, processes):
        vector.reset(seed=0)
    for call in refused:
        messages = []
        for vector in (threads, processes):
            before = vector.get_states()
            with pytest.raises(ValueError) as error:  # noqa: PT011
                call(vector)
            messages.append(str(error.value))
            np.testing.assert_array_equal(vector.get_states(), before)
        assert messages[0] == messages[1]


def test_reset_that_failed_must_be_made_good(processes: ProcessVectorEnv) -> None:
    processes.reset(seed=0)
    with pytest.raises(ValueError, match="saved with another task"):
        processes.reset(options={"reset_mask": np.array([False, True]), "states": [None, np.zeros(3)]})
    with pytest.raises(ValueError, match=r"environments \[1\] are done"):
        processes.step(actions(1)[0])
    processes.reset(options={"reset_mask": np.array([False, True])})
    processes.step(actions(1)[0])


@pytest.mark.parametrize(
    ("maker", "kind", "message"),
    [
        (partial(os._exit, 3), RuntimeError, "environment 0 has died: exit code 3"),
        (partial(RobosuiteEnv, TaskConfig("it", "Lft")), ValueError, "^task 'it': .* no environment 'Lft'"),
        (partial(getitem, {}, "a bug"), RuntimeError, "(?s)Traceback.*KeyError: 'a bug'"),
    ],
    ids=["exits", "refuses", "breaks"],
)
def test_failure_to_build_leaves_nothing_behind(
    maker: Callable[[], RobosuiteEnv], kind: type[Exception], message: str
) -> None:
    resource_tracker.ensure_running()  # the first process that is spawned starts it, with a pipe
    before = set(active_children()), len(os.listdir("/proc/self/fd"))
    with pytest.raises(kind, match=message):
        ProcessVectorEnv([maker])
    assert (set(active_children()), len(os.listdir("/proc/self/fd"))) == before


@pytest.mark.full
def test_processes_go_with_their_parent_however_it_ends() -> None:
    script = (
        "from functools import partial\n"
        "from robot_rl.envs.process_vector import ProcessVectorEnv\n"
        "from robot_rl.envs.robosuite_env import RobosuiteEnv\n"
        "from robot_rl.envs.task import TaskConfig\n"
        "task = TaskConfig('lift', 'Lift', state_keys=['cube_pos'])\n"
        "vector = ProcessVectorEnv([partial(RobosuiteEnv, task)] * 2)\n"
        "vector.reset(seed=0)\n"
        "print(*(worker.process.pid for worker in vector._workers), flush=True)\n"
        "input()\n"
    )
    root = Path(__file__).parents[2]
    command = [sys.executable, "-c", script]
    with subprocess.Popen(
        command, cwd=root, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as parent:
        assert parent.stdout
        workers = [int(pid) for pid in parent.stdout.readline().split()]
        assert len(workers) == NUM_ENVS
        assert all(map(alive, workers))
        parent.kill()
    while any(map(alive, workers)):  # a test that hangs here has failed
        time.sleep(0.05)


def alive(pid: int) -> bool:
    """Whether a process runs; a zombie does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


@pytest.mark.full
def test_threads_if_compiled_and_processes_if_not(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "cpu_count", lambda: 2)
    task = lift(env_args={"lite_physics": False})
    with pytest.warns(UserWarning, match="lite_physics") as warned:
        vector = make_vector_env(task, NUM_ENVS)
    assert len([warning for warning in warned if "lite_physics" in str(warning.message)]) == 1
    assert isinstance(vector, ProcessVectorEnv)
    with pytest.warns(UserWarning, match="lite_physics"):
        alone = make_vector_env(task, 1)
    assert isinstance(alone, ThreadVectorEnv)
    one, two = vector.reset(seed=5)[0], alone.reset(seed=5)[0]
    np.testing.assert_array_equal(one["state"][:1], two["state"])
    one, two = vector.step(actions(1)[0])[0], alone.step(actions(1)[0][:1])[0]
    np.testing.assert_array_equal(one["state"][:1], two["state"])
    vector.close()
    alone.close()
    compiled = make_vector_env(lift(), NUM_ENVS)
    assert isinstance(compiled, ThreadVectorEnv)
    compiled.close()


# At the end, since it closes the environments that the tests above share.
def test_killed_process_is_named_and_all_others_go(processes: ProcessVectorEnv) -> None:
    if len(processes._workers) < NUM_ENVS:
        pytest.skip("all environments are in one process")
    processes.reset(seed=0)
    victim = processes._workers[1].process
    os.kill(victim.pid, signal.SIGKILL)
    with pytest.raises(RuntimeError, match=r"environment 1 has died: exit code -9 \(SIGKILL\)"):
        processes.step(actions(1)[0])
    assert active_children() == []
    with pytest.raises(RuntimeError, match="closed"):
        processes.get_states()
    processes.close()
    processes.close()
