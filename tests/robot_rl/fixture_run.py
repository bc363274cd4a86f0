"""A made-up run directory: generated numbers of a realistic shape, never a result."""

import csv
import hashlib
import json
from pathlib import Path
from typing import Any

import numpy as np

from robot_rl.data.video import contact_sheet, write_video
from robot_rl.machine import describe_machine, describe_versions
from robot_rl.stats import wilson
from robot_rl.training.logger import RunLogger


def make_run(path: Path, *, tuned: bool = True, videos: bool = True, episodes: int = 300) -> Path:
    """Write every file that a report reads."""
    rng = np.random.default_rng(0)
    path.mkdir(parents=True)
    steps, seconds = _metrics(path, rng, episodes, tuned)
    write_json(
        path / "run.json",
        {
            "command": "MADE-UP NUMBERS: robot-rl train method=residual base=runs/base task=lift seed=3",
            "method": "residual" if tuned else "bc",
            "task": "lift",
            "seed": 3,
            "started": "2026-01-02T03:04:05",
            "wall_seconds": seconds + 41.5,
            "env_steps": steps if tuned else 0,
            "machine": describe_machine(),
            "versions": describe_versions(),
        },
    )
    (path / "config.yaml").write_text("method:\n  name: residual\n  critics: 10\ntask: lift\nseed: 3\n")
    _evaluation(path / "eval", rng, {"base": 0.55, "tuned": 0.97} if tuned else {"base": 0.55})
    if videos:
        for name, length in (("base", 60), ("tuned", 30)):
            frames = [_frame(t) for t in range(length)]
            write_video(path / "videos" / f"{name}.mp4", frames, 20)
            (path / "videos" / f"{name}.png").write_bytes(contact_sheet(frames[::10], 3))
        show_episode(path, 0)
    return path


def show_episode(path: Path, episode: int) -> None:
    """Say which episode the videos are of."""
    evaluation = hashlib.sha256((path / "eval" / "episodes.csv").read_bytes()).hexdigest()
    write_json(path / "videos" / "episode.json", {"episode": episode, "evaluation": evaluation})


def write_json(path: Path, value: Any) -> None:
    path.write_text(json.dumps(value))


def _metrics(path: Path, rng: np.random.Generator, episodes: int, tuned: bool) -> tuple[int, float]:
    now = [0.0]
    logger = RunLogger(path, clock=lambda: now[0])
    step = 0
    if tuned:
        logger.log(0, **{"phase/warm-up": 1.0})
    for episode in range(episodes):
        progress = episode / episodes
        chance = 0.5 + 0.47 / (1 + np.exp(-14 * (progress - 0.45)))
        success = rng.random() < chance
        length = int(rng.normal(70 - 25 * progress, 8)) if success else 200
        step += length
        now[0] += length * (0.005 if progress < 0.15 else 0.028)
        if tuned:
            logger.log(step, **{"train/success": float(success), "train/episode_length": float(length)})
            if episode == int(0.15 * episodes):
                logger.log(step, **{"phase/learning": 1.0})
            if episode % max(1, episodes // 6) == 0:
                logger.log(step, **{"eval/success": rng.binomial(50, chance) / 50, "eval/episodes": 50.0})
        for k in range(4):
            at = step - length + length * (k + 1) // 4
            values = {"learn/critic_loss": 0.02 * np.exp(-3 * progress) * rng.lognormal(0, 0.4)}
            if tuned:
                q = 0.2 + 0.6 * progress + rng.normal(0, 0.02)
                residual = 0.05 * progress + rng.exponential(0.003)
                values["learn/q_mean"] = float("nan") if step < 300 else q
                values["learn/residual_abs"] = 0.0 if progress < 0.15 else residual
            logger.log(at, **values)
    logger.close()
    return step, now[0]


def _evaluation(directory: Path, rng: np.random.Generator, chances: dict[str, float], n: int = 100) -> None:
    directory.mkdir()
    policies = {}
    with open(directory / "episodes.csv", "w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(("policy", "episode", "success", "length", "seed"))
        for name, chance in chances.items():
            success = rng.random(n) < chance
            length = np.where(success, rng.integers(45, 90, n), 200)
            writer.writerows((name, i, int(success[i]), int(length[i]), 1000 + i) for i in range(n))
            policies[name] = {
                "success": float(success.mean()),
                "interval": wilson(int(success.sum()), n),
                "mean_length": float(length.mean()),
                "fingerprint": hashlib.sha256(name.encode()).hexdigest(),
            }
    states = {"states": "lift-100", "states_sha256": "0" * 64}
    write_json(directory / "summary.json", {"task": "lift", "episodes": n, **states, "policies": policies})


def _frame(t: int) -> np.ndarray:
    frame = np.full((64, 64, 3), 220, np.uint8)
    frame[20:40, t % 44 : t % 44 + 20] = (180, 40, 50)
    return frame
