"""Loads demonstrations into a replay buffer, with the base policy's action for each step."""

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray

from robot_rl.data.dataset import Dataset
from robot_rl.data.episode_notes import exemplary_steps
from robot_rl.data.replay_buffer import FREE, SOURCES, Fields, ReplayBuffer, SwitchCost
from robot_rl.policies.acting import ActingPolicy
from robot_rl.policies.async_runner import AsyncRunner, execute_asynchronously
from robot_rl.policies.asynchronous import SYNCHRONOUS, AsyncOptions
from robot_rl.policies.bases.base_policy import BasePolicy
from robot_rl.policies.chunk_runner import PolicyOutput
from robot_rl.policies.nets.encoder import FEATURES, EncoderSpec
from robot_rl.rollout import episode_seed


def demonstrations_to_replay(
    dataset: Dataset,
    base: BasePolicy,
    seed: int,
    fields: Fields,
    base_samples: int = 0,
    device: torch.device | str = "cpu",
    switch: SwitchCost = FREE,
    execution: AsyncOptions = SYNCHRONOUS,
    instructions: Sequence[str] = (),
) -> ReplayBuffer:
    """Fill a replay with the successful episodes of a dataset and the base policy's actions along them.

    With `instructions`, those of the task, only episodes of these: the reward of another one would be wrong.
    Of an episode in which a person took over from a policy, or a policy from its base, windows begin only at
    `exemplary_steps`, as prior data of a run with interventions are the person's steps.

    The base runs in chunks from the start of each episode, as when it acts, with the delay of `execution`;
    the actions that it is then conditioned on are the demonstrated ones. A dataset has no observation
    after the last step. A terminated step does not need it; a last step that did not terminate gives only
    its observation, as the end of the step before it. `fields`, `base_samples` and `switch` must equal
    those of the online replay that is sampled together with this one.

    Raises:
        ValueError: if no episode succeeded, or none has such a step.
    """
    observations = dataset.observations()
    action = dataset["applied_action"].astype(np.float32)
    reward = dataset["reward"].astype(np.float32)
    terminated = dataset["terminated"].astype(bool)
    exemplary = exemplary_steps(dataset)
    episodes = _successful_episodes(dataset, exemplary, instructions)
    encoder = None
    if FEATURES in fields:
        copies, size = fields[FEATURES][0]
        encoder = EncoderSpec(base.spec.state_size, features=size, feature_copies=copies)
    policy = ActingPolicy(base, len(episodes), base_samples=base_samples, encoder=encoder)
    # Nothing is held along a demonstration.
    execute_asynchronously(policy, execution, (False,) * action.shape[1])
    if isinstance(policy.runner, AsyncRunner):
        for i, rows in enumerate(episodes):
            policy.runner.follow(i, action[rows])
    policy.reset(range(len(episodes)), [episode_seed(seed, "demo", i) for i in range(len(episodes))])
    lengths = np.array([rows.stop - rows.start for rows in episodes])
    starts = np.array([rows.start for rows in episodes])
    # One stream per episode, so that the base runs on all episodes as one batch.
    longest = int(lengths.max())
    replay = ReplayBuffer(longest * len(episodes), len(episodes), action.shape[1], fields, device, switch)
    for t in range(longest):
        slots = np.flatnonzero(lengths > t)
        now = starts[slots] + t
        frames = {key: values[now] for key, values in observations.items()}
        decision: PolicyOutput = policy.act(frames, env_ids=slots, with_base_samples=True)
        record = {**frames, **decision.replay_fields()}
        unfinished = (lengths[slots] == t + 1) & ~terminated[now]
        acting, ending = ~unfinished, unfinished
        if acting.any():
            replay.add(
                slots[acting],
                action=action[now[acting]],
                reward=reward[now[acting]],
                terminated=terminated[now[acting]],
                source=SOURCES.index("demo"),
                **{key: values[acting] for key, values in record.items()},
            )
        if ending.any():
            replay.end(slots[ending], **{key: values[ending] for key, values in record.items()})
    replay.close_episode(np.arange(len(episodes)), success=True)
    for stream, rows in enumerate(episodes):
        replay.never_begin(stream, ~exemplary[rows])
    return replay


def demonstration_rows(dataset: Dataset, instructions: Sequence[str]) -> int:
    """Rows of the replay of a dataset's successful episodes: as many for each as the longest one has."""
    lengths = [rows.stop - rows.start for rows in _succeeded(dataset, instructions)]
    return max(lengths, default=0) * len(lengths)


def _succeeded(dataset: Dataset, instructions: Sequence[str]) -> list[slice]:
    """Rows of the episodes that succeeded, of all instructions if none are given."""
    episodes = zip(dataset.episodes, dataset.success, dataset.instructions, strict=True)
    return [
        rows for rows, success, text in episodes if success and (not instructions or text in instructions)
    ]


def _successful_episodes(
    dataset: Dataset, exemplary: NDArray[np.bool_], instructions: Sequence[str]
) -> list[slice]:
    """Rows of the episodes that succeeded, if there are some, and of them `exemplary` steps [T]."""
    if not _succeeded(dataset, ()):
        raise ValueError(
            f"dataset {dataset.path} has no successful episode among {dataset.num_episodes}; "
            "collect more, or set method.demo_ratio=0"
        )
    if not (episodes := _succeeded(dataset, instructions)):
        raise ValueError(
            f"dataset {dataset.path} has no successful episode of {'; '.join(instructions)}: give "
            "demonstrations of it, or set method.demo_ratio=0"
        )
    if not any(exemplary[rows].any() for rows in episodes):
        raise ValueError(
            f"dataset {dataset.path} has no step that shows what to do, since a base acted in all of them: "
            "give demonstrations, or set method.demo_ratio=0"
        )
    return episodes
