"""What an operator is told at the beginning and at the end."""

from dataclasses import replace
from typing import Any

import pytest

from robot_rl.cli.compose import compose, load_group
from robot_rl.cli.main import load_command
from robot_rl.envs.task import TaskConfig
from robot_rl.robot.teleop.screen import task_words


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({}, []),
        (
            {"cameras": ["agentview", "robot0_eye_in_hand"], "image_size": [256, 256]},
            ["task.cameras=[agentview,robot0_eye_in_hand]", "task.image_size=[256,256]"],
        ),
        ({"render": "robosuite", "control_freq": 10}, ["task.control_freq=10", "task.render=robosuite"]),
    ],
)
def test_the_suggested_command_means_the_task_that_was_served(
    changes: dict[str, Any], words: list[str]
) -> None:
    task = replace(load_group("task", "lift", TaskConfig), **changes)
    found = task_words(task)
    assert found == ["task=lift", *words]
    config = compose(load_command("data derive"), ["raw=x", "out=y", *found])
    assert config.task == task


def test_a_task_without_a_file_is_named_by_its_environment() -> None:
    task = TaskConfig(env="Wipe", cameras=["agentview"])
    found = task_words(task)
    config = compose(load_command("data derive"), ["raw=x", "out=y", *found])
    assert config.task == task
