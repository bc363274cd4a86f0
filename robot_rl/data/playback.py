"""Episodes acted again in simulation from their first saved state, and how far from the others that leads."""

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
    """Of one group of the state's numbers from the saved ones."""

    farthest: float
    """Largest absolute difference over all steps."""
    step: int
    """Where that was."""
    last: float
    """At the last saved state."""
    unit: str


@dataclass(frozen=True)
class Playback:
    """What became of an episode that was acted again."""

    steps: int
    deviations: Mapping[str, Deviation]
    success: bool
    recorded: bool
    """Whether the saved episode succeeded."""
    success_step: int | None
    """The first step that succeeded now."""

    @property
    def exact(self) -> bool:
        """Whether it is the same to the bit."""
        return all(deviation.farthest == 0 for deviation in self.deviations.values())


def playback_env(dataset: Dataset, accept: Sequence[str] = ()) -> RobosuiteEnv:
    """The environment in which a dataset's episodes can be acted again.

    Args:
        dataset: made in simulation.
        accept: differences between its environment and the one here to let pass.

    Raises:
        ValueError: it has no saved states, or its environment differs; says in what.
    """
    if "sim_state" not in dataset.keys:
        raise ValueError(f"{dataset.path} has no saved states (data/sim_state): {_why_stateless(dataset)}")
    # Observations that no policy sees are a part of the state too.
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
    """Act one episode: its first saved state, then its applied actions.

    Args:
        dataset: made in simulation.
        env: of `playback_env`; it is left where the episode ends.
        number: of the episode.
        show: told how many steps are done.

    Raises:
        ValueError: a saved state is none of this environment.
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
    # The state after the last step is in no dataset.
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
    """Columns of the state that belong together, with their unit: joints of each robot, objects, the rest."""
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
