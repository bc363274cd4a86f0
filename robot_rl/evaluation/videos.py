"""Videos of base and tuned policy in the same evaluated episode."""

import hashlib
import json
from collections.abc import Mapping, Sequence
from contextlib import closing
from pathlib import Path

import numpy as np

from robot_rl.data.video import contact_sheet, render_states, write_video
from robot_rl.envs.action import repeated_in_hold
from robot_rl.envs.external.simulators import simulator_of
from robot_rl.envs.renderer import overview
from robot_rl.envs.robosuite_env import RobosuiteEnv
from robot_rl.evaluation.evaluate import Outcome, read_outcomes
from robot_rl.evaluation.initial_states import load_states
from robot_rl.factory import make_robosuite_env, task_of
from robot_rl.files.durable import write_file
from robot_rl.policies.acting import ActingPolicy
from robot_rl.policies.async_runner import execute_asynchronously
from robot_rl.policies.store import fingerprint
from robot_rl.rollout import Rollout
from robot_rl.saved_policies.loading import acting_policy, load_networks, side_by_side, trained_execution

SIZE = 256
SHEET_FRAMES = 12
_SHOWN = "episode.json"
"""File beside the videos: the episode that they show, and the evaluation that it is of; written last."""


def write_videos(run: Path) -> list[Path]:
    """Write `videos/{base,tuned}.mp4` and contact sheets for an evaluated run; returns their paths.

    The episode is the first that the base fails and the tuned policy solves, otherwise the first. Running it
    again repeats the evaluated episode exactly.

    Raises:
        ValueError: if they cannot be drawn, or the policy is not the one that was evaluated.
    """
    networks, meta = load_networks(run)
    evaluated = json.loads((run / "eval" / "summary.json").read_text())["policies"]
    candidates = side_by_side(networks)
    if any(evaluated[name]["fingerprint"] != fingerprint(one) for name, one in candidates.items()):
        raise ValueError(
            f"{run} was trained further since its evaluation: run `robot-rl eval policy={run}` again, or "
            "give videos=false"
        )
    task = task_of(meta["environment"])
    if simulator := simulator_of(task.env):
        raise ValueError(f"videos are not drawn of tasks in {simulator.name}'s own process: add videos=false")
    episode, seed = _shown_episode(read_outcomes(run / "eval" / "episodes.csv"))
    written = []
    with closing(make_robosuite_env(task)) as env:
        initial = load_states(env)
        for name, candidate in candidates.items():
            policy = acting_policy(candidate, 1)
            execute_asynchronously(policy, trained_execution(meta), repeated_in_hold(env.action_spec))
            states = act_episode(env, policy, initial.states[episode], seed)
            frames = list(render_states(env, states, overview(), SIZE, SIZE))
            path = run / "videos" / f"{name}.mp4"
            write_video(path, frames, fps=env.task.control_freq)
            chosen = np.linspace(0, len(frames) - 1, SHEET_FRAMES).round().astype(int)
            write_file(path.with_suffix(".png"), contact_sheet([frames[i] for i in chosen], columns=6))
            written.append(path)
    shown = {"episode": episode, "evaluation": _evaluation_sha256(run)}
    write_file(run / "videos" / _SHOWN, (json.dumps(shown) + "\n").encode())
    return written


def shown_episode(run: Path) -> int | None:
    """The episode of a run's evaluation that its videos show; None if they are of an earlier one, or missing.

    Raises:
        ValueError: if the file that says so is damaged.
    """
    file = run / "videos" / _SHOWN
    if not file.is_file():
        return None
    try:
        shown = json.loads(file.read_text())
        return int(shown["episode"]) if shown.get("evaluation") == _evaluation_sha256(run) else None
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise ValueError(f"{file} is damaged ({error}): remove it, and report again") from None


def _evaluation_sha256(run: Path) -> str:
    return hashlib.sha256((run / "eval" / "episodes.csv").read_bytes()).hexdigest()


def act_episode(env: RobosuiteEnv, policy: ActingPolicy, state: np.ndarray, seed: int) -> list[np.ndarray]:
    """Run one episode without exploration; returns all simulator states, the first and last included."""
    obs, _ = env.reset(options={"state": state})
    policy.reset([0], [seed])
    rollout = Rollout(env, policy.act_single, obs)
    return [env.get_state(), *(env.get_state() for _ in rollout)]


def _shown_episode(outcomes: Mapping[str, Sequence[Outcome]]) -> tuple[int, int]:
    """Number and seed of an episode that the base fails and the tuned policy does not, or of the first."""
    won = {one.episode for one in outcomes.get("tuned", ()) if one.success}
    improved = [one for one in outcomes["base"] if not one.success and one.episode in won]
    shown = (improved or outcomes["base"])[0]
    return shown.episode, shown.seed
