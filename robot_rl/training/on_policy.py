"""The training loop of on-policy methods, and its rollout buffer."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from robot_rl.envs.vector import RobosuiteVectorEnv
from robot_rl.learning.learner import OnPolicyLearner
from robot_rl.policies.acting import ActingPolicy
from robot_rl.training.checkpoint import save_checkpoint
from robot_rl.training.episodes import EpisodeTracker
from robot_rl.training.loop import Intervals, Run, finite_metrics, is_due, restore_run
from robot_rl.training.online import check_reward


class Rollout:
    """The last T control steps of B environments, and the situation in which they ended.

    Rows [T + 1, B, …] of observations and of what the policy knew and drew there; row T is where the
    last step led, and row 0 of what follows. Where an episode ended, `final.<name>` of its last step
    holds what came after it in place of the next row.
    """

    def __init__(self, steps: int, num_envs: int, kept: Sequence[str]) -> None:
        """`kept` names what is kept of observations and decisions."""
        self.steps, self.num_envs, self._kept = steps, num_envs, kept
        self.data: dict[str, NDArray[Any]] = {
            "reward": np.zeros((steps, num_envs), np.float32),
            "terminated": np.zeros((steps, num_envs), bool),
            "done": np.zeros((steps, num_envs), bool),
        }
        self._row = 0

    @property
    def full(self) -> bool:
        return self._row == self.steps

    def situation(self, values: Mapping[str, NDArray[Any]]) -> None:
        """Add the observations and policy outputs of the current step; values are [B, …]."""
        for name in self._kept:
            value = values[name]
            if name not in self.data:
                self.data[name] = np.zeros((self.steps + 1, *value.shape), value.dtype)
            self.data[name][self._row] = value

    def outcome(
        self,
        reward: NDArray[np.float32],
        terminated: NDArray[np.bool_],
        done: NDArray[np.bool_],
        final: Mapping[str, NDArray[Any]],
    ) -> None:
        """How the step from there went.

        Args:
            reward: of every environment [B].
            terminated: whether the episode was terminated [B].
            done: whether it ended at all [B].
            final: final observations, one row for each environment that is done.
        """
        self.data["reward"][self._row] = reward
        self.data["terminated"][self._row] = terminated
        self.data["done"][self._row] = done
        for name in final.keys() & set(self._kept):
            value, key = final[name], f"final.{name}"
            if key not in self.data:
                self.data[key] = np.zeros((self.steps, self.num_envs, *value.shape[1:]), value.dtype)
            self.data[key][self._row, done] = value
        self._row += 1

    def tensors(self, device: torch.device) -> dict[str, Tensor]:
        """Everything, [T, B, …] or [T + 1, B, …]."""
        return {name: torch.from_numpy(value.copy()).to(device) for name, value in self.data.items()}

    def restart(self) -> None:
        """Begin the next rollout where this one ended."""
        for value in self.data.values():
            if len(value) > self.steps:
                value[0] = value[self.steps]
        self._row = 0

    def state_dict(self) -> dict[str, Any]:
        return {"row": self._row, "data": {name: value.copy() for name, value in self.data.items()}}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self._row, self.data = state["row"], dict(state["data"])


def train_on_policy(
    envs: RobosuiteVectorEnv,
    policy: ActingPolicy,
    learner: OnPolicyLearner,
    rollout: Rollout,
    intervals: Intervals,
    run: Run,
    seed: int,
) -> bool:
    """Act, learn from the last `rollout.steps` steps of every environment, repeat.

    Learning needs the values of the situation after the last step, of which the base's action is a
    part. So the action there is drawn first, and is the first one of the next rollout: drawn by the
    policy before the update, and stored with its density then.

    Returns True when all steps are done, False when stopped.
    """
    env_ids = np.arange(envs.num_envs)
    episodes = EpisodeTracker(envs, policy, run.logger, seed)
    device = policy.base.device
    metrics: dict[str, Tensor] = {}
    step = 0

    def decide() -> NDArray[np.float32]:
        decision = policy.act(episodes.obs, explore=True)
        rollout.situation({**episodes.obs, **decision.replay_fields()})
        return decision.action

    def save() -> None:
        tree = {
            "step": step,
            "action": action,
            "metrics": metrics,
            "episodes": episodes.state_dict(),
            "rollout": rollout.state_dict(),
            "learner": learner.state_dict(),
            "logger": run.logger.state_dict(),
        }
        save_checkpoint(run.checkpoints, step, tree, run.save_policy)

    if state := restore_run(run):
        step, action, metrics = (state[name] for name in ("step", "action", "metrics"))
        episodes.load_state_dict(state["episodes"])
        rollout.load_state_dict(state["rollout"])
        learner.load_state_dict(state["learner"])
        if step >= intervals.total:
            return True
    else:
        episodes.begin(np.ones(envs.num_envs, bool))
        action = decide()

    while step < intervals.total and not run.stop():
        before = step
        next_obs, reward, terminated, truncated, info = envs.step(action)
        check_reward(reward, before)
        step += envs.num_envs
        episodes.advance(next_obs)
        done = terminated | truncated
        final: dict[str, NDArray[Any]] = {}
        if done.any():
            ended = env_ids[done]
            final = {key: value[done] for key, value in next_obs.items()}
            final["base"] = policy.act(final, env_ids=ended).base
            for env_id in ended:
                episodes.finish(env_id, step, success=bool(info["success"][env_id]))
            episodes.begin(done)
        rollout.outcome(reward, terminated, done, final)
        action = decide()
        if rollout.full:
            metrics = learner.update(rollout.tensors(device))
            values = finite_metrics(metrics, step)
            run.logger.log(step, **{f"learn/{name}": value for name, value in values.items()})
            rollout.restart()
        if is_due(intervals.log_every, before, step):
            run.progress.update(step, success=episodes.success)
        if is_due(intervals.checkpoint_every, before, step) and step < intervals.total:
            save()
        run.measure(intervals, metrics, before, step)
    save()
    return step >= intervals.total
