"""Evaluation: outcomes do not depend on the number of environments; progress, summary, files."""

import csv
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from robot_rl.envs.action import ActionDim
from robot_rl.envs.instruction import INSTRUCTION, decode_instruction, encode_instruction
from robot_rl.errors import UserError
from robot_rl.evaluation.evaluate import Outcome, Summary, check_replaced, evaluate, write_evaluation
from robot_rl.evaluation.initial_states import InitialStates
from robot_rl.policies.acting import ActingPolicy
from robot_rl.policies.bases.base_policy import BasePolicy, BaseSpec, Chunk
from robot_rl.policies.chunk_runner import ChunkRunner
from robot_rl.stats import wilson
from tests.conftest import RunCommand


class Walks:
    """Random walks driven by the policy's noise; above 0.5 is success, after 12 steps is the end.

    Stands in for the environments: an outcome depends on the initial state and the policy's seed.
    """

    action_spec = (ActionDim("x", "delta", "m", 1.0, "world"),)

    def __init__(self, num_envs: int) -> None:
        self.num_envs = num_envs
        self.actions: list[float] = []
        self.at = np.full(num_envs, np.nan)
        self.steps = np.zeros(num_envs, int)
        self.done = np.ones(num_envs, bool)
        self.begun: list[float] = []

    def _obs(self) -> dict[str, np.ndarray]:
        return {"state": self.at.astype(np.float32)[:, None]}

    def reset(self, *, options: dict[str, Any]) -> tuple[dict[str, np.ndarray], dict]:
        for env_id in np.flatnonzero(options["reset_mask"]):
            self.at[env_id] = options["states"][env_id][0]
            self.steps[env_id], self.done[env_id] = 0, False
            self.begun.append(float(self.at[env_id]))
        return self._obs(), {}

    def draw_next(self, mask: np.ndarray) -> None:
        """There is nothing to draw."""

    def step(self, action: np.ndarray) -> tuple:
        assert not self.done.any()
        self.actions.append(float(action[0, 0]))
        self.at += action[:, 0]
        self.steps += 1
        success = self.at > 0.5
        truncated = ~success & (self.steps >= 12)
        self.done = success | truncated
        return self._obs(), success.astype(np.float32), success, truncated, {"success": success}


class Noise(BasePolicy):
    spec = BaseSpec(1, 1, horizon=4, execute=2, obs_steps=1, noise_shape=(4, 1), deterministic=True)

    def __init__(self) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.zeros(1))

    def sample(self, obs: Any, *, noise: Any = None, **_: Any) -> Chunk:  # type: ignore[override]
        return Chunk((0.15 * noise).clamp(-1, 1), noise)


STATES = np.linspace(-0.4, 0.3, 11)[:, None]


def run(
    num_envs: int, states: np.ndarray = STATES, seed: int = 0, **more: Any
) -> tuple[list[Outcome], Walks]:
    envs = Walks(num_envs)
    return evaluate(envs, ActingPolicy(Noise(), num_envs), list(states), seed, **more), envs  # type: ignore[arg-type]


@pytest.mark.parametrize("num_envs", [2, 3, 7, 11, 16])
def test_outcomes_do_not_depend_on_the_number_of_environments(num_envs: int) -> None:
    alone, _ = run(1)
    assert {outcome.success for outcome in alone} == {True, False}
    assert len({outcome.length for outcome in alone}) > 2
    assert run(num_envs)[0] == alone


def test_each_state_is_evaluated_once_and_outcomes_are_in_order() -> None:
    outcomes, envs = run(1)
    np.testing.assert_allclose(envs.begun, STATES[:, 0])
    assert [outcome.episode for outcome in outcomes] == list(range(11))
    for num_envs in (3, 16):
        outcomes, envs = run(num_envs)
        assert [outcome.episode for outcome in outcomes] == list(range(11))
        assert set(envs.begun) == set(STATES[:, 0])


def test_outcome_of_an_episode_does_not_depend_on_other_episodes() -> None:
    assert run(2, STATES[:4])[0] == run(2)[0][:4]


def test_policy_seed_is_reported_for_each_episode() -> None:
    one, two = run(2)[0], run(2, seed=1)[0]
    assert run(2)[0] == one
    assert [outcome.length for outcome in one] != [outcome.length for outcome in two]
    assert len({outcome.seed for outcome in one + two}) == 22


class ToldWalks(Walks):
    """Walks whose success is at the end that an instruction, which depends on the initial state, names."""

    def __init__(self, num_envs: int) -> None:
        super().__init__(num_envs)
        self.signs = np.ones(num_envs)

    def _obs(self) -> dict[str, np.ndarray]:
        texts = ["go up" if sign > 0 else "go down" for sign in self.signs]
        return super()._obs() | {INSTRUCTION: np.stack([encode_instruction(text) for text in texts])}

    def reset(self, *, options: dict[str, Any]) -> tuple[dict[str, np.ndarray], dict]:
        for env_id in np.flatnonzero(options["reset_mask"]):
            self.signs[env_id] = np.sign(options["states"][env_id][0])
        return super().reset(options=options)

    def step(self, action: np.ndarray) -> tuple:
        self.at *= self.signs  # so that success is above 0.5 in each
        _, reward, *ends = super().step(action * self.signs[:, None])
        self.at *= self.signs
        return self._obs(), reward, *ends


class Obeys(Noise):
    """Goes where the instruction says."""

    spec = replace(Noise.spec, instruction=True)

    def sample(self, obs: Any, *, noise: Any = None, **_: Any) -> Chunk:  # type: ignore[override]
        texts = [decode_instruction(row) for row in obs[INSTRUCTION][:, -1].numpy()]
        ways = torch.tensor([1.0 if text == "go up" else -1.0 for text in texts])
        return Chunk(0.5 * ways[:, None, None, None].expand(*noise.shape[:2], 4, 1), noise)


@pytest.mark.parametrize("told", [None, {"go up": "go down", "go down": "go up"}])
def test_success_stays_that_of_the_instruction_if_the_policy_is_told_another(
    told: dict[str, str] | None,
) -> None:
    envs = ToldWalks(2)
    states = [state for state in STATES if state[0]]
    outcomes = evaluate(envs, ActingPolicy(Obeys(), 2), states, 0, told=told)  # type: ignore[arg-type]
    assert [outcome.instruction for outcome in outcomes] == [
        "go up" if state > 0 else "go down" for (state,) in states
    ]
    assert [outcome.success for outcome in outcomes] == [not told] * len(states)


def test_jerk_is_that_of_the_executed_actions_and_held_steps_are_counted(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(ChunkRunner, "is_held", lambda self, env_id: True)
    outcomes, envs = run(1)
    before = 0
    for outcome in outcomes:
        actions = envs.actions[before : before + outcome.length]
        changes = [abs(c - 2 * b + a) for a, b, c in zip(actions, actions[1:], actions[2:], strict=False)]
        assert outcome.jerk == pytest.approx(np.mean(changes) if changes else 0, rel=1e-5)
        assert outcome.held == outcome.length
        before += outcome.length
    assert max(outcome.jerk for outcome in outcomes) > 0.01


def test_progress_is_shown_after_each_episode() -> None:
    shown: list[tuple[int, float]] = []

    class Show:
        def update(self, step: int, *, success: float) -> None:
            shown.append((step, success))

    outcomes, _ = run(3, show=Show())
    assert [count for count, _ in shown] == list(range(1, 12))
    assert shown[-1][1] == pytest.approx(np.mean([outcome.success for outcome in outcomes]))


OUTCOMES = [Outcome(0, True, 10, 5, jerk=0.25, held=3), Outcome(1, False, 20, 6), Outcome(2, True, 12, 7)]


def test_summary_has_success_rate_interval_and_mean_length() -> None:
    summary = Summary.of(OUTCOMES, "abc")
    assert summary == Summary(2 / 3, wilson(2, 3), 14.0, "abc")
    assert summary.interval[0] < 2 / 3 < summary.interval[1]


def test_files_contain_every_outcome_and_the_initial_states(tmp_path: Path) -> None:
    states = InitialStates("lift.safetensors", "lift", STATES)
    results = {"base": OUTCOMES, "tuned": OUTCOMES[::-1]}
    summaries = {name: Summary.of(outcomes, name) for name, outcomes in results.items()}
    write_evaluation(tmp_path / "eval", states, results, summaries)
    with (tmp_path / "eval" / "episodes.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == 6
    first = {"policy": "base", "episode": "0", "success": "1", "length": "10", "seed": "5"}
    assert rows[0] == {**first, "jerk": "0.250000", "held": "3"}
    written = json.loads((tmp_path / "eval" / "summary.json").read_text())
    assert written["states_sha256"] == states.sha256
    assert written["episodes"] == 3
    assert written["policies"]["tuned"]["interval"] == list(wilson(2, 3))
    assert written["policies"]["base"]["fingerprint"] == "base"
    assert written["motion"]["base"] == {"jerk": pytest.approx(0.25 / 3), "held": 3}


def test_results_with_more_episodes_or_another_seed_are_not_replaced(tmp_path: Path) -> None:
    states = InitialStates("lift.safetensors", "lift", STATES)
    check_replaced(tmp_path, {"new"}, 1, 0)
    write_evaluation(tmp_path, states, {"tuned": OUTCOMES}, {"tuned": Summary.of(OUTCOMES, "abc")}, seed=0)
    check_replaced(tmp_path, {"abc"}, 3, 0)
    check_replaced(tmp_path, {"trained further"}, 1, 7)
    for episodes, seed in ((2, 0), (3, 1)):
        with pytest.raises(ValueError, match="results of 3 episodes with noise seed 0: choose another out=…"):
            check_replaced(tmp_path, {"base", "abc"}, episodes, seed)


@pytest.mark.full
def test_a_base_is_compared_with_itself_with_repeated_noise(
    robot_rl: RunCommand, base_run: Path, act_run: Path, tmp_path: Path
) -> None:
    robot_rl(
        "eval", f"policy={base_run}", "episodes=1", "num_envs=1", "repeated_noise=true", f"out={tmp_path}"
    )
    written = json.loads((tmp_path / "summary.json").read_text())
    base, repeated = (written["policies"][name] for name in ("base", "repeated_noise"))
    assert base["fingerprint"] == repeated["fingerprint"]
    with pytest.raises(UserError, match="no noise"):
        robot_rl("eval", f"policy={act_run}", "repeated_noise=true", f"out={tmp_path / 'act'}")
    (tmp_path / "file").touch()
    with pytest.raises(UserError, match="file"):
        robot_rl("eval", f"policy={base_run}", "episodes=1", f"out={tmp_path / 'file'}")
    with pytest.raises(UserError, match="leave out saved, under, asynchronous and delay"):
        robot_rl("eval", f"policy={base_run}", "repeated_noise=true", "asynchronous=naive")
