"""The two training loops. They drive what they are given and name no concrete class."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from torch import Tensor

from envs.vector import RobosuiteVectorEnv
from policies.wrapped import WrappedPolicy
from robot_rl.checkpoint import list_checkpoints, load_checkpoint, save_checkpoint
from robot_rl.data.replay import SOURCES, Replay
from robot_rl.errors import mistakes
from robot_rl.logger import RunLogger
from robot_rl.seeds import episode_seed


class Learner(Protocol):
    """What a loop needs of a learner."""

    def state_dict(self) -> dict[str, Any]: ...
    def load_state_dict(self, state: Mapping[str, Any]) -> None: ...


class OfflineLearner(Learner, Protocol):
    """Learns from a dataset that it holds."""

    def update(self) -> dict[str, Tensor]: ...


class OnlineLearner(Learner, Protocol):
    """Learns from what the loop stores."""

    def update(self, online: Replay, demos: Replay | None) -> dict[str, Tensor]: ...


class Show(Protocol):
    """Where progress is shown."""

    def update(self, step: int, **figures: float) -> None: ...


@dataclass(frozen=True)
class Cadence:
    """How often a loop does what costs time, in its own steps."""

    total: int
    log_every: int
    checkpoint_every: int


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

    @property
    def checkpoints(self) -> Path:
        return self.directory / "checkpoints"


class NotFinite(RuntimeError):
    """A loss, value or gradient became NaN or infinite; the last checkpoint is good."""


def _restored(run: Run) -> dict[str, Any] | None:
    found = list_checkpoints(run.checkpoints)
    if not found:
        return None
    with mistakes():
        state = load_checkpoint(found[-1])
    run.logger.load_state_dict(state["logger"])
    return state


def _checked(metrics: Mapping[str, Tensor], step: int) -> dict[str, float]:
    values = {name: float(value) for name, value in metrics.items()}
    bad = [name for name, value in values.items() if not np.isfinite(value)]
    if bad:
        raise NotFinite(
            f"{', '.join(bad)} became NaN or infinite at step {step}; the last checkpoint is untouched"
        )
    return values


def train_offline(learner: OfflineLearner, cadence: Cadence, run: Run) -> bool:
    """Gradient steps on a dataset. Returns True when all steps are done, False when stopped."""
    step = 0
    if state := _restored(run):
        learner.load_state_dict(state["learner"])
        step = state["step"]
        if step >= cadence.total:
            return True

    metrics: dict[str, Tensor] = {}

    def save() -> None:
        _checked(metrics, step)
        tree = {"step": step, "learner": learner.state_dict(), "logger": run.logger.state_dict()}
        save_checkpoint(run.checkpoints, step, tree, run.save_policy)

    while step < cadence.total and not run.stop():
        metrics = learner.update()
        step += 1
        if step % cadence.log_every == 0 or step == cadence.total:
            values = _checked(metrics, step)
            run.logger.log(step, **{f"learn/{name}": value for name, value in values.items()})
            run.show.update(step, **values)
        if step % cadence.checkpoint_every == 0 and step < cadence.total:
            save()
    save()
    return step >= cadence.total


@dataclass
class Schedule:
    """What an online run does when, in environment steps."""

    warmup_steps: int
    """The base alone acts."""
    updates_per_step: float
    demos: Replay | None = None


@dataclass
class _Progress:
    """Counters of an online run; all of them are in its checkpoints."""

    step: int = 0
    """Environment steps."""
    episodes: int = 0
    """Episodes begun."""
    updates_owed: float = 0.0
    slot_seeds: list[int] = field(default_factory=list)
    slot_lengths: list[int] = field(default_factory=list)
    outcomes: list[float] = field(default_factory=list)
    """Success of the last finished episodes."""


def train_online(
    envs: RobosuiteVectorEnv,
    policy: WrappedPolicy,
    learner: OnlineLearner,
    replay: Replay,
    schedule: Schedule,
    cadence: Cadence,
    run: Run,
    seed: int,
) -> bool:
    """Act, store, learn. Returns True when all steps are done, False when stopped.

    The ratio of updates to environment steps is kept exactly, whatever the number of environments.
    """
    n = envs.num_envs
    slots = np.arange(n)
    metrics: dict[str, Tensor] = {}
    progress = _Progress(slot_seeds=[0] * n, slot_lengths=[0] * n)

    def begin(mask: np.ndarray) -> dict[str, np.ndarray]:
        for slot in np.flatnonzero(mask):
            progress.slot_seeds[slot] = episode_seed(seed, "train", progress.episodes)
            progress.slot_lengths[slot] = 0
            progress.episodes += 1
        obs, _ = envs.reset(seed=progress.slot_seeds, options={"reset_mask": mask})
        policy.reset(slots[mask].tolist(), [progress.slot_seeds[slot] for slot in slots[mask]])
        return obs

    def save() -> None:
        _checked(metrics, progress.step)
        tree = {
            "metrics": metrics,
            "progress": vars(progress),
            "obs": obs,
            "envs": envs.get_states(),
            "policy": policy.state_dict(),
            "learner": learner.state_dict(),
            "replay": replay.state_dict(),
            "logger": run.logger.state_dict(),
        }
        save_checkpoint(run.checkpoints, progress.step, tree, run.save_policy)

    if state := _restored(run):
        progress = _Progress(**state["progress"])
        # The environments are built anew, so each slot begins an episode before its state is put back.
        envs.reset(seed=progress.slot_seeds)
        envs.set_states(state["envs"])
        obs = state["obs"]
        policy.load_state_dict(state["policy"])
        learner.load_state_dict(state["learner"])
        replay.load_state_dict(state["replay"])
        metrics = state["metrics"]
        if progress.step >= cadence.total:
            return True
    else:
        obs = begin(np.ones(n, bool))

    next_log = (progress.step // cadence.log_every + 1) * cadence.log_every
    next_save = (progress.step // cadence.checkpoint_every + 1) * cadence.checkpoint_every
    while progress.step < cadence.total and not run.stop():
        warming_up = progress.step < schedule.warmup_steps
        policy.active = not warming_up
        decision = policy.act(obs, explore=True)
        next_obs, reward, terminated, truncated, info = envs.step(decision.action)
        replay.add(
            slots,
            state=obs["state"],
            base=decision.base,
            action=info["applied_action"],
            reward=reward,
            terminated=terminated,
            source=SOURCES.index("base" if warming_up else "policy"),
        )
        obs = next_obs
        progress.step += n
        for slot in slots:
            progress.slot_lengths[slot] += 1
        done = terminated | truncated
        if done.any():
            ended = slots[done]
            final = {key: value[done] for key, value in obs.items()}
            replay.end(ended, state=final["state"], base=policy.act(final, slots=ended).base)
            for slot in ended:
                progress.outcomes.append(float(info["success"][slot]))
                run.logger.log(
                    progress.step,
                    **{
                        "train/success": progress.outcomes[-1],
                        "train/episode_length": float(progress.slot_lengths[slot]),
                    },
                )
            progress.outcomes = progress.outcomes[-40:]
            obs = begin(done)

        if not warming_up:
            progress.updates_owed += n * schedule.updates_per_step
            while progress.updates_owed >= 1:
                metrics |= learner.update(replay, schedule.demos)
                progress.updates_owed -= 1
        if progress.step >= next_log:
            next_log += cadence.log_every
            values = _checked(metrics, progress.step)
            run.logger.log(progress.step, **{f"learn/{name}": value for name, value in values.items()})
            run.show.update(progress.step, success=float(np.mean(progress.outcomes or [0.0])))
        if progress.step >= next_save and progress.step < cadence.total:
            next_save += cadence.checkpoint_every
            save()
    save()
    return progress.step >= cadence.total
