"""Replays episodes in simulation from their first saved state and measures the deviation from the others."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import mujoco
import numpy as np
from numpy.typing import NDArray

from robot_rl.data.compatibility import check_same_environment
from robot_rl.data.dataset import Dataset
from robot_rl.envs.robosuite_env import RobosuiteEnv
from robot_rl.factory import task_of

_REST: Final = "all else of the state"
_UNITS: Final = {mujoco.mjtJoint.mjJNT_HINGE: "rad", mujoco.mjtJoint.mjJNT_SLIDE: "m"}


@dataclass(frozen=True)
class Deviation:
    """Deviation of one group of state variables from the saved ones."""

    farthest: float
    """Largest absolute difference over all steps."""
    step: int
    """Step of that difference."""
    last: float
    """Largest difference at the last saved state."""
    unit: str


@dataclass(frozen=True)
class Playback:
    """Result of replaying one episode."""

    steps: int
    deviations: Mapping[str, Deviation]
    success: bool
    recorded: bool
    """Whether the saved episode succeeded."""
    success_step: int | None
    """First successful step of the replay."""

    @property
    def exact(self) -> bool:
        """Whether all states are equal to the bit."""
        return all(deviation.farthest == 0 for deviation in self.deviations.values())


def playback_env(dataset: Dataset, accept: Sequence[str] = ()) -> RobosuiteEnv:
    """Build the environment in which a dataset's episodes can be replayed.

    Args:
        dataset: dataset made in simulation.
        accept: names of differences between its environment and the current one to accept.

    Raises:
        ValueError: if it has no saved states, or its environment differs; names the difference.
    """
    if "sim_state" not in dataset.keys:
        raise ValueError(f"{dataset.path} has no saved states (data/sim_state): {_why_stateless(dataset)}")
    # Observations that no policy sees are part of the state too.
    env = RobosuiteEnv(task_of(dataset.environment), observe_all=True)
    check_same_environment(dataset.environment, env.describe(), f"dataset {dataset.path}", tuple(accept))
    return env


def _why_stateless(dataset: Dataset) -> str:
    if "state_layout" not in dataset.environment:
        return "it was not made in simulation; replay it on its robot with address=…"
    if "recorded" in dataset.collection:
        return (
            "its recordings do not say how the scene stood, as those of earlier versions; record it again, "
            "and `robot-rl data derive` it with task=…"
        )
    return "they were left out when it was made; make it again with them"


def play(
    dataset: Dataset, env: RobosuiteEnv, number: int, show: Callable[[int], None] = lambda done: None
) -> Playback:
    """Replay one episode: set its first saved state, then execute its applied actions.

    Args:
        dataset: dataset made in simulation.
        env: environment from `playback_env`; it stays where the episode ends.
        number: episode number.
        show: called with the number of steps done.

    Raises:
        ValueError: if a saved state does not fit the environment.
    """
    rows = dataset.episodes[number]
    saved: NDArray[np.float64] = dataset.rows("sim_state", rows)
    actions = dataset.rows("applied_action", rows)
    env.reset(seed=0)
    env.set_state(saved[0])
    states, succeeded = [env.get_state()], []
    for done, action in enumerate(actions, 1):
        *_, info = env.step(action)
        succeeded.append(bool(info["success"]))
        states.append(env.get_state())
        show(done)
    # A dataset does not hold the state after the last step.
    differences = np.abs(np.stack(states[:-1]) - saved)
    found = {name: (differences[:, columns], unit) for name, (columns, unit) in groups(env).items()}
    return Playback(
        steps=len(actions),
        deviations={name: _deviation(values, unit) for name, (values, unit) in found.items() if values.size},
        success=any(succeeded),
        recorded=bool(dataset.success[number]),
        success_step=next((step for step, success in enumerate(succeeded) if success), None),
    )


def groups(env: RobosuiteEnv) -> dict[str, tuple[NDArray[np.int64], str]]:
    """Columns of the state by group, with their unit: robot joints, objects, velocities, the rest."""
    model: Any = env.sim.sim.model._model
    columns: dict[str, tuple[list[int], str]] = {}
    time = mujoco.mj_stateSize(model, mujoco.mjtState.mjSTATE_TIME)
    for index in range(model.njnt):
        joint = model.joint(index)
        begin = time + int(model.jnt_qposadr[index])
        kind = int(model.jnt_type[index])
        if kind == mujoco.mjtJoint.mjJNT_FREE:
            name = joint.name.removesuffix("_joint0")
            columns[f"{name} position"] = (list(range(begin, begin + 3)), "m")
            columns[f"{name} orientation"] = (list(range(begin + 3, begin + 7)), "of a quaternion")
            continue
        assert kind in _UNITS, joint.name
        owner = joint.name.split("_")[0]
        name = f"{owner} joints" if owner.startswith(("robot", "gripper")) else joint.name
        columns.setdefault(name, ([], _UNITS[mujoco.mjtJoint(kind)]))[0].append(begin)
    speeds = time + model.nq
    columns["velocities"] = (list(range(speeds, speeds + model.nv)), "rad/s, m/s")
    named = {column for found, _ in columns.values() for column in found}
    rest = [column for column in range(len(env.get_state())) if column not in named]
    columns[_REST] = (rest, "mixed units")
    return {name: (np.array(found, np.int64), unit) for name, (found, unit) in columns.items()}


def _deviation(values: NDArray[np.float64], unit: str) -> Deviation:
    farthest = values.max(axis=1)
    step = int(farthest.argmax())
    return Deviation(float(farthest[step]), step, float(farthest[-1]), unit)
