"""Whether two environments are one, as far as data and weights are concerned."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from robot_rl.envs.task import render_of


def check_same_environment(
    recorded: Mapping[str, Any],
    current: Mapping[str, Any],
    what: str,
    accept: tuple[str, ...] = (),
    cameras: Sequence[str] | None = None,
) -> None:
    """Refuse data or weights that were made in another environment than the one at hand.

    Patch releases of the simulators are no difference. `accept` names differences to let pass. If
    nobody will look at other images than those of `cameras`, it does not matter whether they are there.

    Raises:
        ValueError: says what differs, each with both values; of two tasks no more than their names.
    """
    then, now = recorded.get("task"), current.get("task")
    if then and now and then != now and "task" not in accept:
        raise ValueError(f"{what} was made in another environment: task was {then}, here it is {now}")
    if cameras is not None:
        recorded, current = (_seen_by(cameras, env) for env in (recorded, current))
    recorded, current = ({**env, "render": render_of(env)} for env in (recorded, current))
    differences = []
    for key in sorted(set(recorded) | set(current)):
        then, now = recorded.get(key), current.get(key)
        if key == "versions":
            then = {name: ".".join(v.split(".")[:2]) for name, v in (then or {}).items()}
            now = {name: ".".join(v.split(".")[:2]) for name, v in (now or {}).items()}
        if key in _BY_HORIZON_ALONE or then == now or key in accept:
            continue
        hint = f" (task.render={then} gives the same images)" if key == "render" and then and now else ""
        differences += [
            f"{name} was {_short(one)}, here it is {_short(other)}{hint}"
            for name, one, other in _within(key, then, now)
            if name not in accept
        ]
    if differences:
        raise ValueError(f"{what} was made in another environment: {'; '.join(differences)}")


def _seen_by(cameras: Sequence[str], environment: Mapping[str, Any]) -> dict[str, Any]:
    """A described environment as one sees it who looks at some cameras alone."""
    spec = environment["observation_spec"]
    seen = [camera for camera in cameras if camera in spec["cameras"]]
    size = spec["image_size"] if seen else None
    return {**environment, "observation_spec": {**spec, "cameras": seen, "image_size": size}}


# How long an episode may last changes neither what an observation nor what an action means.
_BY_HORIZON_ALONE = ("horizon",)


def _within(name: str, then: Any, now: Any) -> Iterator[tuple[str, Any, Any]]:
    """What differs, by dotted name: of two mappings, that which differs in them."""
    if isinstance(then, Mapping) and isinstance(now, Mapping):
        for key in sorted(then.keys() | now.keys()):
            if then.get(key) != now.get(key):
                yield from _within(f"{name}.{key}", then.get(key), now.get(key))
    else:
        yield name, then, now


def _short(value: Any) -> str:
    text = str(value)
    return text if len(text) <= 160 else text[:157] + "…"
