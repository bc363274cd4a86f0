"""What a person in the room sees: the scene of a simulated robot, and whether its task is done."""

import time
from pathlib import Path
from typing import Final

import mujoco
import numpy as np

from robot_rl.envs.experts.expert import Expert, hand
from robot_rl.envs.surroundings import Visitor
from robot_rl.envs.task import TaskConfig, without_cameras
from robot_rl.factory import make_robosuite_env

_AT_HOME: Final = 0.02
"""Largest distance of the hand from its home, m."""
_POSTURE: Final = 0.3
"""Largest distance of a joint from its home, rad. The way home is one of the hand: an arm that was stretched
may arrive with its elbow at the other side, at limits of its joints."""
_OUTSIDE: Final = 0.28
"""Distance of the hand from its home at which the person ends an episode as a failure, m: farther out the arm
is stretched, and may not find the way home."""
NEAR: Final = 0.04
"""Distance of the object from its target within which the person calls the task done, m."""


class Scene:
    """The scene as robosuite's environment, set from what is seen and never stepped."""

    def __init__(self, task: TaskConfig, room: Path) -> None:
        self._env = make_robosuite_env(without_cameras(task))
        self._env.reset(seed=0)
        self._visitor = Visitor(room)
        self.sim = self._env.sim
        """robosuite's environment."""
        self._model, self._data = self.sim.sim.model._model, self.sim.sim.data._data
        robot = self.sim.robots[0]
        self._joints, self._posture = np.asarray(robot._ref_joint_pos_indexes), np.asarray(robot.init_qpos)
        self._data.qpos[self._joints] = self._posture
        mujoco.mj_forward(self._model, self._data)
        self._home = hand(self.sim).pos

    def close(self) -> None:
        self._visitor.close()
        self._env.close()

    def update(self) -> bool:
        """See the scene as it is now; False if there is nothing to see."""
        seen = self._visitor.look()
        if seen is None:
            return False
        data, nq, nv = self._data, self._model.nq, self._model.nv
        data.time, data.qpos[:], data.qvel[:] = seen[0], seen[1 : 1 + nq], seen[1 + nq : 1 + nq + nv]
        mujoco.mj_forward(self._model, data)
        return True

    @property
    def at_home(self) -> bool:
        """Whether the hand is at its home, and the arm in the posture that it has there."""
        turned = np.abs(self._data.qpos[self._joints] - self._posture).max()
        return bool(np.linalg.norm(hand(self.sim).pos - self._home) < _AT_HOME and turned < _POSTURE)

    @property
    def outside(self) -> bool:
        """Whether the hand has left the region in which the task is done."""
        return bool(np.linalg.norm(hand(self.sim).pos - self._home) > _OUTSIDE)

    def place(self, seed: int) -> str:
        """Put the objects elsewhere by hand; returns why that failed, "" if it did not."""
        return self._visitor.place(seed)

    def guide_home(self) -> str:
        """Guide the disarmed arm home by hand; returns why that failed, "" if it did not."""
        return self._visitor.guide_home()


class Done:
    """For how long the object has been where it belongs, by the person's eyes."""

    def __init__(self, scene: Scene) -> None:
        self._scene = scene
        self._expert: Expert | None = None
        self._since: float | None = None
        self.lost = False
        """Whether it was there and is not any more."""

    def begin(self, expert: Expert) -> None:
        self._expert, self._since, self.lost = expert, None, False

    def distance(self) -> float:
        """Distance of the object from where it belongs, m."""
        assert self._expert is not None
        point, target = self._expert.grasp_and_target(self._scene.sim)
        return float(np.linalg.norm(point - target))

    def held_s(self) -> float:
        """Seconds for which it is there, 0 if it is not."""
        if self.distance() > NEAR:
            self.lost |= self._since is not None
            self._since = None
            return 0.0
        now = time.monotonic()
        self._since = now if self._since is None else self._since
        return now - self._since
