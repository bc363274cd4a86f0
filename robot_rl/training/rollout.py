"""The rollout of a training run: explores, begins and logs episodes, can be saved and restored."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from robot_rl.data.decision_replay_buffer import NO_DECISION
from robot_rl.envs.observation import Observation
from robot_rl.envs.vector import TaskVectorEnv
from robot_rl.errors import ServerLost
from robot_rl.policies.acting import ActingPolicy
from robot_rl.policies.chunk_runner import PolicyOutput
from robot_rl.rollout import Rollout, Transition, episode_seed

VectorTransition = Transition[NDArray[Any]]
RECENT = 40
"""Number of finished episodes over which success is averaged for display."""


class EpisodeLog(Protocol):
    """Where success and length of finished episodes go."""

    def log(self, step: int, /, **values: float) -> None: ...


@dataclass(frozen=True)
class StoredStep:
    """One control step of B environments, as a replay stores it."""

    fields: Mapping[str, NDArray[Any]]
    """Observations and the policy's outputs [B, …] by name."""
    action: NDArray[np.float32]
    """Executed actions [B, A]."""
    reward: NDArray[np.float32]
    terminated: NDArray[np.bool_]
    success: NDArray[np.bool_]
    source: str
    """Who acted: `policy` or `base`."""
    ended: NDArray[np.int64]
    """Environments [b] whose episode ended."""
    last: Mapping[str, NDArray[Any]]
    """Their last observations, and the policy's outputs there [b, …]."""


class TrainingRollout(Rollout[NDArray[Any]]):
    """Steps the environments of a training run with an exploring policy.

    With `with_base_samples` the policy also samples the base at every step, for methods that learn from that.
    If it neither `learns_from_images` of every step nor from what is computed of them, only those images are
    rendered that the policy reads to act; the others are black. With `decisions_only` of the policy's runner
    it samples the base at decisions alone, of which the last observation of a truncated episode is one.
    """

    def __init__(
        self,
        envs: TaskVectorEnv,
        policy: ActingPolicy,
        logger: EpisodeLog,
        seed: int,
        *,
        with_base_samples: bool = False,
        learns_from_images: bool = True,
    ) -> None:
        super().__init__(envs, self._explore, {})
        self.fields: dict[str, NDArray[Any]] = {}
        """What a replay may store of the newest decision, besides its action."""
        self._envs, self._policy, self._with_base_samples = envs, policy, with_base_samples
        self._learns_from_images = learns_from_images
        self._logger, self._seed = logger, seed
        self.last_rows: tuple[NDArray[np.int64], dict[str, NDArray[Any]]] = (np.zeros(0, np.int64), {})
        """Environments [b] whose episode ended at the last step, their last observations and the policy's
        outputs there."""
        self._unfinished: VectorTransition | None = None
        """A step whose `last_rows` could not be computed."""
        self._steps = 0
        """Environment steps since the last call of `base_calls`."""
        self._begun = 0
        self._seeds = [0] * envs.num_envs
        self._lengths = [0] * envs.num_envs
        self._outcomes: list[float] = []

    @property
    def success(self) -> float:
        """Success rate of the last finished episodes."""
        return float(np.mean(self._outcomes or [0.0]))

    def begin_episodes(self, mask: NDArray[np.bool_] | None = None) -> None:
        """Begin a new episode, with its own seed, in the environments of the mask; in all if it is None."""
        mask = np.ones(len(self._seeds), bool) if mask is None else mask
        env_ids = np.flatnonzero(mask).tolist()
        for env_id in env_ids:
            self._seeds[env_id] = episode_seed(self._seed, "train", self._begun)
            self._lengths[env_id] = 0
            self._begun += 1
        obs, _ = self._envs.reset(seed=self._seeds, options={"reset_mask": mask})
        self._policy.reset(env_ids, [self._seeds[env_id] for env_id in env_ids])
        self.begin(obs)

    def base_calls(self) -> dict[str, float]:
        """Observations per environment step that the base sampled for, and encoded, since the last call."""
        runner, steps = self._policy.runner, max(self._steps, 1)
        rates = {"train/base_queries": runner.queries / steps}
        if runner.feature_copies:
            rates["train/base_encodings"] = runner.encodings / steps
        runner.queries = runner.encodings = self._steps = 0
        return rates

    @property
    def decided(self) -> bool:
        """Whether the next call of `step` has an action, or a step to finish."""
        return self.action is not None or self._unfinished is not None

    def step(self, settled: Callable[[], object] = lambda: None) -> VectorTransition:
        """Execute the next action, and compute `last_rows`.

        `settled` is called before the networks are used; it waits for an update in another thread.

        Raises:
            ServerLost: if the base's server is lost; the next call, also of a rollout that was saved and
                restored, finishes this step.
        """
        if self._unfinished is None:
            self._unfinished = super().step()
            self._lengths = [length + 1 for length in self._lengths]
            self._steps += self._envs.num_envs
        transition = self._unfinished
        ended = np.flatnonzero(transition.done)
        last: dict[str, NDArray[Any]] = {}
        if len(ended):
            settled()
            final = {key: value[ended] for key, value in transition.next_obs.items()}
            last = {**final, **self._last_outputs(final, ended, transition.terminated[ended])}
        self.last_rows, self._unfinished = (ended, last), None
        return transition

    def _last_outputs(
        self, final: Observation, ended: NDArray[np.int64], terminated: NDArray[np.bool_]
    ) -> dict[str, NDArray[Any]]:
        """The policy's outputs at the last observations [b, …] of episodes."""
        if not self._policy.runner.decisions_only:
            return self._act(final, env_ids=ended).replay_fields()
        # Nothing is learned from what follows a termination.
        asked = ~terminated
        if not asked.any():
            return {}
        rows = {key: value[asked] for key, value in final.items()}
        found = self._act(rows, env_ids=ended[asked]).replay_fields()
        outputs: dict[str, NDArray[Any]] = {}
        for name, value in found.items():
            nothing = NO_DECISION if name == "chunk_step" else 0
            outputs[name] = np.full((len(ended), *value.shape[1:]), nothing, value.dtype)
            outputs[name][asked] = value
        return outputs

    def stored(self, transition: VectorTransition, source: str) -> StoredStep:
        """The newest step, of which `source` says who acted, for a replay."""
        ended, last = self.last_rows
        return StoredStep(
            {**transition.obs, **self.fields},
            transition.info["applied_action"],
            transition.reward,
            transition.terminated,
            transition.info["success"],
            source,
            ended,
            last,
        )

    def end_episodes(self, transition: VectorTransition, step: int) -> None:
        """Log the episodes that ended by environment step `step` of the run, and begin new ones."""
        for env_id in np.flatnonzero(transition.done):
            success = float(transition.info["success"][env_id])
            self._outcomes = [*self._outcomes, success][-RECENT:]
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
            "steps": self._steps,
            "unfinished": None if self._unfinished is None else _pack(self._unfinished),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from the state of `state_dict`."""
        self._begun, self._seeds, self._lengths = state["begun"], state["seeds"], state["lengths"]
        self._outcomes, self.obs = state["outcomes"], state["obs"]
        # The environments are new: each begins an episode before its state is restored.
        self._envs.reset(seed=self._seeds)
        self._envs.set_states(state["envs"])
        self._policy.load_state_dict(state["policy"])
        self._steps = state["steps"]
        if unfinished := state["unfinished"]:
            self._unfinished = VectorTransition(**unfinished)
        self._draw_next()

    def _explore(self, obs: Observation) -> NDArray[np.float32]:
        decision = self._act(obs, explore=True)
        self.fields = decision.replay_fields()
        self._draw_next()
        return decision.action

    def _draw_next(self) -> None:
        """Choose where the next step renders the cameras, once its action is chosen."""
        if self._learns_from_images:
            return
        read = self._policy.reads_next_frame(explore=True)
        if self._policy.runner.decisions_only:
            # The base is asked at the last observation of a truncated episode.
            frames, horizon = self._policy.base.spec.obs_steps, self._envs.describe()["horizon"]
            read = read | (np.array(self._lengths) >= horizon - frames)
        self._envs.draw_next(read)

    def _act(
        self, obs: Observation, *, explore: bool = False, env_ids: NDArray[np.int64] | None = None
    ) -> PolicyOutput:
        """Choose actions; if a server is lost that it asks, the policy's state stays as it was."""
        asks = self._policy.base.is_remote or getattr(self._policy, "rank", None)
        before = self._policy.state_dict() if asks else None
        try:
            if env_ids is not None and self._policy.runner.decisions_only:
                return self._policy.observe_end(obs, env_ids)
            return self._policy.act(
                obs, explore=explore, with_base_samples=self._with_base_samples, env_ids=env_ids
            )
        except ServerLost:
            assert before is not None
            self._policy.load_state_dict(before)
            raise


def _pack(transition: VectorTransition) -> dict[str, Any]:
    """What training uses of a transition, for a checkpoint."""
    info = {name: transition.info[name] for name in ("success", "applied_action")}
    return {**vars(transition), "info": info}
