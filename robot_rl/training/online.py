"""The training loop of off-policy methods, and its half that learns, which `hil` uses as well."""

from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors.torch import save as save_tensors
from torch import Tensor

from robot_rl.data.replay import SOURCES, Batch, Replay
from robot_rl.envs.vector import RobosuiteVectorEnv
from robot_rl.hardware.durable import write_file
from robot_rl.learning.config import OffPolicyConfig
from robot_rl.learning.learner import OnlineLearner
from robot_rl.learning.sampling import MixedSampler
from robot_rl.policies.acting import ActingPolicy
from robot_rl.training.checkpoint import save_checkpoint
from robot_rl.training.episodes import EpisodeTracker
from robot_rl.training.loop import Intervals, NotFinite, Run, finite_metrics, is_due, restore_run

_WARMUP_BURST = 32
"""Updates of the critics' warm-up between two checks of whether the user asked to stop."""


class Updater:
    """Runs a learner on a replay: counts the updates that are due, makes them, ends episodes, saves."""

    def __init__(
        self,
        learner: OnlineLearner,
        replay: Replay,
        sampler: MixedSampler,
        config: OffPolicyConfig,
        run: Run,
    ) -> None:
        self.learner, self.replay, self.sampler, self.config = learner, replay, sampler, config
        self.metrics: dict[str, Tensor] = {}
        """Of the last update."""
        self.pending = 0.0
        """Updates that are due for the environment steps so far and not made yet."""
        self._run = run

    def schedule(self, steps: int, before: int) -> None:
        """Add the updates that are due for `steps` environment steps after step `before` of the run."""
        config = self.config
        if before >= config.warmup_steps:
            self.pending += steps * config.utd
        elif before + steps >= config.warmup_steps:
            self.pending += config.critic_warmup

    def take_pending(self, most: int | None = None) -> int:
        """Number of updates that the caller makes now: those pending, at most `most`."""
        updates = int(self.pending) if most is None else min(int(self.pending), most)
        self.pending -= updates
        return updates

    def update(self, updates: int, step: int) -> None:
        """Make updates, at an environment step of the run.

        Raises:
            NotFinite: if a metric is NaN or infinite.
        """
        for _ in range(updates):
            batch = self.sampler.sample(step)
            self.metrics.update(self.learner.update(batch))
            _check_finite(self.metrics, batch, step, self._run.directory)

    def end_episode(self, env_id: int, *, success: bool) -> None:
        """Record the end of an environment's episode."""
        weight = 1.0 if success else 1 / self.config.success_weight
        self.replay.close_episode(np.array([env_id]), success=success, weight=weight)

    def log(self, step: int) -> None:
        """Write the metrics of the last update.

        Raises:
            NotFinite: if one of them is NaN or infinite.
        """
        values = finite_metrics(self.metrics, step)
        self._run.logger.log(step, **{f"learn/{name}": value for name, value in values.items()})

    def save(self, step: int, more: Mapping[str, Any]) -> None:
        """Write a checkpoint with what the loop adds to it.

        Raises:
            NotFinite: if a metric is NaN or infinite.
        """
        finite_metrics(self.metrics, step)
        tree = {
            "step": step,
            **more,
            "owed": self.pending,
            "metrics": self.metrics,
            "learner": self.learner.state_dict(),
            "replay": self.replay.state_dict(),
            "batches": self.sampler.state_dict(),
            "logger": self._run.logger.state_dict(),
        }
        save_checkpoint(self._run.checkpoints, step, tree, self._run.save_policy)

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from what `save` wrote."""
        self.pending, self.metrics = state["owed"], state["metrics"]
        self.learner.load_state_dict(state["learner"])
        self.replay.load_state_dict(state["replay"])
        self.sampler.load_state_dict(state["batches"])


def train_online(
    envs: RobosuiteVectorEnv,
    policy: ActingPolicy,
    learner: OnlineLearner,
    replay: Replay,
    sampler: MixedSampler,
    config: OffPolicyConfig,
    intervals: Intervals,
    run: Run,
    seed: int,
) -> bool:
    """Act, store, learn. Returns True when all steps are done, False when stopped.

    While the environments step, the updates are made that are owed for the steps before: the policy acts
    with weights that are one vector step old, and the ratio of updates to environment steps is kept
    exactly, whatever the number of environments. The critics' warm-up is made at once when the base's own
    steps are over: the environments wait for it. Until then nothing is evaluated: it would be the base.
    """
    n = envs.num_envs
    env_ids = np.arange(n)
    episodes = EpisodeTracker(envs, policy, run.logger, seed)
    updater = Updater(learner, replay, sampler, config, run)
    step = 0

    def decide() -> dict[str, NDArray[Any]]:
        policy.active = learner.warmed_up and step >= config.warmup_steps
        decision = policy.act(episodes.obs, explore=True, with_base_samples=True)
        return {"action": decision.action, **decision.replay_fields()}

    def save() -> None:
        updater.save(step, {"decided": decided, "episodes": episodes.state_dict()})

    if state := restore_run(run):
        step, decided = state["step"], state["decided"]
        episodes.load_state_dict(state["episodes"])
        updater.load_state_dict(state)
        if step >= intervals.total:
            return True
    else:
        episodes.begin(np.ones(n, bool))
        decided = decide()

    with ThreadPoolExecutor(1, "learner", torch.set_num_threads, (torch.get_num_threads(),)) as worker:
        while step < intervals.total and not run.stop():
            if not learner.warmed_up and updater.pending >= _WARMUP_BURST:
                updater.update(updater.take_pending(_WARMUP_BURST), step)
                continue
            before, obs = step, episodes.obs
            updating = worker.submit(updater.update, updater.take_pending(), before)
            next_obs, reward, terminated, truncated, info = envs.step(decided.pop("action"))
            updating.result()
            check_reward(reward, before)
            replay.add(
                env_ids,
                action=info["applied_action"],
                reward=reward,
                terminated=terminated,
                source=SOURCES.index("policy" if policy.active else "base"),
                **obs,
                **decided,
            )
            step += n
            episodes.advance(next_obs)
            done = terminated | truncated
            if done.any():
                ended = env_ids[done]
                final = {key: value[done] for key, value in next_obs.items()}
                replay.end(
                    ended, **final, **policy.act(final, env_ids=ended, with_base_samples=True).replay_fields()
                )
                for env_id in ended:
                    success = bool(info["success"][env_id])
                    updater.end_episode(env_id, success=success)
                    episodes.finish(env_id, step, success=success)
                episodes.begin(done)
            updater.schedule(n, before)
            decided = decide()
            if is_due(intervals.log_every, before, step):
                updater.log(step)
                run.progress.update(step, success=episodes.success)
            if step >= intervals.total:
                # After the decision, so that a longer run goes on as if it had not paused here.
                updater.update(updater.take_pending(), step)
            if learner.warmed_up:
                run.measure(intervals, updater.metrics, before, step)
            if is_due(intervals.checkpoint_every, before, step) and step < intervals.total:
                save()
    save()
    return step >= intervals.total


def check_reward(reward: NDArray[np.float32], step: int) -> None:
    """Raises NotFinite if a reward is NaN or infinite."""
    if not np.isfinite(reward).all():
        raise NotFinite(f"the reward became NaN or infinite at step {step}")


def _check_finite(metrics: Mapping[str, Tensor], batch: Batch, step: int, directory: Path) -> None:
    """Stop at the first update whose metrics are not finite, and keep the batch that made it.

    On a GPU the metrics are looked at when they are logged, since looking waits for the device.
    """
    if any(value.device.type == "cpu" and not bool(value.isfinite()) for value in metrics.values()):
        path = directory / "not_finite_batch.safetensors"
        write_file(path, save_tensors({name: value.contiguous() for name, value in batch.items()}))
        bad = [name for name, value in metrics.items() if not bool(value.isfinite())]
        raise NotFinite(
            f"{', '.join(bad)} became NaN or infinite at step {step}; the last checkpoint is untouched, "
            f"the batch is in {path}"
        )
