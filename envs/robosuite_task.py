"""Builds robosuite's environment for a task and fills in defaults: robots, horizon, state keys."""

import inspect
from collections.abc import Iterator
from dataclasses import replace
from typing import Any, Final

import robosuite
from robosuite.controllers import (
    ALL_PART_CONTROLLERS,
    load_composite_controller_config,
    load_part_controller_config,
)
from robosuite.environments.base import REGISTERED_ENVS
from robosuite.environments.manipulation.two_arm_env import TwoArmEnv
from robosuite.robots import ROBOT_CLASS_MAPPING

from robot_rl.envs.current_sensors import use_current_sensors
from robot_rl.envs.external.simulators import simulator_of
from robot_rl.envs.instruction import encode_instruction
from robot_rl.envs.language_scenes import LANGUAGE_SCENES
from robot_rl.envs.task import PHYSICS_HZ, TaskConfig

_PROPRIO: Final = ("eef_pos", "eef_quat", "gripper_qpos", "contact", "base_pos", "base_quat")
"""Suffixes of a robot's observables that are part of the default state."""
_RESERVED: Final = frozenset(
    (
        "robots",
        "controller_configs",
        "control_freq",
        "has_renderer",
        "has_offscreen_renderer",
        "use_camera_obs",
    )
) | {"camera_names", "camera_heights", "camera_widths", "ignore_done", "hard_reset", "seed"}
"""Arguments of robosuite that other fields of a task or this program set."""
_IMAGES: Final = ("image", "depth")
"""Modalities that are not part of a state."""


def make_sim(task: TaskConfig) -> tuple[Any, TaskConfig]:
    """Build robosuite's environment, with reward 1 at success, and fill in the task's defaults.

    Raises:
        ValueError: if robosuite has no such environment or robot, they do not fit together, or a value of
            `env_args` has a wrong type.
    """
    kind = _kind(task)
    robots = list(task.robots) or (["Panda", "Panda"] if issubclass(kind, TwoArmEnv) else ["Panda"])
    task = replace(task, robots=robots, instructions=_instructions(task))
    _check_control_freq(task)
    _check_robots(task)
    _check_arguments(task)
    with_cameras = bool(task.cameras) and task.render == "robosuite"
    options = dict(
        robots=robots,
        controller_configs=[_controllers(task, robot) for robot in robots],
        control_freq=task.control_freq,
        has_renderer=False,
        has_offscreen_renderer=with_cameras,
        use_camera_obs=with_cameras,
        camera_names=list(task.cameras) or "agentview",
        camera_heights=task.image_size[0],
        camera_widths=task.image_size[1],
        ignore_done=True,
        hard_reset=False,
        seed=task.model_seed,
        **task.env_args,
    )
    try:
        sim = robosuite.make(task.env, **options)
    except (TypeError, AttributeError, IndexError, AssertionError) as error:
        if not task.env_args:
            raise
        # robosuite does not check the types of its arguments.
        raise ValueError(
            f"task.env_args={task.env_args}: {task.env} cannot be built with these values "
            f"({type(error).__name__}: {error})"
        ) from error
    if getattr(sim, "single_object_mode", 0) == 1:
        raise ValueError(
            f"task {task.name!r}: {task.env} draws another object in each episode, and with it what is "
            "observed; choose the environment of one object, as PickPlaceCan or NutAssemblySquare"
        )
    use_current_sensors(sim)
    _use_sparse_reward(sim)
    keys = list(task.state_keys) or list(_default_state_keys(sim))
    return sim, replace(task, horizon=task.horizon or int(sim.horizon), state_keys=keys)


def _kind(task: TaskConfig) -> Any:
    if simulator := simulator_of(task.env):
        raise ValueError(
            f"task {task.name!r} runs in {simulator.name}'s own process: what was asked for needs the "
            "model of a simulation in this one"
        )
    if task.env not in REGISTERED_ENVS:
        raise ValueError(
            f"task {task.name!r}: robosuite has no environment {task.env!r}; "
            f"it has {', '.join(sorted(REGISTERED_ENVS))}; one of your own is registered by a module of "
            "plugins=[…]"
        )
    return REGISTERED_ENVS[task.env]


def _check_control_freq(task: TaskConfig) -> None:
    if PHYSICS_HZ % task.control_freq:
        # robosuite would shorten each step, and its sensors, which have the full period, would miss some.
        rates = [str(rate) for rate in range(1, PHYSICS_HZ + 1) if PHYSICS_HZ % rate == 0]
        raise ValueError(
            f"task.control_freq={task.control_freq}: a control step is no whole number of the "
            f"{PHYSICS_HZ} steps per second of robosuite's physics; choose one of {', '.join(rates)}"
        )


def _check_robots(task: TaskConfig) -> None:
    for robot in task.robots:
        if robot not in ROBOT_CLASS_MAPPING:
            known = ", ".join(sorted(ROBOT_CLASS_MAPPING))
            raise ValueError(f"task.robots: robosuite has no robot {robot!r}; it has {known}")
    most = 2 if issubclass(REGISTERED_ENVS[task.env], TwoArmEnv) else 1
    if len(task.robots) > most:
        wanted = "one robot with two arms, or two" if most == 2 else "one robot"
        raise ValueError(f"task.robots={task.robots}: {task.env} is for {wanted}")


def _check_arguments(task: TaskConfig) -> None:
    if task.controller not in ALL_PART_CONTROLLERS:
        raise ValueError(
            f"task.controller={task.controller}: robosuite has {', '.join(sorted(ALL_PART_CONTROLLERS))}; "
            "task.input_type=absolute makes poses of deltas"
        )
    if taken := sorted(_RESERVED & task.env_args.keys()):
        raise ValueError(f"task.env_args: {', '.join(taken)}: a task says it otherwise; leave it out")
    known = _arguments(_kind(task)) - _RESERVED
    if unknown := sorted(task.env_args.keys() - known):
        raise ValueError(
            f"task.env_args: {task.env} takes no {', '.join(unknown)}; it takes {', '.join(sorted(known))}"
        )


def _instructions(task: TaskConfig) -> list[str]:
    """The instructions among which a reset draws: those of the task, or all of a scene."""
    for text in task.instructions:
        encode_instruction(text)
    if len(set(task.instructions)) < len(task.instructions):
        raise ValueError(f"task.instructions={task.instructions}: one is named twice")
    if task.env not in LANGUAGE_SCENES:
        if len(task.instructions) > 1:
            raise ValueError(
                f"task.instructions: {task.env} has one task, whatever it is called; give one instruction, "
                f"or take a scene with several: {', '.join(sorted(LANGUAGE_SCENES))}"
            )
        return list(task.instructions)
    known = LANGUAGE_SCENES[task.env].INSTRUCTIONS
    if unknown := [text for text in task.instructions if text not in known]:
        raise ValueError(
            f"task.instructions: {task.env} does not know {unknown[0]!r}; it knows {'; '.join(known)}"
        )
    return list(task.instructions or known)


def _arguments(kind: Any) -> set[str]:
    """Names of the constructor arguments of a class; one with `**kwargs` also takes those of its base."""
    known: set[str] = set()
    for one in kind.__mro__:
        parameters = inspect.signature(one.__init__).parameters.values()
        known |= {each.name for each in parameters if each.kind is each.POSITIONAL_OR_KEYWORD}
        if not any(each.kind is each.VAR_KEYWORD for each in parameters):
            break
    return known - {"self"}


def _controllers(task: TaskConfig, robot: str) -> dict[str, Any]:
    """The robot's own controller configuration with the task's arm controller in it."""
    config = load_composite_controller_config(robot=robot)
    assert config is not None
    for part in ("right", "left"):
        if part in config["body_parts"] and config["body_parts"][part]["type"] != task.controller:
            arm = load_part_controller_config(default_controller=task.controller)
            config["body_parts"][part] = {**arm, "gripper": {"type": "GRIP"}}
        if part in config["body_parts"] and task.input_type == "absolute":
            if not task.controller.startswith("OSC"):
                raise ValueError(
                    f"task.input_type=absolute is for OSC_POSE and OSC_POSITION, not {task.controller}"
                )
            config["body_parts"][part] |= {"input_type": "absolute", "input_ref_frame": "base"}
    return config


def _use_sparse_reward(sim: Any) -> None:
    """Make the reward 1 at success, else 0.

    Wipe updates in its own reward what has been wiped, and a user's environment may do the like. So
    their rewards are computed too. Those of robosuite's other environments have no side effects.
    """
    kind = type(sim)
    own = kind.reward
    if kind.__module__.startswith("robosuite.") and kind.__name__ != "Wipe":
        sim.reward = lambda action: float(sim._check_success())
        return

    def reward(action: Any) -> float:
        own(sim, action)
        return float(sim._check_success())

    sim.reward = reward


def _default_state_keys(sim: Any) -> Iterator[str]:
    """Default state: observables of hands and grippers, then all of the scene except images."""
    robots = tuple(f"{robot.robot_model.naming_prefix}proprio" for robot in sim.robots)
    known = [(name, one) for name, one in sim._observables.items() if one.is_enabled() and one.is_active()]
    for name, observable in known:
        if observable.modality in robots and name.endswith(_PROPRIO):
            yield name
    for name, observable in known:
        if observable.modality not in (*robots, *_IMAGES) and not name.endswith(_IMAGES):
            yield name
