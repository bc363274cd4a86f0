"""Demonstrations as a replay: with the base's action beside each demonstrated one."""

import numpy as np

from policies.base import BasePolicy
from policies.wrapped import ChunkRunner
from robot_rl.data.dataset import Dataset
from robot_rl.data.replay import SOURCES, Replay
from robot_rl.seeds import episode_seed


def demonstrations_to_replay(dataset: Dataset, base: BasePolicy, seed: int) -> Replay:
    """Successful episodes of a dataset, each as it would have gone with the base beside it.

    The base runs in chunks from each episode's start, as it does when it acts. What came after the
    last step of an episode is not recorded: a step that terminated needs it not, and a last step
    that did not gives its observation alone, where the step before it ends.
    """
    state = dataset.observations()["state"]
    action = dataset["applied_action"].astype(np.float32)
    reward = dataset["reward"].astype(np.float32)
    terminated = dataset["terminated"].astype(bool)
    if not dataset.success.any():
        raise ValueError(
            f"dataset {dataset.path} has no successful episode among {dataset.num_episodes}; "
            "collect more, or set method.demo_ratio=0"
        )
    episodes = [rows for rows, success in zip(dataset.episodes, dataset.success, strict=True) if success]
    runner = ChunkRunner(base, len(episodes))
    runner.reset(range(len(episodes)), [episode_seed(seed, "demo", i) for i in range(len(episodes))])
    lengths = np.array([rows.stop - rows.start for rows in episodes])
    starts = np.array([rows.start for rows in episodes])
    base_action = np.zeros_like(action)
    for t in range(int(lengths.max(initial=0))):
        slots = np.flatnonzero(lengths > t)
        rows_now = starts[slots] + t
        base_action[rows_now] = runner.step({"state": state[rows_now]}, slots)[0]
    replay = Replay(int(lengths.sum()), 1, state.shape[1], action.shape[1])
    stream = np.zeros(1, np.int64)
    for rows in episodes:
        whole = terminated[rows.stop - 1]
        for t in range(rows.start, rows.stop if whole else rows.stop - 1):
            replay.add(
                stream,
                state=state[t],
                base=base_action[t],
                action=action[t],
                reward=reward[t],
                terminated=terminated[t],
                source=SOURCES.index("demo"),
            )
        if not whole:
            replay.end(stream, state=state[rows.stop - 1], base=base_action[rows.stop - 1])
    return replay
