"""Data quality measures of episodes, and anomalies found from them."""

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from robot_rl.data.dataset import Dataset
from robot_rl.data.raw.steps import AGE
from robot_rl.envs.action import ActionSpec

SATURATED: Final = 0.99
"""Absolute value from which an action counts as saturated."""
STILL: Final = 0.02
"""Absolute value below which an action counts as idle, and change below which a gripper's does."""
_STILL_POSE: Final = 1e-3
"""Change per step below which an absolute action counts as idle: 1.5 mm of a hand's pose."""
_LATE: Final = 1.5
"""Control periods after which an image is old."""


@dataclass(frozen=True)
class Measures:
    """Quality measures of one episode. Shares are fractions of its steps, in [0, 1]."""

    steps: int
    saturated: tuple[float, ...]
    """By dimension: share of steps with a saturated requested action; 0 for grippers and absolute actions."""
    changed: float
    """Share of steps whose applied action differs from the requested one."""
    idle: float
    """Share of steps without motion of arm and gripper."""
    idle_begin: int
    """Number of idle steps at the beginning."""
    idle_end: int
    """Number of idle steps at the end."""
    grips: int
    """Number of switches of the gripper command between opening and closing."""
    repeated: Mapping[str, float]
    """By camera: share of moving steps whose image equals the previous one."""
    old: Mapping[str, float]
    """By source: share of steps in which its data is older than one and a half control periods."""
    lost: int
    """Messages that the recording lacks."""
    bridged: bool
    """Whether the last known data stands in for missing data."""
    content: str
    """Digest, equal for episodes with equal actions and states."""


def measure(
    dataset: Dataset,
    arrays: Mapping[str, NDArray[Any]],
    same: Mapping[str, NDArray[np.bool_]],
    note: Mapping[str, Any],
) -> Measures:
    """Compute the measures of one episode.

    Args:
        dataset: dataset of the episode.
        arrays: arrays of the episode, without images.
        same: by camera, whether each step's image equals the previous one, [T].
        note: metadata of the episode.
    """
    spec = dataset.action_spec
    asked, applied = arrays["action"].astype(np.float64), arrays["applied_action"].astype(np.float64)
    still = _still(applied, spec)
    grips = [i for i, dim in enumerate(spec) if dim.kind == "gripper"]
    at_end = np.abs(asked) >= SATURATED
    at_end[:, [dim.kind != "delta" for dim in spec]] = False
    moving = ~still
    # The effect of an action is visible one step later.
    seen = np.concatenate([[False], moving[:-1]])
    period = 1e3 / float(dataset.environment.get("control_freq", 20))
    ages = {key.removeprefix(AGE): values for key, values in arrays.items() if key.startswith(AGE)}
    return Measures(
        steps=len(asked),
        saturated=tuple(at_end.mean(0).tolist()),
        changed=float((np.abs(asked - applied) > 1e-3).any(1).mean()),
        idle=float(still.mean()),
        idle_begin=_run(still),
        idle_end=_run(still[::-1]),
        grips=sum(_turns(applied[:, i]) for i in grips),
        repeated={camera: float((one & seen).sum() / max(1, seen.sum())) for camera, one in same.items()},
        old={name: float((age > _LATE * period).mean()) for name, age in ages.items()},
        lost=sum(note.get("lost", {}).values()),
        bridged="bridged_ms" in note,
        content=_content(dataset, arrays),
    )


def find_anomalies(episodes: Sequence[Measures], rate: float) -> list[tuple[str, list[int]]]:
    """Anomalies in a dataset: a description and the numbers of the affected episodes.

    Args:
        episodes: measures of all episodes, in order.
        rate: steps per second.
    """
    found: list[tuple[str, list[int]]] = []

    def add(what: str, numbers: Sequence[int]) -> None:
        if numbers:
            found.append((what, list(numbers)))

    def those(what: str, wrong: Sequence[bool]) -> None:
        add(what, [number for number, one in enumerate(wrong) if one])

    same: dict[str, list[int]] = {}
    for number, one in enumerate(episodes):
        same.setdefault(one.content, []).append(number)
    for numbers in same.values():
        if len(numbers) > 1:
            add("the same episode more than once", numbers)
    lengths = np.array([one.steps for one in episodes], float)
    if len(lengths) >= 8:
        low, high = np.percentile(lengths, (25, 75))
        reach = 3 * max(high - low, 1.0)
        those("much shorter than the others", (lengths < low - reach).tolist())
        those("much longer than the others", (lengths > high + reach).tolist())
    those(
        "an action at the end of its range in more than half of the steps",
        [max(e.saturated) > 0.5 for e in episodes],
    )
    those("nothing asked for in more than half of the steps", [one.idle > 0.5 for one in episodes])
    those("idle for more than 2 s at the beginning", [one.idle_begin > 2 * rate for one in episodes])
    those("idle for more than 2 s at the end", [one.idle_end > 2 * rate for one in episodes])
    for camera in sorted({camera for one in episodes for camera in one.repeated}):
        those(
            f"frozen images of {camera}: the same again in more than a fifth of the moving steps",
            [one.repeated.get(camera, 0.0) > 0.2 for one in episodes],
        )
    for name in sorted({name for one in episodes for name in one.old}):
        those(
            f"old data of {name}: by more than 1.5 steps in more than a tenth of the steps",
            [one.old.get(name, 0.0) > 0.1 for one in episodes],
        )
    those("messages were lost when it was recorded", [one.lost > 0 for one in episodes])
    those("a state, the gripper's reading or an image was missing for a while", [e.bridged for e in episodes])
    gripping = [one.grips > 0 for one in episodes]
    if any(gripping) and sum(gripping) > len(gripping) / 2:
        those("the gripper is never used", [not one for one in gripping])
    return found


def _still(actions: NDArray[np.float64], spec: ActionSpec) -> NDArray[np.bool_]:
    """[T] steps without motion and with an unchanged gripper command."""
    changes = np.abs(np.diff(actions, axis=0, prepend=actions[:1]))
    moves = np.stack(
        [np.abs(actions[:, i]) if dim.kind == "delta" else changes[:, i] for i, dim in enumerate(spec)],
        axis=1,
    )
    least = [_STILL_POSE if dim.kind == "absolute" else STILL for dim in spec]
    return np.asarray((moves < least).all(1))


def _run(flags: NDArray[np.bool_]) -> int:
    return len(flags) if flags.all() else int(np.argmin(flags))


def _turns(closing: NDArray[np.float64]) -> int:
    signs = np.sign(closing[np.abs(closing) > STILL])
    return int((np.diff(signs) != 0).sum())


def _content(dataset: Dataset, arrays: Mapping[str, NDArray[Any]]) -> str:
    whole = hashlib.sha256()
    for key in ("applied_action", *dataset.observation_spec.state_keys):
        whole.update(np.ascontiguousarray(arrays[key]).tobytes())
    return whole.hexdigest()
