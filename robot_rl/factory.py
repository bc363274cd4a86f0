"""Builds environments from the names and configurations of tasks."""

import os
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from robot_rl.cli.compose import load_group
from robot_rl.envs.external.env import ExternalEnv
from robot_rl.envs.external.simulators import simulator_of
from robot_rl.envs.process_vector import ProcessVectorEnv
from robot_rl.envs.robosuite_env import RobosuiteEnv
from robot_rl.envs.robot_task import NO_SIMULATION
from robot_rl.envs.task import TaskConfig, render_of
from robot_rl.envs.task_env import TaskEnv
from robot_rl.envs.vector import TaskVectorEnv, ThreadVectorEnv

_NO_SIMULATION = (
    "the task {task} is of a real robot, and not simulated: `robot-rl deploy` measures a policy on the robot"
)


def make_env(task: TaskConfig | str, *, observe_all: bool = False) -> TaskEnv:
    """One environment of a task, by its configuration or by its name in `configs/task/`.

    `observe_all` also keeps raw observations that are not part of the task's state.
    """
    config = load_group("task", task, TaskConfig) if isinstance(task, str) else task
    if simulator := simulator_of(config.env):
        return ExternalEnv(simulator, config, observe_all=observe_all)
    return make_robosuite_env(config, observe_all=observe_all)


def make_robosuite_env(task: TaskConfig | str, *, observe_all: bool = False) -> RobosuiteEnv:
    """As `make_env`, for a task in robosuite."""
    config = load_group("task", task, TaskConfig) if isinstance(task, str) else task
    if config.env == NO_SIMULATION:
        raise ValueError(_NO_SIMULATION.format(task=config.name))
    return RobosuiteEnv(config, observe_all=observe_all)


def make_vector_env(
    task: TaskConfig | str, num_envs: int, kind: Callable[[TaskConfig], RobosuiteEnv] = RobosuiteEnv
) -> TaskVectorEnv:
    """`num_envs` environments of a task, stepped together; `kind` makes each.

    They run in threads. If the control loop cannot be compiled, it would block other threads, so they run in
    processes, each of which loads robosuite. The results are the same. Each of another
    simulator runs in its own process, and threads step them.
    """
    config = load_group("task", task, TaskConfig) if isinstance(task, str) else task
    if kind is RobosuiteEnv and simulator_of(config.env):
        return ThreadVectorEnv([partial(make_env, config)] * num_envs)
    make = partial(kind, config)
    first = make()
    if first.control or min(num_envs, os.cpu_count() or 1) == 1:
        return ThreadVectorEnv([lambda: first, *[make] * (num_envs - 1)])
    first.close()
    return ProcessVectorEnv([make] * num_envs)


def task_of(environment: Mapping[str, Any]) -> TaskConfig:
    """The task of an environment description, as datasets and policies store it.

    Raises:
        ValueError: if it is of a real robot.
    """
    if "env" not in environment:
        raise ValueError(_NO_SIMULATION.format(task=environment["task"]))
    spec, robots = environment["observation_spec"], environment["robot"]
    return TaskConfig(
        name=environment["task"],
        env=environment["env"],
        robots=[robots] if isinstance(robots, str) else list(robots),
        controller=environment["controller"],
        input_type=environment.get("input_type", "delta"),
        control_freq=environment["control_freq"],
        horizon=environment["horizon"],
        instructions=list(environment.get("instructions", [])),
        model_seed=environment["model_seed"],
        state_keys=list(spec["state_keys"]),
        cameras=list(spec["cameras"]),
        image_size=list(spec["image_size"]),
        render=render_of(environment) or TaskConfig.render,
        randomize=list(environment.get("randomize", [])),
        env_args=dict(environment["env_args"]),
    )
