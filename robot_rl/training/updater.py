"""Updates a learner from a replay, in all training loops of off-policy methods, with `hil` and `workers`."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors.torch import save as save_tensors
from torch import Tensor

from robot_rl.data.replay_buffer import SOURCES, Batch
from robot_rl.errors import ServerLost, as_user_errors
from robot_rl.files.durable import write_file
from robot_rl.imagination.imagination import Imagination
from robot_rl.learning.config import OffPolicyConfig
from robot_rl.learning.sampling import MixedSampler
from robot_rl.policies.store import fingerprint
from robot_rl.training.components import OffPolicyComponents
from robot_rl.training.loop import Intervals, NotFinite, Run, finite_metrics, saved_up_to_here
from robot_rl.training.rollout import StoredStep
from robot_rl.world_model_server.client import RemoteModel


class Updater:
    """Updates a learner from a replay: counts the updates that are due, makes them, logs and saves."""

    def __init__(self, config: OffPolicyConfig, components: OffPolicyComponents, run: Run) -> None:
        self.config, self.imagination = config, components.imagination
        self.learner, self.replay, self.sampler = components.learner, components.replay, components.sampler
        self.metrics: dict[str, Tensor] = {}
        """Metrics of the last update."""
        self.pending = 0.0
        """Number of updates that are due for the environment steps so far, and not made yet."""
        self.lost: ServerLost | None = None
        """Why a server that the run needs cannot be used: the run saves a checkpoint, and ends with this."""
        self._made = self._queries = 0
        """Updates since the last log, and observations for which the base was sampled in them."""
        self._unsaved = False
        """Whether updates were made since the last checkpoint, as in the critics' warm-up within one step."""
        self._run = run
        # Before anything is loaded: some methods train the base too.
        self.base = fingerprint(components.agent.networks.base)
        """Fingerprint of the frozen base."""

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

    def update(self, updates: int, step: int) -> int:
        """Make updates, at an environment step of the run; none without the run's servers, see `lost`.

        Returns:
            How many were made.

        Raises:
            NotFinite: if a metric is NaN or infinite.
        """
        made, queries = 0, self._base_queries
        try:
            if self.imagination and self.imagination.is_due:
                self._refit(self.imagination, step)
            for _ in range(updates):
                batch, actor_rows = sample_batch(self.sampler, self.imagination, step)
                self.metrics.update(self.learner.update(batch, actor_rows))
                made += 1
                _check_finite(self.metrics, batch, step, self._run.directory)
        except ServerLost as error:
            self.lost = saved_up_to_here(error)
            self.pending += updates - made
        self._made += made
        self._unsaved |= made > 0
        self._queries += self._base_queries - queries
        return made

    @property
    def _base_queries(self) -> int:
        imagined = self.imagination.sample_base.queries if self.imagination else 0
        return self.learner.base_queries + imagined

    def is_behind(self, step: int) -> bool:
        """Whether a server was lost before the updates and evaluations of the run's last step."""
        return self.pending >= 1 or self._run.evaluated_to < step

    def evaluate_and_snapshot(self, intervals: Intervals, step: int) -> None:
        """Evaluate and save the policy if that is due, unless a server is lost, see `lost`.

        Raises:
            NotFinite: if a metric of the last update is NaN or infinite.
        """
        if self.lost:
            return
        if not self.learner.warmed_up:
            self._run.evaluated_to = step
            return
        try:
            self._run.evaluate_and_snapshot(intervals, self.metrics, step)
        except ServerLost as error:
            self.lost = saved_up_to_here(error)

    def _refit(self, imagination: Imagination, step: int) -> None:
        if isinstance(imagination.model, RemoteModel):
            _refit_elsewhere(imagination, step)
        else:
            imagination.refit(step)
        lines = [json.dumps(record) + "\n" for record in imagination.history]
        write_file(self._run.directory / "imagination.jsonl", "".join(lines).encode())

    def store(self, streams: NDArray[np.int64], step: StoredStep) -> None:
        """Add a step of B environments to these streams [B] of the replay."""
        self.replay.add(
            streams,
            action=step.action,
            reward=step.reward,
            terminated=step.terminated,
            source=SOURCES.index(step.source),
            **step.fields,
        )
        if len(step.ended):
            self.replay.end(streams[step.ended], **step.last)
            for env_id in step.ended:
                self.end_episode(int(streams[env_id]), success=bool(step.success[env_id]))

    def end_episode(self, env_id: int, *, success: bool, interrupted: bool = False) -> None:
        """Record the end of an environment's episode; a world model does not learn from interrupted ones."""
        if self.imagination and not interrupted:
            rows = self.replay.episode_rows(env_id, self.imagination.episode_fields)
            self.imagination.add_rows(rows, success=success)
        self.replay.close_episode(np.array([env_id]), success=success)

    def log(self, step: int) -> None:
        """Write the metrics of the last update.

        Raises:
            NotFinite: if one of them is NaN or infinite.
        """
        metrics = dict(self.metrics)
        if self.imagination:
            figures = {"imagined_share": self.imagination.share, **self.imagination.figures}
            metrics |= {name: torch.tensor(value) for name, value in figures.items()}
        if self._queries:
            metrics["base_queries"] = torch.tensor(self._queries / max(self._made, 1))
        self._made = self._queries = 0
        self._run.log_learning(metrics, step)

    @property
    def progress(self) -> dict[str, float]:
        """Figures of the progress line besides success."""
        return {"imagined": self.imagination.share} if self.imagination else {}

    def save(self, step: int, more: Mapping[str, Any], *, replace: bool = False) -> None:
        """Write a checkpoint; `more` is the state of the loop.

        One of the same step is replaced if updates were made since, or with `replace`.

        Raises:
            NotFinite: if a metric is NaN or infinite.
        """
        finite_metrics(self.metrics, step)
        tree = {
            **more,
            "owed": self.pending,
            "base": self.base,
            "metrics": self.metrics,
            "queries": (self._made, self._queries),
            "learner": self.learner.state_dict(),
            "replay": self.replay.state_dict(),
            "batches": self.sampler.state_dict(),
            "imagination": self.imagination and self.imagination.state_dict(),
        }
        self._run.save(step, tree, replace=replace or self._unsaved)
        self._unsaved = False

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from a checkpoint that `save` wrote."""
        self.pending, self.metrics = state["owed"], state["metrics"]
        self._made, self._queries = state["queries"]
        self.learner.load_state_dict(state["learner"])
        with as_user_errors():
            self.replay.load_state_dict(state["replay"])
            if self.imagination:
                self.imagination.load_state_dict(state["imagination"])
        self.sampler.load_state_dict(state["batches"])


def _refit_elsewhere(imagination: Imagination, step: int) -> None:
    """Refit a model in another process; if it dies on the way, all is as before."""
    before = imagination.state_dict()
    try:
        imagination.refit(step)
        # It may die before the next checkpoint.
        imagination.model.checkpoint()
    except ServerLost:
        imagination.load_state_dict(before, with_model=False)
        raise


def sample_batch(
    sampler: MixedSampler, imagination: Imagination | None, step: int
) -> tuple[Batch, int | None]:
    """A batch whose last rows are imagined, and how many of its rows the actor learns from (None: all)."""
    size = sampler.config.batch_size
    count = int(imagination.share * size) if imagination else 0
    imagined = imagination.sample(count) if imagination and count else None
    real = sampler.sample(step, size - count if imagined else None)
    if imagination:
        imagination.learn_values(real)
    if imagined is None:
        return real, None
    real["weight"] = torch.ones_like(real["reward"])
    rows = imagined.rows
    batch = {name: torch.cat([value, rows[name]]) for name, value in real.items() if name in rows}
    return batch, None if imagined.for_actor else size - count


def _check_finite(metrics: Mapping[str, Tensor], batch: Batch, step: int, directory: Path) -> None:
    """Stop at the first update whose metrics are not finite, and write its batch to the run's directory.

    Not on a GPU, where reading a metric waits for the device: there metrics are checked when they are logged.
    """
    if any(value.device.type == "cpu" and not bool(value.isfinite()) for value in metrics.values()):
        path = directory / "not_finite_batch.safetensors"
        write_file(path, save_tensors({name: value.contiguous() for name, value in batch.items()}))
        bad = [name for name, value in metrics.items() if not bool(value.isfinite())]
        raise NotFinite(
            f"{', '.join(bad)} became NaN or infinite at step {step}; the last checkpoint is intact, "
            f"the batch is in {path}"
        )
