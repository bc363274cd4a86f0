"""Lists of initial states: saved and loaded bit-identically, splits, refusals."""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from safetensors import safe_open
from safetensors.numpy import save_file

from robot_rl.cli.compose import load_group
from robot_rl.envs.task import TaskConfig
from robot_rl.evaluation.initial_states import (
    COUNTS,
    Split,
    load_states,
    make_states,
    save_states,
    split_seeds,
)
from robot_rl.factory import make_robosuite_env

ENVIRONMENT = {"task": "lift", "controller": "OSC_POSE"}


def env(**changes: Any) -> Any:
    return SimpleNamespace(
        task=SimpleNamespace(name="lift", env="Lift"), describe=lambda: {**ENVIRONMENT, **changes}
    )


def some() -> np.ndarray:
    states = np.random.default_rng(0).normal(size=(6, 9))
    states[:, [0, 4, 8]] = [1.0, 0.1 + 0.2, 0.0]  # most of a state is the same in all
    states[3, 8] = -0.0
    return states


@pytest.mark.parametrize(
    "states", [some(), some()[:1], np.zeros((4, 3))], ids=["many", "one", "all the same"]
)
def test_saved_states_are_loaded_bit_identically(tmp_path: Path, states: np.ndarray) -> None:
    save_states(tmp_path / "new" / "list.safetensors", states, ENVIRONMENT)
    loaded = load_states(env(), tmp_path / "new" / "list.safetensors")
    assert loaded.states.tobytes() == states.tobytes()
    assert (loaded.task, loaded.name) == ("lift", "list.safetensors")


def test_hash_differs_between_different_lists(tmp_path: Path) -> None:
    hashes = []
    for i, states in enumerate((some(), some(), some()[::-1].copy())):
        save_states(tmp_path / f"{i}", states, ENVIRONMENT)
        hashes.append(load_states(env(), tmp_path / f"{i}").sha256)
    assert hashes[0] == hashes[1] != hashes[2]


def test_list_of_another_environment_is_refused(tmp_path: Path) -> None:
    save_states(tmp_path / "list", some(), ENVIRONMENT)
    with pytest.raises(ValueError, match=r"list of initial states .* controller was OSC_POSE, here it is X"):
        load_states(env(controller="X"), tmp_path / "list")


def test_list_does_not_depend_on_observations_or_rendering(tmp_path: Path) -> None:
    save_states(tmp_path / "list", some(), {**ENVIRONMENT, "observation_spec": {"cameras": []}})
    seeing = env(observation_spec={"cameras": ["agentview"]}, render="quick")
    assert len(load_states(seeing, tmp_path / "list").states) == len(some())


def test_the_list_of_a_task_is_also_the_one_of_absolute_actions() -> None:
    lift = load_group("task", "lift", TaskConfig)
    moved = []
    for task in (lift, replace(lift, input_type="absolute")):
        env = make_robosuite_env(task)
        states = load_states(env).states[:3]
        for state in states:
            env.reset(options={"state": state})
            still = np.zeros(7)
            env.step(env.poses.of_deltas(still) if env.poses else still)
            moved.append(env.get_state())
        env.close()
    np.testing.assert_allclose(moved[:3], moved[3:], atol=1e-4)  # poses are float32


@pytest.mark.parametrize(
    "damage",
    [
        lambda path: path.write_bytes(path.read_bytes()[:-30]),
        lambda path: path.write_text("not a list"),
        lambda path: save_file({"x": np.zeros(3)}, path),
        lambda path: save_file({"x": np.zeros(3)}, path, metadata={"environment": "{"}),
    ],
)
def test_damaged_list_is_refused(tmp_path: Path, damage: Callable[[Path], object]) -> None:
    save_states(tmp_path / "list", some(), ENVIRONMENT)
    damage(tmp_path / "list")
    with pytest.raises(ValueError, match="is not a list of initial states"):
        load_states(env(), tmp_path / "list")


def test_missing_list_is_refused_with_the_command_that_makes_it(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="robot-rl states task=lift"):
        load_states(env(), tmp_path / "none")


def test_equal_columns_are_stored_once(tmp_path: Path) -> None:
    states = some()
    save_states(tmp_path / "list", np.concatenate([states, states], axis=1), ENVIRONMENT)
    with safe_open(tmp_path / "list", framework="numpy") as file:
        assert file.get_tensor("varying").shape == (6, 7)


def test_older_lists_with_repeated_columns_are_read(tmp_path: Path) -> None:
    """The format without deduplicated columns."""
    states = some()
    varying = np.array([1, 2, 3, 5, 6, 7, 8])
    parts = {
        "first": states[0],
        "varying_columns": varying,
        "varying": np.ascontiguousarray(states[:, varying]),
    }
    save_file(parts, tmp_path / "list", metadata={"environment": json.dumps(ENVIRONMENT)})
    assert load_states(env(), tmp_path / "list").states.tobytes() == states.tobytes()


def test_splits_have_no_seed_in_common() -> None:
    validation, test = split_seeds("validation", 10**9), split_seeds("test", 10**9)
    assert validation.stop <= test.start
    assert validation.start > 2**32  # those of training are 32-bit hashes


@pytest.mark.parametrize("split", ["validation", "test"])
def test_shipped_list_equals_resets_with_its_seeds(split: Split) -> None:
    """Up to rounding, since the last bits can differ between machines."""
    lift = make_robosuite_env("lift")
    shipped = load_states(lift, split=split)
    assert (shipped.split, len(shipped.states)) == (split, COUNTS[split])
    made = make_states(lift, split_seeds(split, 3))
    np.testing.assert_allclose(made, shipped.states[:3], atol=1e-6)
    assert len(np.unique(made, axis=0)) == 3
    lift.set_state(shipped.states[7])
    np.testing.assert_array_equal(lift.get_state(), shipped.states[7])
    lift.close()


def test_list_of_a_user_has_no_split(tmp_path: Path) -> None:
    save_states(tmp_path / "list", some(), ENVIRONMENT)
    assert load_states(env(), tmp_path / "list").split is None
