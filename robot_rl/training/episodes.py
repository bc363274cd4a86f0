"""Tracks the episodes of a training run: their seeds, lengths, outcomes and logging."""

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from robot_rl.envs.observation import Observation
from robot_rl.envs.vector import RobosuiteVectorEnv
from robot_rl.policies.acting import ActingPolicy
from robot_rl.seeds import episode_seed
from robot_rl.training.logger import RunLogger

_RECENT = 40
"""Finished episodes over which success is shown."""


class EpisodeTracker:
    """Environments and the policy that acts in them; `state_dict` holds all that acting changes."""

    def __init__(self, envs: RobosuiteVectorEnv, policy: ActingPolicy, logger: RunLogger, seed: int) -> None:
        self.envs, self.policy = envs, policy
        self.obs: Observation = {}
        """Latest observation of every environment."""
        self._logger, self._seed = logger, seed
        self._begun = 0
        self._seeds = [0] * envs.num_envs
        self._lengths = [0] * envs.num_envs
        self._outcomes: list[float] = []

    @property
    def success(self) -> float:
        """Part of the last finished episodes that succeeded."""
        return float(np.mean(self._outcomes or [0.0]))

    def begin(self, mask: NDArray[np.bool_]) -> None:
        """Begin a new episode, with a seed of its own, in the environments of the mask."""
        env_ids = np.flatnonzero(mask).tolist()
        for env_id in env_ids:
            self._seeds[env_id] = episode_seed(self._seed, "train", self._begun)
            self._lengths[env_id] = 0
            self._begun += 1
        self.obs, _ = self.envs.reset(seed=self._seeds, options={"reset_mask": mask})
        self.policy.reset(env_ids, [self._seeds[env_id] for env_id in env_ids])

    def advance(self, obs: Observation) -> None:
        """Record a control step of every environment."""
        self.obs = obs
        self._lengths = [length + 1 for length in self._lengths]

    def finish(self, env_id: int, step: int, *, success: bool) -> None:
        """Record the end of an environment's episode, at an environment step of the run."""
        self._outcomes = [*self._outcomes, float(success)][-_RECENT:]
        figures = {"train/success": float(success), "train/episode_length": float(self._lengths[env_id])}
        self._logger.log(step, **figures)

    def state_dict(self) -> dict[str, Any]:
        return {
            "begun": self._begun,
            "seeds": self._seeds,
            "lengths": self._lengths,
            "outcomes": self._outcomes,
            "obs": self.obs,
            "envs": self.envs.get_states(),
            "policy": self.policy.state_dict(),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self._begun, self._seeds, self._lengths = state["begun"], state["seeds"], state["lengths"]
        self._outcomes, self.obs = state["outcomes"], state["obs"]
        # The environments are new: each begins an episode before its state is restored.
        self.envs.reset(seed=self._seeds)
        self.envs.set_states(state["envs"])
        self.policy.load_state_dict(state["policy"])
