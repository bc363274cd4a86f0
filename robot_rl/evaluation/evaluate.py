"""Evaluates a policy: one episode from each of a list of saved initial states."""

import csv
import io
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from robot_rl.cli.progress import ProgressReporter
from robot_rl.envs.instruction import INSTRUCTION, decode_instruction, encode_instruction
from robot_rl.envs.observation import Observation
from robot_rl.envs.vector import RobosuiteVectorEnv
from robot_rl.evaluation.initial_states import InitialStates
from robot_rl.evaluation.statistics import wilson
from robot_rl.hardware.durable import make_folder, write_file
from robot_rl.policies.acting import ActingPolicy
from robot_rl.rollout import Rollout, episode_seed


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


def evaluate(
    envs: RobosuiteVectorEnv,
    policy: ActingPolicy,
    states: NDArray[np.float64],
    seed: int,
    show: ProgressReporter | None = None,
    told: Mapping[str, str] | None = None,
) -> list[Outcome]:
    """Run an episode without exploration from each initial state [N, K].

    Args:
        envs: environments to step together.
        policy: policy with as many slots.
        states: initial states.
        seed: seed of the policy's noise.
        show: gets the success so far.
        told: what the policy is told instead, by instruction; success is still that of the instruction.
    """
    waiting = list(range(len(states)))[::-1]
    outcomes: list[Outcome] = []
    running: dict[int, int] = {}
    lengths = np.zeros(envs.num_envs, int)
    asked: dict[int, str] = {}

    def start_episodes(free: Sequence[int]) -> dict[str, np.ndarray]:
        mask = np.zeros(envs.num_envs, bool)
        starts: list[np.ndarray | None] = [None] * envs.num_envs
        for env_id in free:
            # An environment without an episode repeats a state, so that all can step together.
            episode = waiting.pop() if waiting else None
            if episode is not None:
                running[env_id] = episode
            starts[env_id] = states[episode if episode is not None else 0]
            mask[env_id] = True
            lengths[env_id] = 0
        obs, _ = envs.reset(options={"reset_mask": mask, "states": starts})
        if INSTRUCTION in obs:
            asked.update({env_id: decode_instruction(obs[INSTRUCTION][env_id]) for env_id in free})
        policy.reset(free, [episode_seed(seed, "eval", running.get(env_id, 0)) for env_id in free])
        return obs

    def act(obs: Observation) -> NDArray[np.float32]:
        if told:
            others = [encode_instruction(told[asked[env_id]]) for env_id in range(envs.num_envs)]
            obs = {**obs, INSTRUCTION: np.stack(others)}
        action = policy.act(obs).action
        envs.draw_next(policy.reads_next_frame())
        return action

    rollout = Rollout(envs, act, start_episodes(range(envs.num_envs)))
    for step in rollout:
        lengths += 1
        ended = np.flatnonzero(step.done).tolist()
        for env_id in ended:
            if env_id in running:
                episode = running.pop(env_id)
                outcomes.append(
                    Outcome(
                        episode,
                        bool(step.info["success"][env_id]),
                        int(lengths[env_id]),
                        episode_seed(seed, "eval", episode),
                        asked.get(env_id, ""),
                    )
                )
                if show:
                    rate = float(np.mean([outcome.success for outcome in outcomes]))
                    show.update(len(outcomes), success=rate)
        if not running and not waiting:
            break
        if ended:
            rollout.begin(start_episodes(ended))
    return sorted(outcomes, key=lambda outcome: outcome.episode)


def by_instruction(outcomes: Sequence[Outcome], fingerprint: str) -> dict[str, Summary]:
    """Success by instruction, in the order of the alphabet; empty in a task without instructions."""
    asked = sorted({outcome.instruction for outcome in outcomes if outcome.instruction})
    return {
        text: Summary.of([outcome for outcome in outcomes if outcome.instruction == text], fingerprint)
        for text in asked
    }


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
    writer.writerow(["policy", "episode", "success", "length", "seed", *asked])
    for name, episodes in outcomes.items():
        for one in episodes:
            row = [name, one.episode, int(one.success), one.length, one.seed]
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
