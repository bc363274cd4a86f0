"""An environment in its own process acts as one in this process; a lost process is one clear line."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, closing
from functools import partial
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("msgpack", reason="the process needs msgpack")

from robot_rl.envs.external.env import ExternalEnv
from robot_rl.envs.external.process import EnvironmentLost, Simulator
from robot_rl.envs.task import TaskConfig
from robot_rl.envs.vector import ThreadVectorEnv
from robot_rl.hardware.child_process import child_environment
from tests.hardware.processes import eventually

TINY = Simulator("tiny", Path(__file__).with_name("external_tiny.py"), sys.executable, "install it")
RIGHT = np.array([1, 0, 0, 0, 0, 0, 0], np.float32)


def task(instruction: str = "go right", **options: object) -> TaskConfig:
    values = {"env": "tiny", "instructions": [instruction], "render": "robosuite", **options}
    return TaskConfig(**values)  # type: ignore[arg-type]


@pytest.fixture
def tiny() -> Iterator[ExternalEnv]:
    with closing(ExternalEnv(TINY, task(cameras=["eye"], image_size=[4, 6]), observe_all=True)) as env:
        yield env


def test_the_same_seed_gives_the_same_episode(tiny: ExternalEnv) -> None:
    first, _ = tiny.reset(seed=3)
    assert tiny.observation_space.contains(first)
    assert first["images.eye"].shape == (4, 6, 3)
    assert tiny.instruction == "go right"
    other, _ = tiny.reset(seed=4)
    again, _ = tiny.reset(seed=3)
    assert not np.array_equal(first["state"], other["state"])
    assert all(np.array_equal(first[key], again[key]) for key in first)


def test_success_ends_an_episode_with_reward_1_and_time_truncates_it(tiny: ExternalEnv) -> None:
    tiny.reset(seed=0)
    ends = []
    while not ends or not any(ends[-1][1:]):
        _, reward, terminated, truncated, info = tiny.step(RIGHT)
        ends.append((reward, terminated, truncated))
        assert info["success"] == tiny.sim.success == terminated
    assert ends == [*[(0.0, False, False)] * (len(ends) - 1), (1.0, True, False)]
    tiny.reset(seed=0)
    steps = [tiny.step(np.zeros(7, np.float32))[3] for _ in range(20)]
    assert steps == [False] * 19 + [True]


def test_an_episode_continues_from_a_saved_state(tiny: ExternalEnv) -> None:
    tiny.reset(seed=0)
    tiny.step(RIGHT)
    state = tiny.get_state()
    then = tiny.step(RIGHT)[0]
    tiny.reset(seed=1)
    tiny.set_state(state)
    assert np.array_equal(tiny.step(RIGHT)[0]["state"], then["state"])
    with pytest.raises(ValueError, match="4 finite numbers"):
        tiny.set_state(state[:-1])
    with pytest.raises(ValueError, match="finite"):
        tiny.set_state(np.full(4, np.nan))


def test_an_action_is_checked_before_anything_moves(tiny: ExternalEnv) -> None:
    tiny.reset(seed=0)
    before = tiny.get_state()
    for wrong in (np.full(7, np.nan), np.zeros(6)):
        with pytest.raises(ValueError, match="action"):
            tiny.step(wrong)
    assert np.array_equal(tiny.get_state(), before)
    assert np.array_equal(tiny.step(5 * RIGHT)[4]["applied_action"], RIGHT)


def test_only_an_expert_sees_the_scene(tiny: ExternalEnv) -> None:
    tiny.reset(seed=0)
    assert tiny.sim.values["goal"] == 0.5
    assert "goal" not in tiny.raw
    with closing(ExternalEnv(TINY, task())) as env:
        env.reset(seed=0)
        assert env.sim.values == {}


def test_several_are_stepped_in_threads_with_the_results_of_one() -> None:
    outcomes = []
    for threads in (1, 3):
        envs = ThreadVectorEnv([partial(ExternalEnv, TINY, task())] * 3, threads)
        envs.reset(seed=5)
        outcomes.append([envs.step(np.stack([RIGHT] * 3))[0]["state"] for _ in range(3)])
        envs.close()
    assert np.array_equal(*outcomes)


@pytest.mark.parametrize(
    ("fault", "message"),
    [
        ("die", "ended with exit code 3; its last line: out of luck"),
        ("crash", "its last line: RuntimeError: a bug"),
        ("leave", "closed its connection"),
        ("garbage", "no valid answer"),
        ("long", "no valid message"),
        ("nan", "its point is not finite"),
        ("shape", "its point has 3 numbers in place of 2"),
        ("name", "sent 'other' in place of point"),
        ("type", "no valid answer"),
        ("negative", "no valid answer"),
        ("small image", "other images"),
    ],
)
def test_a_dead_process_or_a_wrong_answer_is_one_line_and_ends_the_process(fault: str, message: str) -> None:
    env = ExternalEnv(TINY, task(fault, cameras=["eye"], image_size=[4, 6]))
    env.reset(seed=0)
    env.step(RIGHT)
    with pytest.raises(EnvironmentLost, match=message) as raised:
        env.step(RIGHT)
    assert str(raised.value).startswith("the process of tiny is lost: ")
    assert "\n" not in str(raised.value)
    with pytest.raises(ProcessLookupError):
        os.kill(env.process.pid, 0)
    with pytest.raises(EnvironmentLost, match="is lost"):
        env.reset(seed=0)
    env.close()


def test_a_process_that_hangs_is_ended() -> None:
    env = ExternalEnv(TINY, task("hang"))
    env.reset(seed=0)
    env.step(RIGHT)
    # Set late, since a loaded machine starts processes slowly.
    env.process.limit = 0.2
    with pytest.raises(EnvironmentLost, match=r"did not answer within 0\.2 s"):
        env.step(RIGHT)
    with pytest.raises(ProcessLookupError):
        os.kill(env.process.pid, 0)


def test_what_the_environment_refuses_is_one_line_and_it_goes_on() -> None:
    with closing(ExternalEnv(TINY, task("refuse"))) as env:
        env.reset(seed=0)
        env.step(RIGHT)
        with pytest.raises(ValueError, match=r"^not so$"):
            env.step(RIGHT)
        env.reset(seed=0)
        env.step(RIGHT)


def test_an_instruction_that_was_not_asked_for_is_refused() -> None:
    with closing(ExternalEnv(TINY, task("instruction"))) as env:
        env.reset(seed=0)
        env.step(RIGHT)
        with pytest.raises(ValueError, match="'another', which is not among"):
            env.step(RIGHT)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"env": "unknown"}, "there is no unknown"),
        ({"controller": "OSC_POSITION"}, "task.controller"),
        ({"input_type": "absolute"}, "task.input_type"),
        ({"env_args": {"a": 1}}, "task.env_args"),
        ({"robots": ["Sawyer"]}, "robot is a Panda"),
        ({"cameras": ["eye"], "render": "quick"}, "task.render=quick"),
        ({"state_keys": ["joints"]}, "does not observe joints; it has point"),
        ({"instructions": [""]}, "printable text"),
    ],
)
def test_what_another_simulator_does_not_have_is_refused(options: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        ExternalEnv(TINY, task(**{"instruction": "go", **options}))


def test_without_its_interpreter_the_user_is_told_how_to_get_it() -> None:
    missing = Simulator("tiny", TINY.program, "/nowhere/python", "install it")
    with pytest.raises(ValueError, match="needs its own Python at /nowhere/python: install it"):
        ExternalEnv(missing, task())


def test_the_process_ends_with_its_parent(tmp_path: Path) -> None:
    program = tmp_path / "parent.py"
    program.write_text(
        "import time\n"
        "from tests.envs.test_external import TINY, task\n"
        "from robot_rl.envs.external.env import ExternalEnv\n"
        "env = ExternalEnv(TINY, task('hang'))\n"
        "print(env.process.pid, flush=True)\n"
        "time.sleep(600)\n"
    )
    with ExitStack() as stack:
        parent = stack.enter_context(
            subprocess.Popen(
                [sys.executable, str(program)], stdout=subprocess.PIPE, env=child_environment(), text=True
            )
        )
        stack.callback(parent.kill)
        assert parent.stdout is not None
        child = int(parent.stdout.readline())
        os.kill(child, 0)
        os.kill(parent.pid, signal.SIGKILL)
        parent.wait()
        eventually(lambda: not _runs(child), "the process ends")


def _runs(process: int) -> bool:
    """Whether a process runs, and is no zombie."""
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False
