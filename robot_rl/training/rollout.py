"""The rollout of a training run: explores, begins and logs episodes, can be saved and restored."""

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from robot_rl.envs.observation import Observation
from robot_rl.envs.vector import RobosuiteVectorEnv
from robot_rl.policies.acting import ActingPolicy
from robot_rl.rollout import Rollout, Transition, episode_seed
from robot_rl.training.logger import RunLogger

VectorTransition = Transition[NDArray[Any]]
_RECENT = 40
"""Number of finished episodes over which success is averaged for display."""


class TrainingRollout(Rollout[NDArray[Any]]):
    """Steps the environments of a training run with an exploring policy.

    With `with_base_samples` the policy also samples the base at every step, for methods that learn from that.
    """

    def __init__(
        self,
        envs: RobosuiteVectorEnv,
        policy: ActingPolicy,
        logger: RunLogger,
        seed: int,
        *,
        with_base_samples: bool = False,
    ) -> None:
        super().__init__(envs, self._explore, {})
        self.fields: dict[str, NDArray[Any]] = {}
        """What a replay may store of the newest decision, besides its action."""
        self._envs, self._policy, self._with_base_samples = envs, policy, with_base_samples
        self._logger, self._seed = logger, seed
        self._begun = 0
        self._seeds = [0] * envs.num_envs
        self._lengths = [0] * envs.num_envs
        self._outcomes: list[float] = []

    @property
    def success(self) -> float:
        """Success rate of the last finished episodes."""
        return float(np.mean(self._outcomes or [0.0]))

    def begin_episodes(self, mask: NDArray[np.bool_]) -> None:
        """Begin a new episode, with its own seed, in the environments of the mask."""
        env_ids = np.flatnonzero(mask).tolist()
        for env_id in env_ids:
            self._seeds[env_id] = episode_seed(self._seed, "train", self._begun)
            self._lengths[env_id] = 0
            self._begun += 1
        obs, _ = self._envs.reset(seed=self._seeds, options={"reset_mask": mask})
        self._policy.reset(env_ids, [self._seeds[env_id] for env_id in env_ids])
        self.begin(obs)

    def step(self) -> VectorTransition:
        transition = super().step()
        self._lengths = [length + 1 for length in self._lengths]
        return transition

    def last_rows(self, transition: VectorTransition) -> tuple[NDArray[np.int64], dict[str, NDArray[Any]]]:
        """Environments [b] whose episode ended, their last observations and the policy's outputs there."""
        ended = np.flatnonzero(transition.done)
        if not len(ended):
            return ended, {}
        final = {key: value[ended] for key, value in transition.next_obs.items()}
        decision = self._policy.act(final, env_ids=ended, with_base_samples=self._with_base_samples)
        return ended, {**final, **decision.replay_fields()}

    def end_episodes(self, transition: VectorTransition, step: int) -> None:
        """Log the episodes that ended by environment step `step` of the run, and begin new ones."""
        for env_id in np.flatnonzero(transition.done):
            success = float(transition.info["success"][env_id])
            self._outcomes = [*self._outcomes, success][-_RECENT:]
            length = float(self._lengths[env_id])
            self._logger.log(step, **{"train/success": success, "train/episode_length": length})
        if transition.done.any():
            self.begin_episodes(transition.done)

    def state_dict(self) -> dict[str, Any]:
        """All that acting changes, except the newest decision."""
        return {
            "begun": self._begun,
            "seeds": self._seeds,
            "lengths": self._lengths,
            "outcomes": self._outcomes,
            "obs": self.obs,
            "envs": self._envs.get_states(),
            "policy": self._policy.state_dict(),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from the state of `state_dict`."""
        self._begun, self._seeds, self._lengths = state["begun"], state["seeds"], state["lengths"]
        self._outcomes, self.obs = state["outcomes"], state["obs"]
        # The environments are new: each begins an episode before its state is restored.
        self._envs.reset(seed=self._seeds)
        self._envs.set_states(state["envs"])
        self._policy.load_state_dict(state["policy"])

    def _explore(self, obs: Observation) -> NDArray[np.float32]:
        decision = self._policy.act(obs, explore=True, with_base_samples=self._with_base_samples)
        self.fields = decision.replay_fields()
        return decision.action
