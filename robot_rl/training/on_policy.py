"""The training loop of on-policy methods."""

from torch import Tensor

from robot_rl.errors import ServerLost
from robot_rl.policies.store import fingerprint
from robot_rl.training.components import OnPolicyComponents
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


class _Updater:
    """Updates the learner whenever the rollout buffer is full, logs and saves."""

    def __init__(self, components: OnPolicyComponents, rollout: TrainingRollout, run: Run) -> None:
        self.rollout, self.buffer, self.learner = rollout, components.buffer, components.learner
        self.metrics: dict[str, Tensor] = {}
        """Metrics of the last update."""
        self._device, self._run = components.agent.policy.base.device, run
        self._base = fingerprint(components.agent.networks.base)

    def decide(self, step: int) -> None:
        """Choose the next action, then update if the buffer is full; `step` is the environment step."""
        self.rollout.decide()
        assert self.rollout.action is not None
        check_action(self.rollout.action, self.metrics, step)
        self.buffer.add_decision({**self.rollout.obs, **self.rollout.fields})
        if self.buffer.full:
            self.metrics = self.learner.update(self.buffer.tensors(self._device))
            self._run.log_learning(self.metrics, step)
            self.buffer.restart()

    def save(self, step: int, *, replace: bool = False) -> None:
        """Write a checkpoint, in place of one of the same step or not."""
        tree = {
            "action": self.rollout.action,
            "metrics": self.metrics,
            "base": self._base,
            "episodes": self.rollout.state_dict(),
            "rollout": self.buffer.state_dict(),
            "learner": self.learner.state_dict(),
        }
        self._run.save(step, tree, replace=replace)

    def begin_or_resume(self) -> int:
        """Continue from the newest checkpoint, or begin the first episodes; returns the environment step."""
        if (state := restore_run(self._run, self._base)) is None:
            self.rollout.begin_episodes()
            return 0
        self.rollout.action, self.metrics = state["action"], state["metrics"]
        self.rollout.load_state_dict(state["episodes"])
        self.buffer.load_state_dict(state["rollout"])
        self.learner.load_state_dict(state["learner"])
        return int(state["step"])


def train_on_policy(components: OnPolicyComponents, intervals: Intervals, run: Run, seed: int) -> bool:
    """Act, learn from the last steps, repeat. Returns True when all steps are done, False when stopped.

    Learning needs the value of the state after the last step, which depends on the base's action there. So
    the action there is chosen before the update, and is the first one of the next rollout, stored with its
    density under the policy before the update.
    """
    envs, policy = components.envs, components.agent.policy
    # Actor and critic read no images but what the policy reads when it acts.
    rollout = TrainingRollout(envs, policy, run.logger, seed, learns_from_images=False)
    updater = _Updater(components, rollout, run)
    step = updater.begin_or_resume()
    # An evaluation can be left, after which a server was lost.
    was_last = step >= intervals.total
    if was_last and run.evaluated_to >= step:
        return True

    def log() -> None:
        if is_due(intervals.log_every, run.logged, step):
            run.logger.log(step, **rollout.base_calls())
            run.progress.update(step, success=rollout.success)
        run.logged = step

    lost = None
    try:
        if not rollout.decided:
            updater.decide(step)
        log()
        run.evaluate_and_snapshot(intervals, updater.metrics, step)
        while step < intervals.total and not run.stop():
            before = step
            transition = rollout.step()
            check_reward(transition.reward, before)
            step += envs.num_envs
            _, last = rollout.last_rows
            rollout.end_episodes(transition, step)
            components.buffer.add_outcome(transition.reward, transition.terminated, transition.done, last)
            updater.decide(step)
            log()
            if is_due(intervals.checkpoint_every, before, step) and step < intervals.total:
                updater.save(step)
            run.evaluate_and_snapshot(intervals, updater.metrics, step)
    except ServerLost as error:
        lost = saved_up_to_here(error)
    updater.save(step, replace=was_last)
    if lost:
        raise lost
    return step >= intervals.total
