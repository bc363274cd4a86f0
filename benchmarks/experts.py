"""Success and length of the scripted experts: `python benchmarks/experts.py --help`.

Prints one line per task and setting, and puts it in results/experts.csv beside this file, where
it replaces an earlier line of the same task, noise, skill and number of seeds.
"""

import argparse
import csv
import sys
import time
from pathlib import Path

import numpy as np
import robosuite
from robosuite.controllers import load_composite_controller_config
from robosuite.environments.manipulation.manipulation_env import ManipulationEnv

sys.path.insert(0, str(Path(__file__).parents[1]))
from envs.experts import EXPERTS, make_expert  # noqa: E402

TASKS = {  # name: (robosuite environment, horizon in control steps)
    "lift": ("Lift", 200),
    "can": ("PickPlaceCan", 300),
    "square": ("NutAssemblySquare", 400),
    "stack": ("Stack", 300),
    "door": ("Door", 300),
}
RESULTS = Path(__file__).parent / "results" / "experts.csv"
FIELDS = ["task", "noise", "skill", "seeds", "success", "mean_steps", "p95_steps", "max_steps"]


def make_sim(task: str) -> ManipulationEnv:
    return robosuite.make(
        TASKS[task][0],
        robots="Panda",
        controller_configs=load_composite_controller_config(controller="BASIC", robot="Panda"),
        control_freq=20,
        hard_reset=False,
        ignore_done=True,
        use_camera_obs=False,
        has_renderer=False,
        has_offscreen_renderer=False,
        seed=0,
    )


def rollout(sim: ManipulationEnv, task: str, seed: int, noise: float, skill: float) -> int | None:
    """Control steps until success, or None within the task's horizon."""
    sim.rng.bit_generator.state = np.random.default_rng(seed).bit_generator.state
    sim.reset()
    expert = make_expert(task, noise=noise, skill=skill, rng=np.random.default_rng([seed, 1]))
    expert.reset(sim)
    for step in range(1, TASKS[task][1] + 1):
        sim.step(expert.act(sim))
        if sim._check_success():
            return step
    return None


def save(row: dict[str, object]) -> None:
    rows = list(csv.DictReader(RESULTS.open())) if RESULTS.exists() else []
    key = [str(row[field]) for field in FIELDS[:4]]
    rows = [old for old in rows if [old[field] for field in FIELDS[:4]] != key] + [row]
    RESULTS.parent.mkdir(exist_ok=True)
    with RESULTS.open("w", newline="") as file:
        writer = csv.DictWriter(file, FIELDS)
        writer.writeheader()
        writer.writerows(rows)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tasks", nargs="+", default=list(EXPERTS), choices=list(EXPERTS))
    parser.add_argument("--seeds", type=int, default=100, help="episodes per setting")
    parser.add_argument("--noise", type=float, nargs="+", default=[0.0])
    parser.add_argument("--skill", type=float, nargs="+", default=[1.0])
    args = parser.parse_args()
    for task in args.tasks:
        sim = make_sim(task)
        for noise in args.noise:
            for skill in args.skill:
                begun = time.perf_counter()
                ends = [rollout(sim, task, seed, noise, skill) for seed in range(args.seeds)]
                won = np.array([end for end in ends if end is not None])
                row = {
                    "task": task,
                    "noise": noise,
                    "skill": skill,
                    "seeds": args.seeds,
                    "success": round(len(won) / len(ends), 3),
                    "mean_steps": round(float(won.mean()), 1) if len(won) else "",
                    "p95_steps": round(float(np.percentile(won, 95))) if len(won) else "",
                    "max_steps": int(won.max()) if len(won) else "",
                }
                save(row)
                failed = [seed for seed, end in enumerate(ends) if end is None]
                print(*(f"{k}={v}" for k, v in row.items()), f"failed={failed[:12]}",
                      f"({time.perf_counter() - begun:.0f} s)", flush=True)  # fmt: skip
        sim.close()


if __name__ == "__main__":
    main()
