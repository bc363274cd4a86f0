"""LIBERO's tasks, simulated in its own interpreter: exact episodes, experts, and the usual commands."""

import re
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from robot_rl.cli.compose import load_group
from robot_rl.data.dataset import Dataset
from robot_rl.envs.disturbed_env import DisturbedEnv
from robot_rl.envs.experts import make_expert
from robot_rl.envs.external.simulators import simulator_of
from robot_rl.envs.task import TaskConfig
from robot_rl.envs.task_env import TaskEnv
from robot_rl.evaluation.initial_states import load_states
from robot_rl.factory import make_env
from tests.conftest import RunCommand

SUITES = ("libero_object", "libero_spatial", "libero_goal", "libero_10")
SIMULATOR = simulator_of("libero_object")
assert SIMULATOR is not None
pytestmark = [
    pytest.mark.full,
    pytest.mark.skipif(not Path(SIMULATOR.python).is_file(), reason="LIBERO is missing: make setup-libero"),
]
SOUP = "pick up the alphabet soup and place it in the basket"
MILK = "pick up the milk and place it in the basket"
SMALL = ("base.channels=[8,16]", "base.tokens_width=32", "base.layers=1", "base.width=32", "base.depth=1")


def task(suite: str, **changes: object) -> TaskConfig:
    return replace(load_group("task", suite, TaskConfig), **changes)  # type: ignore[arg-type]


@pytest.fixture(scope="module")
def env() -> Iterator[TaskEnv]:
    with closing(make_env(task("libero_object", image_size=[32, 48], instructions=[SOUP, MILK]))) as env:
        yield env


def same(one: dict[str, np.ndarray], other: dict[str, np.ndarray]) -> bool:
    return one.keys() == other.keys() and all(np.array_equal(one[key], other[key]) for key in one)


def test_the_same_seed_gives_the_same_episode_whatever_was_before(env: TaskEnv) -> None:
    actions = np.random.default_rng(0).uniform(-1, 1, (10, 7)).astype(np.float32)
    begun: dict[int, dict[str, np.ndarray]] = {}
    ended: dict[int, dict[str, np.ndarray]] = {}
    for seed in (0, 1, 2, 0, 2):
        first, _ = env.reset(seed=seed)
        assert env.observation_space.contains(first)
        last = [env.step(action)[0] for action in actions][-1]
        assert same(begun.setdefault(seed, first), first)
        assert same(ended.setdefault(seed, last), last)
    assert not np.array_equal(begun[0]["state"], begun[1]["state"])


def test_an_episode_continues_from_a_saved_state_to_the_bit(env: TaskEnv) -> None:
    actions = np.random.default_rng(1).uniform(-1, 1, (20, 7)).astype(np.float32)
    env.reset(seed=3)
    for action in actions[:10]:
        env.step(action)
    state, instruction = env.get_state(), env.instruction
    expected = [env.step(action) for action in actions[10:]]
    end = env.get_state()
    env.reset(seed=4)
    env.set_state(state)
    assert env.instruction == instruction
    assert np.array_equal(env.get_state(), state)
    found = [env.step(action) for action in actions[10:]]
    assert all(same(one[0], other[0]) for one, other in zip(expected, found, strict=True))
    assert np.array_equal(env.get_state(), end)


def test_images_are_upright_and_only_drawn_where_they_are_wanted(env: TaskEnv) -> None:
    first, _ = env.reset(seed=0)
    # The floor, in the lower half, is brighter than the dark gripper that the hand's camera sees at its end.
    hand = first["images.robot0_eye_in_hand"].astype(float)
    assert hand[:16].mean() > hand[-5:].mean()
    env.draw_images = False
    black = env.step(np.zeros(7, np.float32))[0]
    assert not black["images.agentview"].any()
    assert first["images.agentview"].std() > 10


@pytest.mark.parametrize("suite", SUITES)
def test_a_suite_has_ten_instructions_and_shipped_states_of_them(suite: str) -> None:
    with closing(make_env(task(suite, cameras=[]))) as env:
        assert len(set(env.task.instructions)) == 10
        states = load_states(env).states
        assert len(states) == 100
        env.reset(options={"state": states[-1]})
        assert np.array_equal(env.get_state(), states[-1])
        assert not env.step(np.zeros(7, np.float32))[2]
        chosen = env.task.instructions[:1]
    with closing(make_env(task(suite, cameras=[], instructions=chosen))) as env:
        assert 0 < len(load_states(env).states) < 100
        with pytest.raises(ValueError, match="not asked for"):
            env.set_state(next(state for state in states if state[0] != 0))


@pytest.mark.parametrize("suite", ["libero_object", "libero_spatial"])
def test_the_expert_solves_its_suite(suite: str) -> None:
    solved = 0
    with closing(make_env(task(suite, cameras=[]), observe_all=True)) as env:
        for seed in range(5):
            env.reset(seed=seed)
            expert = make_expert(suite, noise=0.1, skill=1.0, rng=np.random.default_rng(seed))
            expert.reset(env.sim)
            over = False
            while not over:
                *_, terminated, truncated, _ = env.step(expert.act(env.sim))
                over = terminated or truncated
            solved += terminated
    assert solved >= 4


def test_a_suite_without_an_expert_says_so(robot_rl: RunCommand, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="libero_goal has no scripted expert"):
        robot_rl("collect", "task=libero_goal", f"data={tmp_path / 'd'}", "episodes=1")


def test_what_needs_a_simulation_in_this_process_is_refused(robot_rl: RunCommand) -> None:
    with pytest.raises(ValueError, match="LIBERO's own process"):
        robot_rl("robot", "task=libero_object")
    with pytest.raises(ValueError, match="LIBERO's own process"):
        DisturbedEnv(task("libero_object"), "light", 0)


def test_collect_train_and_eval_by_instruction(
    robot_rl: RunCommand, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    chosen = ["task=libero_object", "task.image_size=[32,32]", f"task.instructions=['{SOUP}','{MILK}']"]
    data, run = tmp_path / "d.zarr", tmp_path / "run"
    robot_rl("collect", *chosen, f"data={data}", "episodes=3", "noise=0.1")
    dataset = Dataset(data)
    assert dataset.observation_spec.cameras == ("agentview", "robot0_eye_in_hand")
    assert set(dataset.environment["instructions"]) == {SOUP, MILK}
    # Object poses are the expert's alone.
    assert not [key for key in dataset.keys if re.search("object|target|box|scene", key)]
    training = ["method.steps=2", "method.batch_size=8", "threads=1", *SMALL]
    more = [f"data={data}", f"runs_dir={tmp_path}", "name=run", *training]
    robot_rl("train", "method=bc", "base=vla", *chosen, *more)
    robot_rl("eval", f"policy={run}", *chosen, "task.horizon=5", "episodes=4", "num_envs=2")
    printed = capsys.readouterr().out
    assert SOUP in printed
    assert MILK in printed
