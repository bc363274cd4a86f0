"""The training loop of on-policy methods."""

import numpy as np
from torch import Tensor

from robot_rl.errors import ServerLost
from robot_rl.training.checkpoint import save_checkpoint
from robot_rl.training.components import OnPolicyComponents
from robot_rl.training.loop import Intervals, Run, check_reward, is_due, restore_run, saved_up_to_here
from robot_rl.training.rollout import TrainingRollout


def train_on_policy(components: OnPolicyComponents, intervals: Intervals, run: Run, seed: int) -> bool:
    """Act, learn from the last steps, repeat. Returns True when all steps are done, False when stopped.

    Learning needs the value of the state after the last step, which depends on the base's action there. So
    the action there is chosen before the update, and is the first one of the next rollout, stored with its
    density under the policy before the update.
    """
    envs, policy, learner = components.envs, components.agent.policy, components.learner
    # Actor and critic read the state; only the base may read images.
    rollout = TrainingRollout(envs, policy, run.logger, seed, learns_from_images=False)
    buffer = components.buffer
    metrics: dict[str, Tensor] = {}
    step = 0

    def decide() -> None:
        rollout.decide()
        buffer.add_decision({**rollout.obs, **rollout.fields})

    def learn() -> None:
        nonlocal metrics
        if buffer.full:
            metrics = learner.update(buffer.tensors(policy.base.device))
            run.log_learning(metrics, step)
            buffer.restart()

    def save() -> None:
        tree = {
            "step": step,
            "action": rollout.action,
            "metrics": metrics,
            "episodes": rollout.state_dict(),
            "rollout": buffer.state_dict(),
            "learner": learner.state_dict(),
            "logger": run.logger.state_dict(),
        }
        save_checkpoint(run.checkpoints, step, tree, run.save_policy)

    if state := restore_run(run):
        step, rollout.action, metrics = (state[name] for name in ("step", "action", "metrics"))
        rollout.load_state_dict(state["episodes"])
        buffer.load_state_dict(state["rollout"])
        learner.load_state_dict(state["learner"])
        if step >= intervals.total:
            return True
    else:
        rollout.begin_episodes(np.ones(envs.num_envs, bool))

    lost = None
    try:
        if not rollout.decided:
            decide()
            learn()
        while step < intervals.total and not run.stop():
            before = step
            transition = rollout.step()
            check_reward(transition.reward, before)
            step += envs.num_envs
            _, last = rollout.last_rows
            rollout.end_episodes(transition, step)
            buffer.add_outcome(transition.reward, transition.terminated, transition.done, last)
            decide()
            learn()
            if is_due(intervals.log_every, before, step):
                run.logger.log(step, **{"train/base_queries": rollout.base_queries()})
                run.progress.update(step, success=rollout.success)
            if is_due(intervals.checkpoint_every, before, step) and step < intervals.total:
                save()
            run.measure(intervals, metrics, before, step)
    except ServerLost as error:
        lost = saved_up_to_here(error)
    save()
    if lost:
        raise lost
    return step >= intervals.total
