"""Imports robomimic's HDF5 file: restores one that this program exported, converts one of another program.

For another program's file, observations are made from its saved states in this program's environment. An
episode ends at its first success; later steps are cut and counted.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final
from xml.etree import ElementTree

import numpy as np
from numpy.typing import NDArray

from robot_rl.data.episode_notes import without_notes
from robot_rl.data.formats.robomimic.exporter import flat_size
from robot_rl.data.formats.robomimic.file import (
    IMAGE,
    MADE,
    OWN,
    RobomimicFile,
    array,
    attribute,
    group,
    missing_actions,
    numbers,
)
from robot_rl.data.raw.steps import single
from robot_rl.data.writer import DatasetWriter, Episode
from robot_rl.envs.observation import IMAGE_PREFIX
from robot_rl.envs.playback_start import go_to_flattened
from robot_rl.envs.robosuite_actions import base_rotations
from robot_rl.envs.robosuite_env import RobosuiteEnv

REBUILT: Final = "rebuilt from time, positions and velocities"
Show = Callable[[int], None]


@dataclass
class Imported:
    """Result of an import."""

    episodes: int = 0
    steps: int = 0
    cut: dict[str, int] = field(default_factory=dict)
    """Steps after the first success, by demonstration."""


def import_own(file: RobomimicFile, out: Path, show: Show) -> Imported:
    """Restore the dataset from which a file was exported.

    Raises:
        ValueError: if something was removed from the file or is damaged.
    """
    own = file.own
    assert own is not None
    demos = file.demos
    known = {name: file.own_of(demo) for name, demo in demos.items()}
    numbers = [int(known[name]["number"]) for name in demos]
    writer = DatasetWriter(out, own["environment"], _picked(own["collection"], numbers), durable=False)
    for name, demo in demos.items():
        if problem := missing_actions(demo):
            raise ValueError(f"{file.path}: {problem}")
        if missing := {OWN, "obs", "rewards"} - demo.keys():
            raise ValueError(f"{file.path}: {demo.name} lacks {', '.join(sorted(missing))}")
        episode: dict[str, Any] = {"applied_action": array(demo, "actions"), "reward": array(demo, "rewards")}
        more, observed = group(demo, OWN), group(demo, "obs")
        episode |= {key: array(more, key) for key in more}
        for key in observed.keys() - set(own.get(MADE, ())):
            here = IMAGE_PREFIX + key.removesuffix(IMAGE) if key.endswith(IMAGE) else key
            episode[here] = array(observed, key)
        writer.append(episode, success=bool(known[name]["success"]), seed=int(known[name]["seed"]))
        show(writer.num_episodes)
    return Imported(writer.num_episodes, writer.num_steps)


def import_foreign(
    file: RobomimicFile, out: Path, env: RobosuiteEnv, accept: Sequence[str], show: Show
) -> Imported:
    """Write a dataset from another program's file.

    Args:
        file: file with robosuite's states.
        out: path of the dataset.
        env: environment of the task that it was made in, with `observe_all`.
        accept: names of differences between the file's environment and this one to accept.
        show: called with the number of episodes written.

    Raises:
        ValueError: if the file lacks something, or was made in another environment; says what.
    """
    environment = env.describe()
    check_environment(file, environment, accept)
    _check_frame(file, env)
    demos = file.demos
    if not demos:
        raise ValueError(f"{file.path} has no demonstration (data/demo_0, demo_1, …)")
    problems = [problem for demo in demos.values() for problem in _problems(demo, env)]
    if problems:
        more = f", and {len(problems) - 3} more like it" if len(problems) > 3 else ""
        raise ValueError(f"{file.path}: {'; '.join(problems[:3])}{more}")
    reverse: dict[str, list[str]] = {}
    for key, names in file.masks.items():
        for name in names:
            reverse.setdefault(name, []).append(key)
    made = Imported()
    told = {"format": "robomimic", "file": file.path.name, "env_args": file.environment}
    collection: dict[str, Any] = {"converted": told, "states": REBUILT, "episodes": []}
    writer = DatasetWriter(out, environment, collection, durable=False)
    for name, demo in demos.items():
        episode, success, cut = _episode(demo, env, in_world=_in_world(file.environment))
        if cut:
            made.cut[name] = cut
        writer.append(episode, success=success, seed=int(name.rpartition("_")[2]))
        note = {"demo": name, "cut": cut, "filter_keys": reverse.get(name, [])}
        collection["episodes"].append({key: value for key, value in note.items() if value})
        show(writer.num_episodes)
    writer.describe(environment, collection)
    made.episodes, made.steps = writer.num_episodes, writer.num_steps
    return made


def check_environment(file: RobomimicFile, environment: Mapping[str, Any], accept: Sequence[str]) -> None:
    """Check that a file was made in the described environment.

    Raises:
        ValueError: if they differ; names each difference with both values.
    """
    told = file.environment
    kwargs = told["env_kwargs"]
    robots = robots_of(told)
    robot = (robots[0] if len(robots) == 1 else robots) if robots else environment["robot"]
    pairs: dict[str, tuple[Any, Any]] = {
        "env": (told["env_name"], environment["env"]),
        "robot": (robot, environment["robot"]),
        "control_freq": (kwargs.get("control_freq", 20), environment["control_freq"]),
    }
    arm = _arm(kwargs.get("controller_configs"))
    if arm:
        scales = [dim["scale"] for dim in environment["action_spec"] if dim["kind"] != "gripper"]
        pairs["controller"] = arm.get("type"), environment["controller"]
        pairs["input_type"] = input_type(told), environment.get("input_type", "delta")
        largest = arm.get("output_max") if pairs["input_type"] == ("delta", "delta") else None
        if largest is not None:
            values = largest if isinstance(largest, list) else [largest]
            # The file has them for one arm.
            values = values * (len(scales) // max(1, len(values)))
            try:
                pairs["action_spec"] = [float(value) for value in values[: len(scales)]], scales
            except (TypeError, ValueError) as error:
                raise ValueError(f"{file.path}: output_max of its controller holds no numbers") from error
    differing = [
        f"{key} was {then}, here it is {now}"
        for key, (then, now) in pairs.items()
        if then != now and key not in accept
    ]
    if differing:
        raise ValueError(f"{file.path} was made in another environment: {'; '.join(differing)}")


def robots_of(told: Mapping[str, Any]) -> list[str]:
    """Robots in a file's `env_args`; empty if it names none."""
    robots = told["env_kwargs"].get("robots", [])
    return [str(robot) for robot in (robots if isinstance(robots, list) else [robots])]


def input_type(told: Mapping[str, Any]) -> str:
    """Whether the actions of a file are `delta` or `absolute`, from its `env_args`."""
    arm = _arm(told["env_kwargs"].get("controller_configs"))
    absolute = not arm.get("control_delta", True) or arm.get("input_type", "delta") != "delta"
    return "absolute" if absolute else "delta"


def _in_world(told: Mapping[str, Any]) -> bool:
    """Whether absolute actions are in the world frame: robosuite before 1.5 names no frame."""
    return _arm(told["env_kwargs"].get("controller_configs")).get("input_ref_frame", "world") == "world"


def _check_frame(file: RobomimicFile, env: RobosuiteEnv) -> None:
    """Raises ValueError if the file's deltas are in another frame, whose axes are not parallel."""
    frames = {dim.frame for dim in env.action_spec if dim.kind == "delta" and dim.frame in ("world", "base")}
    theirs = "world" if _in_world(file.environment) else "base"
    turned = [not np.allclose(rotation, np.eye(3), atol=1e-6) for rotation in base_rotations(env.sim)]
    if frames - {theirs} and any(turned):
        raise ValueError(
            f"{file.path}: its actions are in the frame {theirs!r}, the task's in {frames.pop()!r}, and "
            "the arms' bases are turned: convert the actions first"
        )


def _problems(demo: Any, env: RobosuiteEnv) -> list[str]:
    if problem := missing_actions(demo):
        return [problem]
    found = []
    number, size = numbers(demo, "actions").shape
    if size != env.sim.action_dim:
        found.append(f"{demo.name}/actions has {size} numbers a step, the task {env.sim.action_dim}")
    if "states" not in demo:
        found.append(f"{demo.name}/states is missing: robosuite's flattened states are needed")
    elif (shape := numbers(demo, "states").shape) != (number, flat_size(env)):
        wanted = [number, flat_size(env)]
        found.append(f"{demo.name}/states is {list(shape)}, the task's model has {wanted}")
    if "model_file" in demo.attrs:
        theirs, ours = _joints(str(attribute(demo, "model_file"))), _joints(env.sim.sim.model.get_xml())
        if theirs != ours:
            found.append(
                f"{demo.name}: its model has other joints than the task's: {', '.join(sorted(theirs ^ ours))}"
            )
    known = [name for name in ("actions", "states") if name in demo]
    broken = [name for name in known if not np.isfinite(array(demo, name)).all()]
    return found + [f"{demo.name}/{name} has NaN or infinity" for name in broken]


def _episode(demo: Any, env: RobosuiteEnv, *, in_world: bool) -> tuple[Episode, bool, int]:
    """Arrays of an episode, whether it succeeded, and the number of steps cut after the success."""
    actions, states = array(demo, "actions").astype(np.float32), array(demo, "states")
    env.reset(seed=0)
    if env.poses:
        actions = env.poses.of_commands(array(demo, "actions"), in_world=in_world)
    rows: dict[str, list[Any]] = {}
    success_at: int | None = None
    for step, state in enumerate(states):
        go_to_flattened(env.sim, state, step)
        if step and env.succeeds():
            success_at = step - 1
            break
        raw = dict(env.sense())
        for key, value in {**raw, "sim_state": env.get_state()}.items():
            rows.setdefault(key, []).append(np.array(value))
    if success_at is None:
        # The file does not hold the state after the last action.
        *_, info = env.step(actions[len(states) - 1])
        success_at = len(states) - 1 if info["success"] else None
    length = len(rows["sim_state"])
    arrays = {key: np.stack(values) for key, values in rows.items()}
    arrays = {key: values if key == "sim_state" else single(values) for key, values in arrays.items()}
    ends = np.arange(length) == length - 1
    success = success_at is not None
    episode = {
        **arrays,
        **_stored_images(demo, env, length),
        "action": actions[:length],
        "applied_action": np.clip(actions[:length], -1.0, 1.0),
        "reward": (ends & success).astype(np.float32),
        "terminated": ends & success,
        "truncated": ends & (not success),
    }
    return episode, success, len(actions) - length


def _stored_images(demo: Any, env: RobosuiteEnv, length: int) -> dict[str, NDArray[np.uint8]]:
    """Images from the file, if the task renders in the same way and size."""
    spec = env.observation_spec
    if env.task.render != "robosuite" or "obs" not in demo:
        return {}
    found = {}
    observed = group(demo, "obs")
    for camera in spec.cameras:
        key = f"{camera}{IMAGE}"
        if key in observed and numbers(observed, key).shape[1:] == (*spec.image_size, 3):
            found[IMAGE_PREFIX + camera] = array(observed, key)[:length].astype(np.uint8)
    return found


def _picked(collection: Mapping[str, Any], numbers: Sequence[int]) -> dict[str, Any]:
    """Collection metadata for these episodes alone, in this order."""
    notes = collection.get("episodes") or collection.get("recorded", {}).get("episodes")
    if notes is None or list(numbers) == list(range(len(notes))):
        return dict(collection)
    if unknown := [number for number in numbers if not 0 <= number < len(notes)]:
        raise ValueError(f"its collection knows {len(notes)} episodes, and not number {unknown[0]}")
    return {**without_notes(collection), "episodes": [notes[number] for number in numbers]}


def _arm(config: Any) -> Mapping[str, Any]:
    """The arm's part of a controller configuration, from any version of robosuite."""
    if isinstance(config, list):
        config = config[0] if config else None
    if not isinstance(config, Mapping):
        return {}
    parts = config.get("body_parts")
    if not isinstance(parts, Mapping):
        return config
    parts = parts.get("arms", parts)
    arm = parts.get("right", {}) if isinstance(parts, Mapping) else {}
    return arm if isinstance(arm, Mapping) else {}


def _joints(model: str) -> set[str]:
    try:
        tree = ElementTree.fromstring(model)
    except ElementTree.ParseError as error:
        raise ValueError(f"a demonstration's model_file is no XML ({error})") from error
    return {
        str(joint.get("name"))
        for kind in ("joint", "freejoint")
        for joint in tree.iter(kind)
        if joint.get("name")
    }
