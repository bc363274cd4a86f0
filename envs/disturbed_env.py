"""A simulated task under one disturbance."""

import hashlib
from collections import deque
from typing import Any

import mujoco
import numpy as np
from numpy.typing import NDArray

from robot_rl.envs.disturbances import DELAY, DISTURBANCES, MODEL_FIELDS, NominalModel, Scene
from robot_rl.envs.language_scenes import LanguageScene
from robot_rl.envs.observation import Observation, make_observation
from robot_rl.envs.robosuite_env import RobosuiteEnv
from robot_rl.envs.task import TaskConfig
from robot_rl.envs.task_env import Step


class DisturbedEnv(RobosuiteEnv):
    """A task whose episodes have a disturbance.

    Its random numbers depend on the seed and on the saved state that an episode starts from: the same episode
    is the same for every policy, and wherever it runs.
    """

    def __init__(self, task: TaskConfig, disturbance: str, seed: int) -> None:
        """Build the task.

        Args:
            task: its configuration.
            disturbance: a name in `DISTURBANCES`.
            seed: seed of the disturbance.

        Raises:
            ValueError: if the task cannot be disturbed so; see also `RobosuiteEnv`.
        """
        self._disturbance, self._name, self._noise_seed = DISTURBANCES[disturbance], disturbance, seed
        self._draw = True
        super().__init__(self._disturbance.task(task) if self._disturbance.task else task)
        self._scene = Scene(self._sim.sim.model._model, self._sim.sim.data._data, self.task.cameras)
        self._nominal = NominalModel(self._scene.model, MODEL_FIELDS)
        self._seen: deque[Observation] = deque(maxlen=DELAY + 1)
        self._given: Observation | None = None
        try:
            # Refused here if the task cannot be disturbed so.
            if self._disturbance.moves and not len(self._scene.objects):
                raise ValueError(f"under={disturbance}: the task has no object that moves freely")
            self._begin(b"")
        except ValueError:
            self.close()
            raise

    @property
    def draw_images(self) -> bool:
        """Whether steps draw the cameras; always, if a later decision may read images of this step."""
        return self._draw or self._disturbance.every_frame

    @draw_images.setter
    def draw_images(self, draw: bool) -> None:
        self._draw = draw

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Observation, dict[str, Any]]:
        state = (options or {}).get("state")
        self._begin(str(seed).encode() if state is None else np.asarray(state, np.float64).tobytes())
        obs, info = super().reset(seed=seed, options=options)
        if self._disturbance.start:
            self._disturbance.start(self._scene, self._named_objects())
            mujoco.mj_forward(self._scene.model, self._scene.data)
            obs = make_observation(self.sense(), self.observation_spec)
        return self._observe(obs), info

    def _named_objects(self) -> NDArray[np.integer]:
        """Free joints of the object that the instruction names, of all objects without one [N]."""
        if not isinstance(self._sim, LanguageScene):
            return self._scene.objects
        return np.array([self._scene.model.joint(self._sim.named.joints[0]).id])

    def _begin(self, episode: bytes) -> None:
        """Seed the disturbance of an episode, and change the model."""
        words = hashlib.sha256(self._name.encode() + b"\0" + episode).digest()
        self._rng = np.random.default_rng([self._noise_seed, *np.frombuffer(words, np.uint32)])
        self._seen.clear()
        self._given = None
        self._nominal.restore()
        if self._disturbance.model:
            self._disturbance.model(self._scene, self._rng)

    def _applied(self, action: np.ndarray) -> np.ndarray:
        applied = super()._applied(action)
        if self._disturbance.step:
            self._disturbance.step(self._scene, self._rng)
        return applied

    def _stepped(self, applied: np.ndarray, raw: Any, reward: float, *more: Any) -> Step:
        obs, value, terminated, truncated, info = super()._stepped(applied, raw, reward, *more)
        return self._observe(obs), value, terminated, truncated, info

    def _observe(self, obs: Observation) -> Observation:
        """What the policy is given of an observation."""
        if not self._disturbance.observe:
            return obs
        self._seen.append(obs)
        self._given = self._disturbance.observe(self._seen, self._given, self._rng)
        return self._given
