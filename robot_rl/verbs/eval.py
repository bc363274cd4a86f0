"""Measure a policy's success on the saved initial states of its task, beside its base.

Writes `eval/summary.json` (rates with 95 % Wilson intervals) and `eval/episodes.csv` (every
episode's outcome) into the run.
"""

from dataclasses import dataclass
from pathlib import Path

import torch

from policies.store import fingerprint
from robot_rl.data.differences import refuse_differences
from robot_rl.errors import mistakes
from robot_rl.evaluation import Outcome, Summary, evaluate, write_evaluation
from robot_rl.factory import choose_device, load_networks, make_vector_env, side_by_side, task_of, wrap
from robot_rl.initial_states import load_states
from robot_rl.progress import progress


@dataclass
class Config:
    policy: str = "???"
    """Directory of a run or of a saved policy."""
    episodes: int = 100
    """How many of the saved initial states to use."""
    num_envs: int = 4
    """Environments stepped together."""
    seed: int = 0
    """Seed of the policies' noise."""
    states: str | None = None
    """File of initial states; the task's own list if null."""
    out: str = "${policy}/eval"
    """Where results go."""
    device: str = "auto"
    """`cpu`, `cuda`, or `auto` for a GPU where there is one."""

    def __post_init__(self) -> None:
        if self.episodes < 1:
            raise ValueError(f"episodes={self.episodes}: ask for at least 1")


def run(config: Config) -> None:
    # A handful of observations through a small network: a second thread only waits for the first.
    torch.set_num_threads(1)
    with mistakes():
        device = choose_device(config.device)
        networks, meta = load_networks(config.policy, device)
        task = task_of(meta["environment"])
        envs = make_vector_env(task, config.num_envs)
        refuse_differences(meta["environment"], envs.describe(), f"policy {config.policy}")
        initial = load_states(envs, Path(config.states) if config.states else None)
        if config.episodes > len(initial.states):
            raise ValueError(
                f"episodes={config.episodes}: the list {initial.name} has {len(initial.states)} states"
            )
    candidates = side_by_side(networks)
    outcomes: dict[str, list[Outcome]] = {}
    for name, candidate in candidates.items():
        with progress(config.episodes, f"evaluate {name}", "episodes") as show:
            outcomes[name] = evaluate(
                envs, wrap(candidate, config.num_envs), initial.states[: config.episodes], config.seed, show
            )
    envs.close()
    summaries = {name: Summary.of(outcomes[name], fingerprint(candidates[name])) for name in outcomes}
    write_evaluation(Path(config.out), initial, outcomes, summaries)
    print(f"{task.name}: {config.episodes} episodes from {initial.name}, noise seed {config.seed}")
    for name, result in summaries.items():
        low, high = result.interval
        rate = f"success {result.success:.3f}  95 % [{low:.3f}, {high:.3f}]"
        print(f"  {name:<6} {rate}  {result.mean_length:.0f} steps")
    print(f"  outcomes per episode: {Path(config.out) / 'episodes.csv'}")
