"""Checks that data or weights fit the current environment."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from robot_rl.envs.task import render_of


def check_same_environment(
    recorded: Mapping[str, Any],
    current: Mapping[str, Any],
    what: str,
    accept: tuple[str, ...] = (),
    cameras: Sequence[str] | None = None,
) -> None:
    """Check that data or weights were made in the current environment.

    Patch releases of the simulators and the order of cameras do not count as a difference.

    Args:
        recorded: description of the environment that the data or weights were made in.
        current: description of the current environment.
        what: name of the data or weights in the error message.
        accept: keys that may differ.
        cameras: the only cameras whose images will be used; None for all.

    Raises:
        ValueError: if they differ; names each difference with both values, or the two tasks alone.
    """
    then, now = recorded.get("task"), current.get("task")
    if then and now and then != now and "task" not in accept:
        raise ValueError(f"{what} was made in another environment: task was {then}, here it is {now}")
    if cameras is not None:
        recorded, current = (_seen_by(cameras, env) for env in (recorded, current))
    recorded, current = (_comparable(env) for env in (recorded, current))
    differences = []
    for key in sorted(set(recorded) | set(current)):
        then, now = recorded.get(key), current.get(key)
        if key == "versions":
            then = {name: ".".join(v.split(".")[:2]) for name, v in (then or {}).items()}
            now = {name: ".".join(v.split(".")[:2]) for name, v in (now or {}).items()}
        if key in _IGNORED or then == now or key in accept:
            continue
        hint = f" (task.render={then} gives the same images)" if key == "render" and then and now else ""
        differences += [
            f"{name} was {_short(one)}, here it is {_short(other)}{hint}"
            for name, one, other in _within(key, then, now)
            if name not in accept
        ]
    if differences:
        raise ValueError(f"{what} was made in another environment: {'; '.join(differences)}")


def _comparable(environment: Mapping[str, Any]) -> dict[str, Any]:
    """An environment description with its renderer, and its cameras, which are read by name, in one order."""
    same = {**environment, "render": render_of(environment)}
    spec = environment.get("observation_spec")
    # What was read from a file may be anything.
    cameras = spec.get("cameras") if isinstance(spec, Mapping) else None
    if spec and isinstance(cameras, Sequence):
        same["observation_spec"] = {**spec, "cameras": sorted(cameras, key=str)}
    return same


def _seen_by(cameras: Sequence[str], environment: Mapping[str, Any]) -> dict[str, Any]:
    """An environment description restricted to some cameras."""
    spec = environment["observation_spec"]
    seen = [camera for camera in cameras if camera in spec["cameras"]]
    size = spec["image_size"] if seen else None
    return {**environment, "observation_spec": {**spec, "cameras": seen, "image_size": size}}


OF_A_SCENE: Final = ("task", "env", "env_args", "state_layout", "model_seed", "randomize")
"""What differs between scenes in which one policy can act: objects, named by instructions, and appearance."""
# These change the meaning of neither observations nor actions.
_IGNORED = ("horizon", "instructions", "other_instructions", "scene_instructions")


def same_scene(environments: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """Those environment descriptions that are of the same scene as the first."""
    return [one for one in environments if one.get("env") == environments[0].get("env")]


def all_instructions(environments: Sequence[Mapping[str, Any]]) -> dict[str, list[str]]:
    """The instructions of all environment descriptions, each once, as entries of a description of them all.

    `instructions` has those of the first one's scene, `other_instructions` those of other scenes; an entry
    without any is left out.
    """
    mine = [text for one in same_scene(environments) for text in one.get("instructions", [])]
    names = ("instructions", "other_instructions")
    every = [text for one in environments for name in names for text in one.get(name, [])]
    found = {names[0]: list(dict.fromkeys(mine)), names[1]: list(dict.fromkeys(every))}
    found[names[1]] = [text for text in found[names[1]] if text not in mine]
    return {name: texts for name, texts in found.items() if texts}


def _within(name: str, then: Any, now: Any) -> Iterator[tuple[str, Any, Any]]:
    """Differing values by dotted name, recursively for mappings."""
    if isinstance(then, Mapping) and isinstance(now, Mapping):
        for key in sorted(then.keys() | now.keys()):
            if then.get(key) != now.get(key):
                yield from _within(f"{name}.{key}", then.get(key), now.get(key))
    else:
        yield name, then, now


def _short(value: Any) -> str:
    text = str(value)
    return text if len(text) <= 160 else text[:157] + "…"
