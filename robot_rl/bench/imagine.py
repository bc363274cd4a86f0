"""Speed of imagination: fitting the world model, predicting, branches, and a training step with them.

Sizes are Lift's, with an untrained flow base; the values in the networks do not change the times.
"""

from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from robot_rl.bench.learners import ACTION, STATE, fill_replay
from robot_rl.bench.timing import milliseconds, take_turns
from robot_rl.cli.compose import load_group
from robot_rl.envs.task import TaskConfig
from robot_rl.factory import make_robosuite_env
from robot_rl.imagination.config import StateModelConfig
from robot_rl.imagination.episodes import Episode
from robot_rl.imagination.imagination import Imagination
from robot_rl.imagination.world_model import ChunkStart
from robot_rl.learning.config import PriorDataConfig
from robot_rl.methods.method import OffPolicyMethod
from robot_rl.methods.registry import METHODS, build_method
from robot_rl.policies.bases.flow import FlowConfig, FlowPolicy
from robot_rl.policies.store import save_policy
from robot_rl.training.components import build_off_policy
from robot_rl.training.context import RunBase, RunInputs
from robot_rl.training.updater import sample_batch

_EPISODES, _STEPS = 50, 100
"""Recorded episodes, and steps of each."""
_UPDATES = 320
"""Updates in one turn: branches are imagined for many updates at once."""
_PREDICTIONS = 1024
"""Chunks that are predicted at once."""


@dataclass(frozen=True)
class ImaginationSpeed:
    """Measured times; medians of turns."""

    fit_s: float
    """First fit of the world model to 50 episodes of 100 steps, with the default number of updates."""
    model_transitions_per_s: float
    """Chunks that the model alone predicts."""
    branches_per_s: float
    """Branches of the default number of chunks, with the base's samples and the choice among them."""
    train_step_ms: dict[str, float]
    """One update `with` the largest imagined share of the batch, branches included, and `without`."""


def measure(method: str, seconds: float, scratch: Path, seed: int = 0) -> ImaginationSpeed:
    """Measure all with a method's default options on the CPU; `seconds` for each figure but the fit."""
    _save_base(scratch)
    kind = METHODS[method]
    assert issubclass(kind.config_type, PriorDataConfig)
    config = kind.config_type(num_envs=1, critic_warmup=0, demo_ratio=0.0, replay_capacity=_EPISODES * _STEPS)
    task = load_group("task", "lift", TaskConfig)
    inputs = RunInputs(task, RunBase(str(scratch)), None, seed, torch.device("cpu"))
    made = build_method(config)
    assert isinstance(made, OffPolicyMethod)
    options = StateModelConfig(refit_every=_EPISODES, pool=_EPISODES // 2)
    with ExitStack() as resources:
        components = build_off_policy(made, inputs, resources, options)
    imagination, learner, sampler = components.imagination, components.learner, components.sampler
    assert imagination
    generator = torch.Generator().manual_seed(seed)
    fill_replay(components.replay, np.random.default_rng(seed))
    episodes = [_random_walk(STATE, ACTION, generator) for _ in range(_EPISODES)]
    model = imagination.model
    fit = milliseconds(lambda: model.fit(episodes, 0, options.first_updates)) / 1e3
    for episode in episodes:
        imagination.add_episode(episode)
    imagination.refit(0)
    # After two passes actors learn from imagined states too.
    imagination.gate.share, imagination.gate.passes = options.share, 2
    window = torch.randint(_STEPS, (_PREDICTIONS,), generator=generator)
    states = torch.stack([episodes[0].states[window], episodes[0].states[window + 1]], 1)
    size = imagination.chunk
    start = ChunkStart(states, torch.rand(_PREDICTIONS, size, ACTION))
    chunk = torch.rand(_PREDICTIONS, size, ACTION)
    member = torch.randint(model.members, (_PREDICTIONS,), generator=generator)

    def updates(used: Imagination | None) -> None:
        for _ in range(_UPDATES):
            learner.update(*sample_batch(sampler, used, 0))

    times = take_turns(
        {
            "predict": lambda: model.step(start, chunk, member),
            "branches": imagination.imagine,
            "with": lambda: updates(imagination),
            "without": lambda: updates(None),
        },
        4 * seconds,
    )
    return ImaginationSpeed(
        fit,
        1e3 * _PREDICTIONS / times["predict"],
        1e3 * options.branches / times["branches"],
        {name: times[name] / _UPDATES for name in ("with", "without")},
    )


def _save_base(directory: Path) -> None:
    """Save an untrained base policy for Lift, which is as fast as a trained one."""
    env = make_robosuite_env("lift")
    policy = FlowPolicy(FlowConfig(), env.observation_spec.state_size, len(env.action_spec))
    save_policy(policy, directory, {"environment": env.describe()})
    env.close()


def _random_walk(state_size: int, action_size: int, generator: torch.Generator) -> Episode:
    """A failed episode with random actions."""
    states = 0.01 * torch.randn(_STEPS + 1, state_size, generator=generator).cumsum(0)
    actions = 2 * torch.rand(_STEPS, action_size, generator=generator) - 1
    return Episode(states, actions, success=False)
