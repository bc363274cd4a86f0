"""Scenes with several instructions: the words alone say what to do, and only that is a success."""

from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pytest

from robot_rl.cli.compose import load_group
from robot_rl.envs.disturbed_env import DisturbedEnv
from robot_rl.envs.experts import make_expert
from robot_rl.envs.instruction import INSTRUCTION, decode_instruction, encode_instruction
from robot_rl.envs.language_scenes import LANGUAGE_SCENES, LanguageScene
from robot_rl.envs.robosuite_env import RobosuiteEnv
from robot_rl.envs.task import TaskConfig
from robot_rl.factory import task_of

STACK = LANGUAGE_SCENES["LanguageStack"].INSTRUCTIONS
NAMES = ["language_stack", "language_nut_assembly", "language_pick_place"]


def without_cameras(name: str, **changes: object) -> RobosuiteEnv:
    return RobosuiteEnv(replace(load_group("task", name, TaskConfig), cameras=[], **changes))  # type: ignore[arg-type]


@pytest.fixture(scope="module")
def stack() -> Iterator[RobosuiteEnv]:
    env = without_cameras("language_stack")
    yield env
    env.close()


def act(env: RobosuiteEnv, instruction: str, asked: str | None = None, steps: int = 300) -> bool:
    """Whether the expert, who acts by an instruction, succeeds in what is asked."""
    scene = env.sim
    assert isinstance(scene, LanguageScene)
    by, judged = (scene.INSTRUCTIONS.index(text) for text in (instruction, asked or instruction))
    expert = make_expert(env.task.env, noise=0.0, skill=1.0, rng=np.random.default_rng(0))
    scene.goal = by
    expert.reset(scene)
    info = {"success": False}
    for _ in range(steps):
        scene.goal = by
        action = expert.act(scene)
        scene.goal = judged
        *_, info = env.step(action)
        if info["success"]:
            break
    return bool(info["success"])


def test_an_instruction_survives_as_an_observed_array() -> None:
    for text in ("stack the red cube", "lège-toi", "x" * 128):
        assert decode_instruction(encode_instruction(text)) == text
    for wrong in ("", "  ", "two\nlines", "x" * 129, "é" * 65):
        with pytest.raises(ValueError, match="instruction"):
            encode_instruction(wrong)


def test_the_seed_draws_the_instruction_and_the_state_keeps_it(stack: RobosuiteEnv) -> None:
    drawn = [stack.reset(seed=seed)[0][INSTRUCTION] for seed in range(12)]
    texts = [decode_instruction(row) for row in drawn]
    assert set(texts) == set(STACK)
    assert stack.observation_space.contains(stack.reset(seed=3)[0])
    state, text = stack.get_state(), stack.instruction
    other = texts.index(next(one for one in texts if one != text))
    stack.reset(seed=other)
    assert stack.instruction != text
    assert decode_instruction(stack.set_state(state)[INSTRUCTION]) == text == stack.instruction
    again = [decode_instruction(stack.reset(seed=seed)[0][INSTRUCTION]) for seed in range(12)]
    assert again == texts


def test_a_task_may_name_some_instructions(stack: RobosuiteEnv) -> None:
    both = {one: stack.get_state() for seed in range(6) for one in [_reset(stack, seed)]}
    env = without_cameras("language_stack", instructions=[STACK[1]])
    assert [_reset(env, seed) for seed in range(4)] == [STACK[1]] * 4
    assert task_of(env.describe()) == env.task
    env.set_state(both[STACK[1]])
    before = env.get_state()
    with pytest.raises(ValueError, match="stack the red cube on the green cube"):
        env.set_state(both[STACK[0]])
    assert np.array_equal(env.get_state(), before)
    env.step(np.zeros(len(env.action_spec), np.float32))
    env.close()


def _reset(env: RobosuiteEnv, seed: int) -> str:
    env.reset(seed=seed)
    return env.instruction


def test_unknown_instructions_are_refused_in_one_line() -> None:
    with pytest.raises(
        ValueError, match="does not know 'stack the blue cube'; it knows stack the red"
    ) as told:
        without_cameras("language_stack", instructions=["stack the blue cube"])
    assert "\n" not in str(told.value)
    with pytest.raises(ValueError, match="Lift has one task"):
        RobosuiteEnv(TaskConfig(env="Lift", instructions=["lift it", "raise it"]))


def test_any_task_may_have_one_instruction() -> None:
    env = RobosuiteEnv(TaskConfig(env="Lift", instructions=["lift the cube"]))
    obs, _ = env.reset(seed=0)
    assert decode_instruction(obs[INSTRUCTION]) == "lift the cube" == env.instruction
    env.close()


@pytest.mark.parametrize("instruction", STACK)
def test_only_what_is_asked_for_is_a_success(stack: RobosuiteEnv, instruction: str) -> None:
    stack.reset(seed=1)
    assert act(stack, instruction, steps=100)
    stack.reset(seed=1)
    other = next(one for one in STACK if one != instruction)
    assert not act(stack, instruction, asked=other, steps=100)


@pytest.mark.full
@pytest.mark.parametrize("name", NAMES[1:])
def test_experts_do_what_is_asked_and_nothing_else(name: str) -> None:
    env = without_cameras(name)
    texts = env.task.instructions
    for seed, (text, other) in enumerate(zip(texts, [*texts[1:], texts[0]], strict=True)):
        env.reset(seed=seed)
        assert act(env, text)
        env.reset(seed=seed)
        assert not act(env, text, asked=other)
    env.close()


@pytest.mark.parametrize(
    "name", [name if name == NAMES[0] else pytest.param(name, marks=pytest.mark.full) for name in NAMES]
)
def test_success_needs_the_named_object(name: str) -> None:
    plain = without_cameras(name)
    env = DisturbedEnv(plain.task, "removed", 0)
    for seed in range(2):
        plain.reset(seed=seed)
        env.reset(options={"state": plain.get_state()})
        # One object along x.
        moved = env.sim.sim.data.qpos - plain.sim.sim.data.qpos
        assert moved[moved != 0] == pytest.approx([3.0])
        assert env.instruction == plain.instruction
        assert not act(env, env.instruction)
    plain.close()
    env.close()
