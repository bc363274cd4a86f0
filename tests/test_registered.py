"""Whatever is registered can be built and takes a step."""

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch

from robot_rl.assets import asset_path
from robot_rl.cli.compose import load_group
from robot_rl.envs.experts import EXPERTS
from robot_rl.envs.external.simulators import simulator_of
from robot_rl.envs.robosuite_env import RobosuiteEnv
from robot_rl.envs.task import TaskConfig
from robot_rl.evaluation.initial_states import COUNTS, check_split, load_states
from robot_rl.factory import make_robosuite_env
from robot_rl.methods.registry import METHODS
from robot_rl.policies.bases.imitation import ImitationPolicy
from robot_rl.policies.registry import BASES
from robot_rl.report.figures import IN_THE_CURVE, TITLES
from robot_rl.runs import list_checkpoints
from robot_rl.saved_policies.loading import load_policy
from robot_rl.training.logger import read_metrics
from tests.conftest import SMALL_BASE, SMALL_RL, RunCommand

SMALL_PPO = ("method.num_envs=2", "method.rollout_steps=4", "method.hidden=[16,16]", "threads=1")
TASKS = {
    path.stem: load_group("task", path.stem, TaskConfig)
    for path in asset_path("configs", "task").glob("*.yaml")
}
# Those of other simulators are in tests/envs/test_libero.py.
HERE = sorted(name for name, task in TASKS.items() if not simulator_of(task.env))


@pytest.mark.parametrize("name", HERE)
def test_every_task_builds_steps_and_has_its_initial_states(name: str) -> None:
    env = make_robosuite_env(name)
    assert env.control
    obs, _ = env.reset(seed=0)
    assert env.observation_space.contains(obs)
    obs, reward, terminated, truncated, info = env.step(env.action_space.sample())
    assert env.observation_space.contains(obs)
    assert (reward, terminated, truncated, info["success"]) == (0.0, False, False, False)
    lists = {split: load_states(env, split=check_split(split)).states for split in COUNTS}
    assert {split: len(states) for split, states in lists.items()} == COUNTS
    together = np.concatenate(list(lists.values()))
    assert len(np.unique(together, axis=0)) == len(together)
    for states in lists.values():
        env.reset(options={"state": states[-1]})
        assert np.array_equal(env.get_state(), states[-1])
    env.close()


def test_every_task_has_an_expert() -> None:
    without = {"libero_goal", "libero_10"}
    assert set(EXPERTS) == {task.env for task in TASKS.values()} - without


@pytest.mark.parametrize("name", sorted(set(BASES) - {"uniform"}))  # which learns nothing
def test_every_base_policy_learns_and_samples(name: str) -> None:
    kind = BASES[name].policy
    config = kind.for_instructions(BASES[name].config(), ["do it"])
    # A camera for those that read instructions, which cannot do without.
    cameras = ("front",) if kind.takes_instruction else ()
    policy = kind(config, 5, 3, cameras, (32, 32))
    assert isinstance(policy, ImitationPolicy)
    generator = torch.Generator().manual_seed(0)
    rng = np.random.default_rng(0)
    policy.fit_normalizers(rng.normal(size=(50, 5)), rng.uniform(-1, 1, size=(50, 3)))
    batch = {
        "state": torch.randn(4, config.obs_steps, 5, generator=generator),
        "actions": torch.rand(4, config.horizon, 3, generator=generator) * 2 - 1,
        "mask": torch.ones(4, config.horizon),
        "images.front": torch.zeros(4, config.obs_steps, 32, 32, 3, dtype=torch.uint8),
        "instruction": torch.tensor(list(b"do it"), dtype=torch.uint8).repeat(4, config.obs_steps, 1),
    }
    loss = policy.loss(batch, generator)
    loss.backward()
    assert all(p.grad is not None and p.grad.isfinite().all() for p in policy.parameters() if p.requires_grad)
    actions = policy.sample(batch, num_samples=2, generator=generator).actions
    assert actions.shape == (4, 2, config.horizon, 3)
    assert actions.abs().max() <= 1


@pytest.fixture(scope="module")
def lift() -> Iterator[RobosuiteEnv]:
    env = make_robosuite_env("lift")
    yield env
    env.close()


@pytest.mark.parametrize("name", sorted(set(METHODS) - {"classifier"}))  # which does not act
def test_every_method_trains_and_its_policy_acts(
    name: str, tmp_path: Path, robot_rl: RunCommand, demonstrations: Path, base_run: Path, lift: RobosuiteEnv
) -> None:
    common = [f"method={name}", f"data={demonstrations}", f"runs_dir={tmp_path}", "name=run"]
    common.append("log_every=1")
    if name == "bc":
        robot_rl("train", *common, "method.steps=2", "threads=1", *SMALL_BASE)
    elif name == "residual_ppo":
        robot_rl("train", *common, f"base={base_run}", "method.steps=24", *SMALL_PPO)
    else:
        small = ["method.steps=24", "method.warmup_steps=8", *SMALL_RL]
        robot_rl("train", *common, f"base={base_run}", *small)
    assert len(list_checkpoints(tmp_path / "run" / "checkpoints")) == 1
    # What a report draws of it has titles for people.
    assert set(read_metrics(tmp_path / "run" / "metrics.csv")) <= {*TITLES, *IN_THE_CURVE}
    policy = load_policy(tmp_path / "run")
    obs, _ = lift.reset(seed=0)
    policy.reset([0], [0])
    decision = policy.act({key: value[None] for key, value in obs.items()})
    assert lift.action_space.contains(decision.action[0])
    lift.step(decision.action[0])
