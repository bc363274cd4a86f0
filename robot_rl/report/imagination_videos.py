"""Videos of real episodes and of what a world model imagined, side by side."""

import tempfile
from collections.abc import Iterable
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from robot_rl.data.video import write_video
from robot_rl.envs.renderer import EnvCameraRenderer, overview
from robot_rl.envs.robosuite_env import RobosuiteEnv
from robot_rl.envs.shown_state import ShownState
from robot_rl.envs.task import TaskConfig
from robot_rl.factory import make_robosuite_env
from robot_rl.imagination.episodes import Episode, Steps
from robot_rl.imagination.world_model import WorldModel, chunk_start
from robot_rl.report.imagination_data import ImaginationData

SIZE = 256
MOST_FRAMES = 200


@dataclass(frozen=True)
class Video:
    """An episode and what the model imagined of it, next to each other."""

    caption: str
    mp4: bytes


def imagination_videos(data: ImaginationData) -> tuple[list[Video], str]:
    """Videos of a successful and of a failed episode, and why there are none."""
    if data.model is None:
        return [], "The model is in another process, so nothing is imagined for this page."
    with ExitStack() as closing:
        try:
            env = make_robosuite_env(TaskConfig(**data.config["task"]))
            closing.callback(env.close)
            env.reset(seed=0)
        except (KeyError, TypeError, ValueError) as error:
            return [], f"The task cannot be simulated here ({error}), so there are no videos."
        try:
            shown = ShownState(env)
        except ValueError as error:
            return [], f"The scene of this task cannot be drawn from its state: {error}."
        return [_video(env, shown, data, episode) for episode in chosen_episodes(data.shown_episodes)], ""


def imagined_states(
    model: WorldModel, episode: Episode, chunk: int, chunks: int, history: int = 0
) -> np.ndarray:
    """States [T + 1, S] imagined of the executed actions, from a real state every `chunks` chunks."""
    steps = Steps([episode], history)
    start = torch.arange(0, len(episode), chunk * chunks)
    window = steps.windows(start, chunk, chunks)
    now = chunk_start(window)
    member = torch.zeros(len(start), dtype=torch.int64)
    parts = []
    for depth in range(chunks):
        actions = window.actions[:, depth * chunk : (depth + 1) * chunk]
        states = model.step(now, actions, member).states
        now = now.after(actions, states)
        parts.append(states)
    imagined = torch.cat(parts, 1).flatten(0, 1)[: len(episode)]
    return torch.cat([episode.states[:1], imagined]).numpy()


def chosen_episodes(episodes: list[Episode]) -> list[Episode]:
    """The newest successful and the newest failed episode."""
    found = [next((e for e in reversed(episodes) if e.failed == failed), None) for failed in (False, True)]
    return [episode for episode in found if episode]


def _video(env: RobosuiteEnv, shown: ShownState, data: ImaginationData, episode: Episode) -> Video:
    assert data.model
    chunks = int(data.config["imagination"]["chunks"])
    imagined = imagined_states(data.model, episode, data.chunk, chunks, data.history)[:MOST_FRAMES]
    real = episode.states.numpy()[:MOST_FRAMES]
    with EnvCameraRenderer(env, overview(), SIZE, SIZE) as renderer:
        halves, unreached = [], 0
        for states in (real, imagined):
            frames = []
            for state in states:
                unreached += not shown.show(state)
                frames.append(renderer.frame().copy())
            halves.append(frames)
    caption = describe_episode(episode)
    if unreached:
        caption += f"; in {unreached} states the arm cannot reach the hand's pose, and stays where it was"
    return Video(caption, side_by_side(halves, env.task.control_freq))


def describe_episode(episode: Episode) -> str:
    """Result and length of an episode."""
    result = "fails" if episode.failed else "succeeds"
    return f"An episode that {result} after {len(episode)} steps"


def side_by_side(halves: Iterable[Iterable[np.ndarray]], fps: int) -> bytes:
    """An mp4 with the images [H, W, 3] of two sequences next to each other."""
    pairs = [np.concatenate(pair, axis=1) for pair in zip(*halves, strict=True)]
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "pair.mp4"
        write_video(path, pairs, fps=fps)
        return path.read_bytes()
