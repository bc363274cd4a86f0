"""Success and length of the scripted experts: `python benchmarks/experts.py --help`.

Prints a line per task, or per instruction of a task that has several, and setting, and writes it to
results/experts.csv beside this file, where it replaces an earlier line of the same task, noise, skill and
number of seeds.
"""

import argparse
import csv
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))
from robot_rl.cli.compose import load_group  # noqa: E402
from robot_rl.envs.experts import make_expert  # noqa: E402
from robot_rl.envs.robosuite_env import RobosuiteEnv  # noqa: E402
from robot_rl.envs.task import TaskConfig  # noqa: E402
from robot_rl.rollout import Rollout  # noqa: E402

RESULTS = ROOT / "benchmarks" / "results" / "experts.csv"
TASKS = ["lift", "can", "square", "stack", "door"]
LANGUAGE_TASKS = ["language_pick_place", "language_nut_assembly", "language_stack"]
FIELDS = ["task", "noise", "skill", "seeds", "success", "mean_steps", "p95_steps", "max_steps"]


def without_images(task: str) -> RobosuiteEnv:
    config = load_group("task", task, TaskConfig)
    # Experts see the simulation, not images.
    return RobosuiteEnv(replace(config, cameras=[]))


def instructions(env: RobosuiteEnv) -> Iterator[str]:
    """Sets the environment to each of its instructions in turn; "" if it has none."""
    for text in list(env.task.instructions) or [""]:
        env.task = replace(env.task, instructions=[text] if text else [])
        yield text


def steps_to_success(env: RobosuiteEnv, seed: int, noise: float, skill: float) -> int | None:
    """Control steps until success; None if it does not succeed within the task's horizon."""
    obs, _ = env.reset(seed=seed)
    expert = make_expert(env.task.env, noise=noise, skill=skill, rng=np.random.default_rng([seed, 1]))
    expert.reset(env.sim)
    steps = list(Rollout(env, lambda _: expert.act(env.sim), obs))
    return len(steps) if steps[-1].info["success"] else None


def save(row: dict[str, object]) -> None:
    rows: list[dict] = []
    if RESULTS.exists():
        with RESULTS.open() as file:
            rows = list(csv.DictReader(file))
    key = [str(row[field]) for field in FIELDS[:4]]
    rows = [old for old in rows if [old[field] for field in FIELDS[:4]] != key] + [row]
    RESULTS.parent.mkdir(exist_ok=True)
    with RESULTS.open("w", newline="") as file:
        writer = csv.DictWriter(file, FIELDS)
        writer.writeheader()
        writer.writerows(rows)


def measure(env: RobosuiteEnv, task: str, seeds: int, noise: float, skill: float) -> None:
    start = time.perf_counter()
    ends = [steps_to_success(env, seed, noise, skill) for seed in range(seeds)]
    lengths = [end for end in ends if end is not None]
    row: dict[str, object] = {"task": task, "noise": noise, "skill": skill, "seeds": seeds}
    row["success"] = round(len(lengths) / seeds, 3)
    if lengths:
        row["mean_steps"] = round(float(np.mean(lengths)), 1)
        row["p95_steps"] = round(float(np.percentile(lengths, 95)))
        row["max_steps"] = max(lengths)
    save(row)
    failed = [seed for seed, end in enumerate(ends) if end is None]
    figures = " ".join(f"{key}={value}" for key, value in row.items())
    print(f"{figures} failed={failed[:12]} ({time.perf_counter() - start:.0f} s)", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tasks", nargs="+", default=TASKS, choices=TASKS + LANGUAGE_TASKS)
    parser.add_argument("--seeds", type=int, default=100, help="episodes per setting")
    parser.add_argument("--noise", type=float, nargs="+", default=[0.0])
    parser.add_argument("--skill", type=float, nargs="+", default=[1.0])
    args = parser.parse_args()
    for task in args.tasks:
        env = without_images(task)
        for text in instructions(env):
            for noise in args.noise:
                for skill in args.skill:
                    measure(env, f"{task}: {text}" if text else task, args.seeds, noise, skill)
        env.close()


if __name__ == "__main__":
    main()
