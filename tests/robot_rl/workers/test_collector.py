"""What a worker with a copy of the policy collects, without a cluster."""

from dataclasses import replace

import numpy as np
import torch

from robot_rl.cli.compose import load_group
from robot_rl.envs.task import TaskConfig
from robot_rl.factory import make_robosuite_env
from robot_rl.launchers.software import installed_software
from robot_rl.policies.bases.uniform import UniformConfig, UniformPolicy
from robot_rl.policies.finetuned.finetuned_policy import Exploration
from robot_rl.policies.finetuned.residual import Residual, ResidualSpec
from robot_rl.policies.nets.encoder import EncoderSpec
from robot_rl.workers.collector import Collected, Collector, CollectorJob, Weights
from robot_rl.workers.config import STEPS

_FIELDS = ["state", "base"]


def make_job() -> CollectorJob:
    """Episodes of fewer steps than a message has."""
    task = replace(load_group("task", "lift", TaskConfig), horizon=STEPS - 5)
    env = make_robosuite_env(task)
    state, action = env.observation_spec.state_size, len(env.action_spec)
    env.close()
    spec = ResidualSpec(EncoderSpec(state), action, (8,), (0.5,) * action)
    networks = Residual(UniformPolicy(UniformConfig(), state, action), spec)
    return CollectorJob(task, networks, Exploration(0.1), _FIELDS, False, False, [], installed_software())


def weights_of(job: CollectorJob, version: int, shift: float) -> Weights:
    actor = {k: v for k, v in job.networks.state_dict().items() if k.startswith("actor.net")}
    return Weights(version, {name: (value + shift).numpy() for name, value in actor.items()})


def assert_same_steps(one: Collected, other: Collected) -> None:
    for a, b in zip(one.steps, other.steps, strict=True):
        assert np.array_equal(a.action, b.action)
        for name in _FIELDS:
            assert np.array_equal(a.fields[name], b.fields[name])


def test_a_worker_collects_with_the_weights_that_it_is_sent() -> None:
    torch.manual_seed(0)
    job = make_job()
    first = weights_of(job, 1, 0.0)
    collector = Collector()
    collector.build(job, 2)
    base = collector.collect(first, False, 7)
    assert len(base.steps) == STEPS
    assert {step.source for step in base.steps} == {"base"}
    assert {name: value.shape[0] for name, value in base.steps[0].fields.items()} == {"state": 2, "base": 2}
    ends = [at for at, step in enumerate(base.steps) if len(step.ended)]
    assert ends == [STEPS - 6]
    assert base.steps[ends[0]].last.keys() == set(_FIELDS)
    assert base.outcomes == [{"train/success": 0.0, "train/episode_length": STEPS - 5.0}] * 2
    again = collector.collect(first, True, 7)
    assert {step.source for step in again.steps} == {"policy"}
    # The same seed gives the same episodes, whatever came before; other weights give other actions.
    assert_same_steps(collector.collect(first, False, 7), base)
    assert_same_steps(collector.collect(first, True, 7), again)
    other = collector.collect(weights_of(job, 2, 0.3), True, 7)
    assert not np.array_equal(other.steps[0].action, again.steps[0].action)
