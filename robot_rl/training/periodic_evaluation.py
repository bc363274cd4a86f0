"""Evaluation during training, without effect on it."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

import torch

from robot_rl.envs.action import repeated_in_hold
from robot_rl.envs.task import TaskConfig
from robot_rl.evaluation.evaluate import Summary, evaluate
from robot_rl.evaluation.initial_states import load_states
from robot_rl.evaluation.policy_snapshots import Saved, write_record
from robot_rl.factory import make_vector_env
from robot_rl.policies.async_runner import execute_asynchronously
from robot_rl.policies.asynchronous import SYNCHRONOUS, AsyncOptions
from robot_rl.runs import EVALUATIONS
from robot_rl.saved_policies.loading import acting_policy, load_networks
from robot_rl.training.logger import RunLogger

_NUM_ENVS = 4  # as `robot-rl eval`, so that its result for the last checkpoint is the same
_SEED = 0


class TrainingClock:
    """A clock that stops during evaluations, so that a run's wall-clock time is that of training alone."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._paused = 0.0

    def __call__(self) -> float:
        return self._clock() - self._paused

    @contextmanager
    def stopped(self) -> Iterator[None]:
        """Context in which the clock does not advance."""
        start = self._clock()
        try:
            yield
        finally:
            self._paused += self._clock() - start


class PeriodicEvaluation:
    """Evaluates the current policy on the task's validation states.

    It has separate environments, and saves and loads the policy, so that the policy is as in a deployment and
    shares no chunks, histories and generators with training.
    """

    def __init__(
        self,
        task: TaskConfig,
        episodes: int,
        device: torch.device,
        save_policy: Callable[[Path], None],
        clock: TrainingClock,
        execution: AsyncOptions = SYNCHRONOUS,
    ) -> None:
        """Build the environments and load the states; policies act with the given delay.

        Raises:
            ValueError: if the list of initial states is missing or too short.
        """
        self._envs = make_vector_env(task, _NUM_ENVS)
        try:
            self._initial = load_states(self._envs)
            if not 1 <= episodes <= len(self._initial.states):
                raise ValueError(
                    f"eval_episodes={episodes}: the list {self._initial.name} has "
                    f"{len(self._initial.states)} states; choose 1 to {len(self._initial.states)}"
                )
        except ValueError:
            self._envs.close()
            raise
        self._episodes, self._device, self._save_policy, self._clock = episodes, device, save_policy, clock
        self._execution = execution

    def evaluate(self, step: int, directory: Path, logger: RunLogger) -> Summary:
        """Log success and episode length at a step, and write all episodes to `evaluations/` of the run."""
        begun = time.monotonic()
        # Building the networks draws initial weights from torch's global generator.
        with self._clock.stopped(), torch.random.fork_rng(), TemporaryDirectory() as folder:
            self._save_policy(Path(folder))
            networks, _ = load_networks(Path(folder) / "policy", self._device)
            states = self._initial.states[: self._episodes]
            policy = acting_policy(networks, _NUM_ENVS)
            execute_asynchronously(policy, self._execution, repeated_in_hold(self._envs.action_spec))
            outcomes = evaluate(self._envs, policy, states, _SEED)
        summary = Summary.of(outcomes, "")
        write_record(
            directory / EVALUATIONS,
            Saved(step, logger.seconds),
            self._initial,
            outcomes,
            eval_seconds=time.monotonic() - begun,
        )
        logger.log(
            step,
            **{
                "eval/success": summary.success,
                "eval/episodes": len(outcomes),
                "eval/episode_length": summary.mean_length,
            },
        )
        return summary

    def close(self) -> None:
        self._envs.close()
