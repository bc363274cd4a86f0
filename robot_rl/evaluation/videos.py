"""Videos of base and tuned policy in the same evaluated episode."""

import csv
import json
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from robot_rl.data.video import contact_sheet, render_states, write_video
from robot_rl.envs.action import repeated_in_hold
from robot_rl.envs.external.simulators import simulator_of
from robot_rl.envs.renderer import overview
from robot_rl.envs.robosuite_env import RobosuiteEnv
from robot_rl.evaluation.initial_states import load_states
from robot_rl.factory import make_env, task_of
from robot_rl.files.durable import write_file
from robot_rl.policies.acting import ActingPolicy
from robot_rl.policies.async_runner import execute_asynchronously
from robot_rl.rollout import Rollout
from robot_rl.saved_policies.loading import acting_policy, load_networks, side_by_side, trained_execution

SIZE = 256
SHEET_FRAMES = 12


def write_videos(run: Path) -> list[Path]:
    """Write `videos/{base,tuned}.mp4` and contact sheets for an evaluated run; returns their paths.

    The episode is the first that the base fails and the tuned policy solves, otherwise the first. Running it
    again repeats the evaluated episode exactly.
    """
    networks, meta = load_networks(run)
    task = task_of(meta["environment"])
    if simulator := simulator_of(task.env):
        raise ValueError(f"videos are not drawn of tasks in {simulator.name}'s own process: add videos=false")
    env = make_env(task)
    initial = load_states(env)
    episode, seed = _shown_episode(_outcomes(run / "eval" / "episodes.csv"))
    written = []
    for name, candidate in side_by_side(networks).items():
        policy = acting_policy(candidate, 1)
        execute_asynchronously(policy, trained_execution(meta), repeated_in_hold(env.action_spec))
        states = act_episode(env, policy, initial.states[episode], seed)
        frames = list(render_states(env, states, overview(), SIZE, SIZE))
        path = run / "videos" / f"{name}.mp4"
        write_video(path, frames, fps=env.task.control_freq)
        chosen = np.linspace(0, len(frames) - 1, SHEET_FRAMES).round().astype(int)
        write_file(path.with_suffix(".png"), contact_sheet([frames[i] for i in chosen], columns=6))
        written.append(path)
    write_file(run / "videos" / "episode.json", (json.dumps({"episode": episode}) + "\n").encode())
    env.close()
    return written


def act_episode(env: RobosuiteEnv, policy: ActingPolicy, state: np.ndarray, seed: int) -> list[np.ndarray]:
    """Run one episode without exploration; returns all simulator states, the first and last included."""
    obs, _ = env.reset(options={"state": state})
    policy.reset([0], [seed])
    rollout = Rollout(env, policy.act_single, obs)
    return [env.get_state(), *(env.get_state() for _ in rollout)]


def _outcomes(path: Path) -> Mapping[str, Mapping[int, tuple[bool, int]]]:
    """policy → episode → (success, seed)."""
    outcomes: dict[str, dict[int, tuple[bool, int]]] = {}
    with path.open(newline="") as file:
        for row in csv.DictReader(file):
            episodes = outcomes.setdefault(row["policy"], {})
            episodes[int(row["episode"])] = (row["success"] == "1", int(row["seed"]))
    return outcomes


def _shown_episode(outcomes: Mapping[str, Mapping[int, tuple[bool, int]]]) -> tuple[int, int]:
    base = outcomes["base"]
    tuned = outcomes.get("tuned", {})
    improved: Sequence[int] = [e for e, (won, _) in base.items() if not won and tuned.get(e, (True, 0))[0]]
    episode = improved[0] if improved else next(iter(base))
    return episode, base[episode][1]
