"""Evaluates a policy: one episode from each of a list of saved initial states."""

import csv
import io
import json
from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from robot_rl.cli.progress import ProgressReporter
from robot_rl.envs.instruction import INSTRUCTION, decode_instruction, encode_instruction
from robot_rl.envs.observation import Observation
from robot_rl.envs.vector import TaskVectorEnv
from robot_rl.errors import UserError
from robot_rl.evaluation.initial_states import InitialStates
from robot_rl.files.durable import make_folder, write_file
from robot_rl.policies.acting import ActingPolicy
from robot_rl.rollout import Rollout, Transition, episode_seed
from robot_rl.stats import mean_jerk, wilson


@dataclass(frozen=True)
class Outcome:
    """Result of one episode."""

    episode: int
    """Index into the list of initial states."""
    success: bool
    length: int
    """Number of control steps."""
    seed: int
    """Seed of the policy's noise in this episode."""
    instruction: str = ""
    """Its instruction; "" in a task without."""
    jerk: float = 0.0
    """`mean_jerk` of its actions without those of grippers."""
    held: int = 0
    """Steps in which the arm was held, for want of a chunk."""


@dataclass(frozen=True)
class Motion:
    """How smoothly a policy moves: second differences of its actions, and steps in which the arm was held."""

    jerk: float
    """Mean over episodes of `Outcome.jerk`."""
    held: int
    """Steps of all episodes."""

    @classmethod
    def of(cls, outcomes: Sequence[Outcome]) -> "Motion":
        jerks = [outcome.jerk for outcome in outcomes]
        return cls(float(np.mean(jerks)), sum(outcome.held for outcome in outcomes))

    def __str__(self) -> str:
        return f"jerk {self.jerk:.3f}" + (f", {self.held} steps held" if self.held else "")


@dataclass(frozen=True)
class Summary:
    """Success rate with its 95 % Wilson interval."""

    success: float
    interval: tuple[float, float]
    mean_length: float
    fingerprint: str
    """Fingerprint of the policy's weights."""

    @classmethod
    def of(cls, outcomes: Sequence[Outcome], fingerprint: str) -> "Summary":
        successes = [outcome.success for outcome in outcomes]
        return cls.of_episodes(successes, [outcome.length for outcome in outcomes], fingerprint)

    @classmethod
    def of_episodes(cls, success: Sequence[int], length: Sequence[int], fingerprint: str) -> "Summary":
        wins, n = sum(success), len(success)
        return cls(wins / n, wilson(wins, n), float(np.mean(length)), fingerprint)


class _Episodes:
    """Which environment runs which episode, and how the episodes ended."""

    def __init__(
        self,
        envs: TaskVectorEnv,
        policy: ActingPolicy,
        states: NDArray[np.float64],
        seed: int,
        show: ProgressReporter | None,
    ) -> None:
        self._envs, self._policy, self._states, self._seed = envs, policy, states, seed
        self._show = show
        self._waiting = list(range(len(states)))[::-1]
        self._running: dict[int, int] = {}
        self._lengths = np.zeros(envs.num_envs, int)
        self._moving = [i for i, dim in enumerate(envs.action_spec) if dim.kind != "gripper"]
        self._actions: list[list[NDArray[np.float32]]] = [[] for _ in range(envs.num_envs)]
        self._held = np.zeros(envs.num_envs, int)
        self.instructions = [""] * envs.num_envs
        """Instruction of each environment."""
        self.outcomes: list[Outcome] = []

    @property
    def all_ended(self) -> bool:
        return not self._running and not self._waiting

    def start(self, free: Sequence[int]) -> Observation:
        """Start the next episodes in these environments. Returns the observation of all."""
        mask = np.zeros(self._envs.num_envs, bool)
        starts: list[np.ndarray | None] = [None] * self._envs.num_envs
        for env_id in free:
            # An environment without an episode repeats a state, so that all can step together.
            episode = self._waiting.pop() if self._waiting else None
            if episode is not None:
                self._running[env_id] = episode
            starts[env_id] = self._states[episode if episode is not None else 0]
            mask[env_id] = True
            self._lengths[env_id] = self._held[env_id] = 0
            self._actions[env_id] = []
        obs, _ = self._envs.reset(options={"reset_mask": mask, "states": starts})
        if INSTRUCTION in obs:
            for env_id in free:
                self.instructions[env_id] = decode_instruction(obs[INSTRUCTION][env_id])
        self._policy.reset(free, [self._noise_seed(self._running.get(env_id, 0)) for env_id in free])
        return obs

    def count(self, step: Transition[NDArray[Any]]) -> list[int]:
        """Count a step and keep the outcomes of episodes that it ended. Returns the free environments."""
        self._lengths += 1
        runner = self._policy.runner
        self._held += [runner.is_held(env_id) for env_id in range(self._envs.num_envs)]
        for actions, action in zip(self._actions, step.action[:, self._moving], strict=True):
            actions.append(action)
        free: list[int] = np.flatnonzero(step.done).tolist()
        for env_id in free:
            if env_id in self._running:
                episode = self._running.pop(env_id)
                success, length = bool(step.info["success"][env_id]), int(self._lengths[env_id])
                seed, instruction = self._noise_seed(episode), self.instructions[env_id]
                jerk, held = mean_jerk(self._actions[env_id]), int(self._held[env_id])
                self.outcomes.append(Outcome(episode, success, length, seed, instruction, jerk, held))
                if self._show:
                    rate = float(np.mean([outcome.success for outcome in self.outcomes]))
                    self._show.update(len(self.outcomes), success=rate)
        return free

    def _noise_seed(self, episode: int) -> int:
        return episode_seed(self._seed, "eval", episode)


def evaluate(
    envs: TaskVectorEnv,
    policy: ActingPolicy,
    states: NDArray[np.float64],
    seed: int,
    show: ProgressReporter | None = None,
    told: Mapping[str, str] | None = None,
) -> list[Outcome]:
    """Run an episode without exploration from each initial state [N, K].

    Args:
        envs: environments to step together.
        policy: policy that acts in as many environments.
        states: initial states.
        seed: seed of the policy's noise.
        show: gets the success so far.
        told: what the policy is told instead, by instruction; success is still that of the instruction.
    """
    episodes = _Episodes(envs, policy, states, seed, show)

    def act(obs: Observation) -> NDArray[np.float32]:
        if told:
            others = [encode_instruction(told[instruction]) for instruction in episodes.instructions]
            obs = {**obs, INSTRUCTION: np.stack(others)}
        action = policy.act(obs).action
        envs.draw_next(policy.reads_next_frame())
        return action

    rollout = Rollout(envs, act, episodes.start(range(envs.num_envs)))
    for step in rollout:
        free = episodes.count(step)
        if episodes.all_ended:
            break
        if free:
            rollout.begin(episodes.start(free))
    return sorted(episodes.outcomes, key=lambda outcome: outcome.episode)


def by_instruction(outcomes: Sequence[Outcome], fingerprint: str) -> dict[str, Summary]:
    """Success by instruction, in the order of the alphabet; empty in a task without instructions."""
    asked = sorted({outcome.instruction for outcome in outcomes if outcome.instruction})
    return {
        text: Summary.of([outcome for outcome in outcomes if outcome.instruction == text], fingerprint)
        for text in asked
    }


def read_outcomes(file: Path) -> dict[str, list[Outcome]]:
    """Outcomes by policy of an `episodes.csv`, as far as all versions have written it.

    Raises:
        UserError: if it is damaged.
    """
    outcomes: dict[str, list[Outcome]] = {}
    try:
        with file.open(newline="") as lines:
            for row in csv.DictReader(lines):
                success = {"1": True, "0": False, "True": True, "False": False}[row["success"]]
                one = Outcome(int(row["episode"]), success, int(row["length"]), int(row["seed"]))
                outcomes.setdefault(row["policy"], []).append(one)
    except (KeyError, TypeError, ValueError):
        raise UserError(
            f"{file} lacks the columns policy,episode,success,length,seed, or a value is wrong: "
            "run `robot-rl eval` again"
        ) from None
    return outcomes


def check_replaced(directory: Path, fingerprints: Container[str], episodes: int, seed: int) -> None:
    """Check that results of so many episodes with this noise seed may replace those in a directory.

    Raises:
        ValueError: if they are of one of these policies and of more episodes, or of another seed.
    """
    try:
        found = json.loads((directory / "summary.json").read_text())
        same = any(one["fingerprint"] in fingerprints for one in found["policies"].values())
        before, noise = int(found["episodes"]), int(found.get("seed", seed))
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return  # there are none
    if same and (before > episodes or noise != seed):
        raise ValueError(
            f"{directory} has results of {before} episodes with noise seed {noise}: choose another out=…, or "
            "remove it"
        )


def write_evaluation(
    directory: Path,
    states: InitialStates,
    outcomes: Mapping[str, Sequence[Outcome]],
    summaries: Mapping[str, Summary],
    **facts: Any,
) -> None:
    """Write `episodes.csv` with every outcome and `summary.json` with the success rates and `facts`."""
    make_folder(directory)
    table = io.StringIO(newline="")
    writer = csv.writer(table)
    # The column of instructions is there if the task has some.
    asked = ["instruction"] if any(one.instruction for one in next(iter(outcomes.values()))) else []
    writer.writerow(["policy", "episode", "success", "length", "seed", "jerk", "held", *asked])
    for name, episodes in outcomes.items():
        for one in episodes:
            row = [name, one.episode, int(one.success), one.length, one.seed, f"{one.jerk:.6f}", one.held]
            writer.writerow([*row, *([one.instruction] if asked else [])])
    write_file(directory / "episodes.csv", table.getvalue().encode())
    summary = {
        "task": states.task,
        "episodes": len(next(iter(outcomes.values()))),
        "states": states.name,
        "states_sha256": states.sha256,
        "split": states.split,
        **facts,
        "policies": {name: vars(result) for name, result in summaries.items()},
        "motion": {name: vars(Motion.of(episodes)) for name, episodes in outcomes.items()},
    }
    if asked:
        summary["instructions"] = {
            name: {
                text: vars(result)
                for text, result in by_instruction(episodes, summaries[name].fingerprint).items()
            }
            for name, episodes in outcomes.items()
        }
    write_file(directory / "summary.json", (json.dumps(summary, indent=2) + "\n").encode())
