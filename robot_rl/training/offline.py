"""The training loop of offline methods: gradient steps on a dataset."""

from torch import Tensor

from robot_rl.learning.learner import OfflineLearner
from robot_rl.training.loop import Intervals, Run, finite_metrics, restore_run


def train_offline(learner: OfflineLearner, intervals: Intervals, run: Run) -> bool:
    """Make gradient steps on a dataset. Returns True when all steps are done, False when stopped."""
    step = 0
    if state := restore_run(run):
        learner.load_state_dict(state["learner"])
        step = state["step"]
        if step >= intervals.total:
            return True

    metrics: dict[str, Tensor] = {}

    def due(every: int) -> bool:
        return every > 0 and step % every == 0

    def save() -> None:
        finite_metrics(metrics, step)
        # Of a policy that is sharded, every process gives its part.
        tree = {"learner": learner.state_dict()}
        if run.is_main:
            # First, so that a run which is killed here saves it again.
            if run.snapshot and due(intervals.save_every):
                run.snapshot(step)
            run.save(step, tree)

    while step < intervals.total and not run.stop():
        metrics = learner.update()
        step += 1
        if due(intervals.log_every) or step == intervals.total:
            run.progress.update(step, **run.log_learning(metrics, step))
        if (due(intervals.checkpoint_every) or due(intervals.save_every)) and step < intervals.total:
            save()
    save()
    return step >= intervals.total
