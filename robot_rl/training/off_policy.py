"""The training loop of off-policy methods whose environments run in this process."""

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import torch

from robot_rl.envs.vector import TaskVectorEnv
from robot_rl.errors import ServerLost
from robot_rl.imagination.planning import Planner
from robot_rl.learning.config import OffPolicyConfig
from robot_rl.policies.finetuned.candidates import CandidatesPolicy
from robot_rl.training.components import OffPolicyComponents
from robot_rl.training.loop import (
    Intervals,
    Run,
    check_action,
    check_reward,
    is_due,
    restore_run,
    saved_up_to_here,
)
from robot_rl.training.rollout import TrainingRollout
from robot_rl.training.updater import Updater

_WARMUP_BURST = 32
"""Number of updates of the critics' warm-up between two checks of whether the user asked to stop."""


def train_off_policy(
    config: OffPolicyConfig, components: OffPolicyComponents, intervals: Intervals, run: Run, seed: int
) -> bool:
    """Act, store, learn. Returns True when all steps are done, False when stopped.

    The pending updates are made while the environments step: the policy acts with weights that are one vector
    step old, and the ratio of updates to environment steps is exact. The environments wait for the warm-up of
    the critics. Before it only the base acts, and nothing is evaluated.
    """
    envs, policy, learner = components.envs, components.agent.policy, components.learner
    assert isinstance(envs, TaskVectorEnv)
    seen = components.learns_from_images
    rollout = TrainingRollout(envs, policy, run.logger, seed, with_base_samples=True, learns_from_images=seen)
    updater = Updater(config, components, run)
    streams = np.arange(envs.num_envs)
    if components.imagination and components.imagination.config.planning:
        assert isinstance(policy, CandidatesPolicy)
        policy.rank = Planner(components.imagination, components.replay, policy.runner)

    def decide() -> None:
        policy.active = learner.warmed_up and step >= config.warmup_steps
        rollout.decide()
        assert rollout.action is not None
        check_action(rollout.action, updater.metrics, step)

    def settle() -> None:
        if is_due(intervals.log_every, run.logged, step):
            updater.log(step)
            run.logger.log(step, **rollout.base_calls())
            run.progress.update(step, success=rollout.success, **updater.progress)
        run.logged = step
        if step >= intervals.total:
            # After the decision, so that a longer run continues as if it had not paused here.
            updater.update(updater.take_pending(), step)
        updater.evaluate_and_snapshot(intervals, step)

    step = _begin_or_resume(rollout, updater, run)
    was_last = step >= intervals.total
    if was_last and not updater.is_behind(step):
        return True
    try:
        if not rollout.decided:
            decide()
        settle()
        with ThreadPoolExecutor(1, "learner", torch.set_num_threads, (torch.get_num_threads(),)) as worker:
            while step < intervals.total and not run.stop() and not updater.lost:
                if not learner.warmed_up and updater.pending >= _WARMUP_BURST:
                    updater.update(updater.take_pending(_WARMUP_BURST), step)
                    continue
                before = step
                updating = worker.submit(updater.update, updater.take_pending(), before)
                try:
                    # What is stored does not depend on which thread is faster.
                    transition = rollout.step(updating.result)
                finally:
                    updating.result()
                check_reward(transition.reward, before)
                stored = rollout.stored(transition, "policy" if policy.active else "base")
                updater.store(streams, stored)
                step += envs.num_envs
                rollout.end_episodes(transition, step)
                updater.schedule(envs.num_envs, before)
                decide()
                settle()
                if is_due(intervals.checkpoint_every, before, step) and step < intervals.total:
                    updater.save(step, _state_dict(rollout))
    except ServerLost as error:
        updater.lost = saved_up_to_here(error)
    updater.save(step, _state_dict(rollout), replace=was_last)
    if updater.lost:
        raise updater.lost
    return step >= intervals.total


def _state_dict(rollout: TrainingRollout) -> dict[str, Any]:
    """State of the loop, with the newest decision."""
    return {"decided": {"action": rollout.action, **rollout.fields}, "episodes": rollout.state_dict()}


def _begin_or_resume(rollout: TrainingRollout, updater: Updater, run: Run) -> int:
    """Continue from the newest checkpoint, or begin the first episodes; returns the environment step."""
    if (state := restore_run(run, updater.base)) is None:
        rollout.begin_episodes()
        return 0
    rollout.fields = state["decided"]
    rollout.action = rollout.fields.pop("action")
    rollout.load_state_dict(state["episodes"])
    updater.load_state_dict(state)
    return int(state["step"])
