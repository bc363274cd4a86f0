"""The two training loops. They drive what they are given and name no concrete class."""

from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors.torch import save as save_tensors
from torch import Tensor

from robot_rl.data.replay import SOURCES, Batch, Replay
from robot_rl.envs.vector import RobosuiteVectorEnv
from robot_rl.errors import mistakes
from robot_rl.hardware.durable import write_file
from robot_rl.policies.acting import WrappedPolicy
from robot_rl.training.checkpoint import list_checkpoints, load_checkpoint, save_checkpoint
from robot_rl.training.episodes import Episodes
from robot_rl.training.logger import RunLogger


class Learner(Protocol):
    """What a loop needs of a learner."""

    def state_dict(self) -> dict[str, Any]: ...
    def load_state_dict(self, state: Mapping[str, Any]) -> None: ...


class OfflineLearner(Learner, Protocol):
    """Learns from a dataset that it holds."""

    def update(self) -> dict[str, Tensor]: ...


class OnlineLearner(Learner, Protocol):
    """Learns from batches of what the loop stores."""

    @property
    def warm(self) -> bool:
        """Whether what it learned may act."""
        ...

    def update(self, batch: Batch) -> dict[str, Tensor]: ...


class Show(Protocol):
    """Where progress is shown."""

    def update(self, step: int, **figures: float) -> None: ...


@dataclass(frozen=True)
class Cadence:
    """How often a loop does what costs time, in its own steps."""

    total: int
    log_every: int
    checkpoint_every: int
    eval_every: int = 0
    """0 never evaluates while training."""
    save_every: int = 0
    """0 keeps no policy but that of the newest checkpoints."""


@dataclass(frozen=True)
class Run:
    """Where a loop writes and how it is told to stop."""

    directory: Path
    logger: RunLogger
    show: Show
    stop: Callable[[], bool]
    """True once the user asked to stop; the loop then saves a checkpoint and returns."""
    save_policy: Callable[[Path], None]
    """Writes the policy as it is now into a checkpoint's directory."""
    evaluate: Callable[[int], None] | None = None
    """Measures the policy as it is at an environment step, without a trace in the training."""
    keep: Callable[[int], None] | None = None
    """Keeps the policy as it is at an environment step, to be measured afterwards."""

    @property
    def checkpoints(self) -> Path:
        return self.directory / "checkpoints"


_PORTION = 32
"""Updates of the critics' warm-up between two looks at whether the user asked to stop."""


class NotFinite(RuntimeError):
    """A loss, value or gradient became NaN or infinite; the last checkpoint is good."""


def restored(run: Run) -> dict[str, Any] | None:
    """The newest checkpoint of a run; its logger is put back already."""
    found = list_checkpoints(run.checkpoints)
    if not found:
        return None
    with mistakes():
        state = load_checkpoint(found[-1])
    run.logger.load_state_dict(state["logger"])
    return state


def checked(metrics: Mapping[str, Tensor], step: int) -> dict[str, float]:
    """Metrics as numbers.

    Raises:
        NotFinite: one of them is none.
    """
    values = {name: float(value) for name, value in metrics.items()}
    bad = [name for name, value in values.items() if not np.isfinite(value)]
    if bad:
        raise NotFinite(
            f"{', '.join(bad)} became NaN or infinite at step {step}; the last checkpoint is untouched"
        )
    return values


def due(every: int, before: int, now: int) -> bool:
    """Whether what happens every so many steps (0: never) does so between two of them."""
    return every > 0 and now // every > before // every


def train_offline(learner: OfflineLearner, cadence: Cadence, run: Run) -> bool:
    """Gradient steps on a dataset. Returns True when all steps are done, False when stopped."""
    step = 0
    if state := restored(run):
        learner.load_state_dict(state["learner"])
        step = state["step"]
        if step >= cadence.total:
            return True

    metrics: dict[str, Tensor] = {}

    def save() -> None:
        checked(metrics, step)
        tree = {"step": step, "learner": learner.state_dict(), "logger": run.logger.state_dict()}
        save_checkpoint(run.checkpoints, step, tree, run.save_policy)

    while step < cadence.total and not run.stop():
        metrics = learner.update()
        step += 1
        if step % cadence.log_every == 0 or step == cadence.total:
            values = checked(metrics, step)
            run.logger.log(step, **{f"learn/{name}": value for name, value in values.items()})
            run.show.update(step, **values)
        if step % cadence.checkpoint_every == 0 and step < cadence.total:
            save()
    save()
    return step >= cadence.total


@dataclass
class Schedule:
    """What an online run does when."""

    warmup_steps: int
    """First environment steps, in which the base alone acts and nothing is learned."""
    critic_warmup: int
    """Updates of the critics alone that are made at the end of these, before the next step."""
    updates_per_step: float
    """Updates per environment step from then on."""
    success_weight: float = 1.0
    """How many times as often steps of successful episodes are drawn as those of failed ones."""


class Batches(Protocol):
    """Where a learner's batches come from."""

    def draw(self, step: int) -> Batch: ...
    def state_dict(self) -> dict[str, Any]: ...
    def load_state_dict(self, state: Mapping[str, Any]) -> None: ...


class Learning:
    """The half of online training that learns: it closes episodes, owes updates and makes them."""

    def __init__(
        self, learner: OnlineLearner, replay: Replay, batches: Batches, schedule: Schedule, run: Run
    ) -> None:
        self.learner, self.replay, self.batches, self.schedule = learner, replay, batches, schedule
        self.metrics: dict[str, Tensor] = {}
        """Of the last update."""
        self.owed = 0.0
        """Updates that the steps so far ask for and that are not made yet."""
        self._run = run

    def owe(self, steps: int, before: int) -> None:
        """So many environment steps were made after step `before` of the run."""
        schedule = self.schedule
        if before >= schedule.warmup_steps:
            self.owed += steps * schedule.updates_per_step
        elif before + steps >= schedule.warmup_steps:
            self.owed += schedule.critic_warmup

    def take(self, most: int | None = None) -> int:
        """Whole updates that are owed, at most `most` of them; whoever asks makes them."""
        updates = int(self.owed) if most is None else min(int(self.owed), most)
        self.owed -= updates
        return updates

    def learn(self, updates: int, step: int) -> None:
        """Make updates, at an environment step of the run.

        Raises:
            NotFinite: a metric is no number any more.
        """
        for _ in range(updates):
            batch = self.batches.draw(step)
            self.metrics.update(self.learner.update(batch))
            _refuse_not_finite(self.metrics, batch, step, self._run.directory)

    def close(self, slot: int, *, success: bool) -> None:
        """The episode of a slot is over."""
        weight = 1.0 if success else 1 / self.schedule.success_weight
        self.replay.close_episode(np.array([slot]), success=success, weight=weight)

    def log(self, step: int) -> None:
        """Write the metrics of the last update.

        Raises:
            NotFinite: one of them is no number.
        """
        values = checked(self.metrics, step)
        self._run.logger.log(step, **{f"learn/{name}": value for name, value in values.items()})

    def save(self, step: int, more: Mapping[str, Any]) -> None:
        """Write a checkpoint with what the loop adds to it.

        Raises:
            NotFinite: a metric is no number.
        """
        checked(self.metrics, step)
        tree = {
            "step": step,
            **more,
            "owed": self.owed,
            "metrics": self.metrics,
            "learner": self.learner.state_dict(),
            "replay": self.replay.state_dict(),
            "batches": self.batches.state_dict(),
            "logger": self._run.logger.state_dict(),
        }
        save_checkpoint(self._run.checkpoints, step, tree, self._run.save_policy)

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from what `save` wrote."""
        self.owed, self.metrics = state["owed"], state["metrics"]
        self.learner.load_state_dict(state["learner"])
        self.replay.load_state_dict(state["replay"])
        self.batches.load_state_dict(state["batches"])


def train_online(
    envs: RobosuiteVectorEnv,
    policy: WrappedPolicy,
    learner: OnlineLearner,
    replay: Replay,
    batches: Batches,
    schedule: Schedule,
    cadence: Cadence,
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
    slots = np.arange(n)
    episodes = Episodes(envs, policy, run.logger, seed)
    learning = Learning(learner, replay, batches, schedule, run)
    step = 0

    def decide() -> dict[str, NDArray[Any]]:
        policy.active = learner.warm and step >= schedule.warmup_steps
        decision = policy.act(episodes.obs, explore=True, record=True)
        return {"action": decision.action, **decision.record()}

    def save() -> None:
        learning.save(step, {"decided": decided, "episodes": episodes.state_dict()})

    if state := restored(run):
        step, decided = state["step"], state["decided"]
        episodes.load_state_dict(state["episodes"])
        learning.load_state_dict(state)
        if step >= cadence.total:
            return True
    else:
        episodes.begin(np.ones(n, bool))
        decided = decide()

    with ThreadPoolExecutor(1, "learner", torch.set_num_threads, (torch.get_num_threads(),)) as worker:
        while step < cadence.total and not run.stop():
            if not learner.warm and learning.owed >= _PORTION:
                learning.learn(learning.take(_PORTION), step)
                continue
            before, obs = step, episodes.obs
            updating = worker.submit(learning.learn, learning.take(), before)
            next_obs, reward, terminated, truncated, info = envs.step(decided.pop("action"))
            updating.result()
            refuse_reward(reward, before)
            replay.add(
                slots,
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
                ended = slots[done]
                final = {key: value[done] for key, value in next_obs.items()}
                replay.end(ended, **final, **policy.act(final, slots=ended, record=True).record())
                for slot in ended:
                    success = bool(info["success"][slot])
                    learning.close(slot, success=success)
                    episodes.finish(slot, step, success=success)
                episodes.begin(done)
            learning.owe(n, before)
            decided = decide()
            if due(cadence.log_every, before, step):
                learning.log(step)
                run.show.update(step, success=episodes.success)
            if step >= cadence.total:
                # After the decision, so that a longer run goes on as if it had not paused here.
                learning.learn(learning.take(), step)
            if run.evaluate and learner.warm and due(cadence.eval_every, before, step):
                checked(learning.metrics, step)
                run.evaluate(step)
            if run.keep and learner.warm and due(cadence.save_every, before, step):
                checked(learning.metrics, step)
                run.keep(step)
            if due(cadence.checkpoint_every, before, step) and step < cadence.total:
                save()
    save()
    return step >= cadence.total


def refuse_reward(reward: NDArray[np.float32], step: int) -> None:
    """Raises NotFinite where a reward is no number."""
    if not np.isfinite(reward).all():
        raise NotFinite(f"the reward became NaN or infinite at step {step}")


def _refuse_not_finite(metrics: Mapping[str, Tensor], batch: Batch, step: int, directory: Path) -> None:
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
