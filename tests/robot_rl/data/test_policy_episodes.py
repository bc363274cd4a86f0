"""Episodes of a saved policy: what acts in them, what is stored of them, and that they can be repeated."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from robot_rl.cli.compose import load_group
from robot_rl.cli.main import main
from robot_rl.data.dataset import TARGET, Dataset
from robot_rl.data.policy_episodes import ACTORS, PolicyCollector, PolicyOptions
from robot_rl.data.validation import find_problems
from robot_rl.envs.task import TaskConfig
from robot_rl.evaluation.evaluate import evaluate
from robot_rl.factory import make_vector_env
from robot_rl.policies.acting import ActingPolicy
from robot_rl.policies.finetuned.finetuned_policy import save_finetuned
from robot_rl.rollout import episode_seed
from robot_rl.saved_policies.loading import acting_policy, base_of
from tests.conftest import RunCommand
from tests.robot_rl.data.small_dataset import same_data
from tests.robot_rl.data.tuned_policies import KINDS, tuned

HORIZON = 24
POLICY, BASE = (ACTORS.index(name) for name in ("policy", "base"))
Make = Callable[..., PolicyCollector]


@pytest.fixture
def make(base_run: Path) -> Make:
    task = replace(load_group("task", "lift", TaskConfig), horizon=HORIZON)

    def collector(kind: str, *, alone: bool = False, **options: Any) -> PolicyCollector:
        networks, meta = tuned(kind, base_run)
        given = {"base_first": 0.0, "dagger": False, "seed": 3, **options}
        acts = base_of(networks) if alone else networks
        return PolicyOptions(task, "runs/x", acts, meta, **given).collector()

    return collector


@pytest.mark.parametrize("kind", KINDS)
def test_episodes_are_those_of_an_evaluation_from_the_same_states_and_seeds(
    kind: str, make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    collector = make(kind)
    episodes = [collector.collect(number) for number in range(2)]
    collector.close()
    assert [episode.seed for episode in episodes] == [episode_seed(3, "collect", n) for n in range(2)]
    networks = collector._options.networks
    envs, policy, acted = make_vector_env(collector.env.task, 1), acting_policy(networks, 1), []
    act = policy.act

    def remembered(*given: Any, **named: Any) -> Any:
        output = act(*given, **named)
        acted.append(output.action[0])
        return output

    monkeypatch.setattr(policy, "act", remembered)
    monkeypatch.setattr(
        "robot_rl.evaluation.evaluate.episode_seed", lambda seed, _, n: episode_seed(seed, "collect", n)
    )
    states = np.stack([np.asarray(episode.arrays["sim_state"])[0] for episode in episodes])
    outcomes = evaluate(envs, policy, states, 3)
    envs.close()
    assert [outcome.success for outcome in outcomes] == [episode.success for episode in episodes]
    assert [outcome.length for outcome in outcomes] == [len(episode.arrays["action"]) for episode in episodes]
    np.testing.assert_array_equal(acted, np.concatenate([episode.arrays["action"] for episode in episodes]))
    assert all((episode.arrays["source"] == POLICY).all() for episode in episodes)


@pytest.mark.parametrize("kind", KINDS)
def test_the_base_acts_first_and_the_policy_takes_over_with_a_new_chunk(
    kind: str, make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At a step that is drawn for each episode, also within a chunk of the base."""
    collector, alone = make(kind, base_first=0.5), make(kind, alone=True)
    act, positions = collector._policy.act, []

    def remembered(*given: Any, **named: Any) -> Any:
        output = act(*given, **named)
        positions.append(int(output.chunk_step[0]))
        return output

    monkeypatch.setattr(collector._policy, "act", remembered)
    begun = []
    for number in range(6):
        positions.clear()
        episode, other = collector.collect(number), alone.collect(number)
        source = np.asarray(episode.arrays["source"])
        first = int((source == BASE).sum())
        np.testing.assert_array_equal(source, [BASE] * first + [POLICY] * (len(source) - first))
        action, base = np.asarray(episode.arrays["action"]), np.asarray(other.arrays["action"])
        np.testing.assert_array_equal(action[:first], base[:first])
        assert (action[first] != base[first]).any()
        assert positions[first] == 0
        begun.append(first)
    collector.close()
    alone.close()
    assert max(begun) <= HORIZON // 2
    assert len(set(begun)) > 2
    assert any(first % collector._policy.base.spec.execute for first in begun)


@pytest.mark.parametrize("kind", KINDS)
def test_with_dagger_the_base_acts_and_the_policys_actions_in_its_states_are_stored(
    kind: str, make: Make
) -> None:
    collector, alone = make(kind, dagger=True), make(kind, alone=True)
    episode, other = collector.collect(0), alone.collect(0)
    collector.close()
    alone.close()
    assert (episode.arrays["source"] == BASE).all()
    np.testing.assert_array_equal(episode.arrays["applied_action"], other.arrays["applied_action"])
    np.testing.assert_array_equal(episode.arrays["sim_state"], other.arrays["sim_state"])
    policy = acting_policy(collector._options.networks, 1)
    policy.reset([0], [episode.seed])
    spec = collector.env.observation_spec
    parts = [np.asarray(episode.arrays[key]) for key in spec.state_keys]
    states = np.concatenate([part.reshape(len(part), -1) for part in parts], 1)
    proposed = [policy.act_single({"state": state}) for state in states]
    np.testing.assert_array_equal(episode.arrays[TARGET], proposed)
    assert (episode.arrays[TARGET] != episode.arrays["action"]).any()


@pytest.mark.full
@pytest.mark.parametrize("more", ["base_first=0.5", "dagger=true"])
def test_a_dataset_of_a_policy_is_valid_replays_and_is_continued_with_the_same_settings_alone(
    more: str, base_run: Path, tmp_path: Path, robot_rl: RunCommand, capsys: pytest.CaptureFixture[str]
) -> None:
    networks, meta = tuned("residual", base_run)
    save_finetuned(networks, tmp_path / "run" / "policy", meta)
    common = ("collect", f"policy={tmp_path / 'run'}", f"task.horizon={HORIZON}")
    whole, continued = tmp_path / "whole.zarr", tmp_path / "continued.zarr"
    robot_rl(*common, more, f"data={whole}", "episodes=3")
    for episodes in (2, 3):
        robot_rl(*common, more, f"data={continued}", f"episodes={episodes}")
    same_data(Dataset(whole), Dataset(continued))
    assert find_problems(whole) == []
    assert main(["data", "validate", f"dataset={whole}", "replay=2"]) == 0
    capsys.readouterr()
    assert main([*common, "base_first=0.25", f"data={whole}", "episodes=4"]) == 2
    error = capsys.readouterr().err
    assert "was collected with" in error
    assert len(error.splitlines()) == 1
    assert Dataset(whole).num_episodes == 3


def test_what_cannot_be_collected_is_refused_in_one_line(
    base_run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    networks, meta = tuned("residual", base_run)
    run, data = tmp_path / "run", f"data={tmp_path / 'x.zarr'}"
    save_finetuned(networks, run / "policy", meta)
    delayed = {**meta, "execution": {"asynchronous": "naive", "delay": 1}}
    save_finetuned(networks, tmp_path / "delayed" / "policy", delayed)
    for arguments, words in (
        (["base_first=0.3"], "add policy=runs/…"),
        (["policy=runs/x", "noise=0.1"], "the scripted expert's"),
        ([f"policy={run}", "base_first=1"], "choose it in [0, 1)"),
        ([f"policy={run}", "base_first=0.3", "dagger=true"], "leave base_first out"),
        ([f"policy={base_run}", "base_first=0.3"], "nothing is trained around the base policy"),
        ([f"policy={base_run}", "dagger=true"], "nothing is trained around the base policy"),
        ([f"policy={tmp_path / 'delayed'}", "dagger=true"], "cannot share an episode with its base"),
        ([f"policy={run}", "task=can"], "task was lift, here it is can"),
        ([f"policy={tmp_path / 'none'}"], "does not exist"),
    ):
        assert main(["collect", data, *arguments]) == 2
        error = capsys.readouterr().err
        assert words in error
        assert len(error.splitlines()) == 1
    assert not (tmp_path / "x.zarr").exists()


def test_a_base_policys_own_episodes_can_be_collected(make: Make) -> None:
    collector = make("residual", alone=True)
    assert isinstance(collector._policy, ActingPolicy)
    episode = collector.collect(0)
    collector.close()
    assert (episode.arrays["source"] == POLICY).all()
    assert TARGET not in episode.arrays
