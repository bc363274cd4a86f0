"""Components of off-policy runs, and errors for components that do not fit together."""

import json
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
import torch

from robot_rl.cli.compose import load_group
from robot_rl.envs.task import TaskConfig
from robot_rl.learning.config import OffPolicyConfig, PriorDataConfig
from robot_rl.methods.method import OffPolicyMethod
from robot_rl.methods.registry import METHODS
from robot_rl.policies.bases.imitation import ImitationConfig
from robot_rl.training import components
from robot_rl.training.components import build_off_policy, replay_rows
from robot_rl.training.context import RunBase, RunInputs
from tests.conftest import SMALL_RL, RunCommand


def assert_error(message: str, robot_rl: RunCommand, runs: Path, *options: str) -> None:
    with pytest.raises(ValueError, match=message) as caught:
        robot_rl("train", f"runs_dir={runs}", "name=rl", *SMALL_RL, *options)
    assert "\n" not in str(caught.value)
    assert not (runs / "rl").exists()


@pytest.mark.parametrize("method", ["residual_chunk", "dsrl_na", "expo"])
def test_n_step_shorter_than_an_executed_chunk_is_an_error(
    method: str, tmp_path: Path, robot_rl: RunCommand, demonstrations: Path, base_run: Path
) -> None:
    message = f"set method.n_step={ImitationConfig.execute} or more"
    short = f"method.n_step={ImitationConfig.execute - 1}"
    assert_error(
        message, robot_rl, tmp_path, f"method={method}", f"base={base_run}", f"data={demonstrations}", short
    )


def test_demonstrations_that_do_not_fit_in_memory_are_refused(
    tmp_path: Path,
    robot_rl: RunCommand,
    demonstrations: Path,
    base_run: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(components, "demonstration_rows", lambda *_: 10**12)
    message = "and 10{12} of demonstrations, .*: give fewer or shorter demonstrations"
    assert_error(
        message, robot_rl, tmp_path, "method=residual_chunk", f"base={base_run}", f"data={demonstrations}"
    )


def test_base_without_noise_input_is_an_error_for_methods_that_need_it(
    tmp_path: Path, robot_rl: RunCommand, demonstrations: Path, act_run: Path
) -> None:
    message = "takes no noise.*use method=residual, ibrl or residual_ppo"
    assert_error(
        message, robot_rl, tmp_path, "method=residual_chunk", f"base={act_run}", f"data={demonstrations}"
    )


OTHERS = [
    pytest.param(name, marks=pytest.mark.full) for name in ("residual_chunk", "ibrl", "rlpd", "dsrl_na")
]


@pytest.mark.parametrize("method", ["residual", "expo", "dsrl", *OTHERS])
def test_without_demonstrations_states_are_standardised_by_the_range_of_the_base(
    method: str, base_run: Path
) -> None:
    kind = METHODS[method]
    assert issubclass(kind, OffPolicyMethod)
    alone = {"demo_ratio": 0.0} if issubclass(kind.config_type, PriorDataConfig) else {}
    chosen = kind(kind.config_type(num_envs=1, hidden=[16, 16], **alone))
    task = load_group("task", "lift", TaskConfig)
    inputs = RunInputs(task, RunBase(str(base_run)), None, 0, torch.device("cpu"))
    with ExitStack() as resources:
        components = build_off_policy(chosen, inputs, resources)
    networks: Any = components.agent.networks
    trained = networks.base.state_normalizer
    assert trained.half_range.max() < 1
    torch.testing.assert_close(networks.encoder.norm.mean, trained.center)
    torch.testing.assert_close(networks.encoder.norm.std, trained.half_range)


@pytest.mark.parametrize(("capacity", "rows"), [(50, 50), (1000, 2 * 104)])
def test_replay_has_no_more_rows_than_a_run_can_fill(capacity: int, rows: int) -> None:
    config = OffPolicyConfig(steps=101, warmup_steps=10, num_envs=8, replay_capacity=capacity)
    assert replay_rows(config) == rows


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("method=ibrl",), "cannot act and learn at imagined states: use imagination with residual_chunk"),
        (("method=expo", "method.base_lr=1e-4"), "cannot give method=expo what it learns from"),
        (("method=residual_chunk", "imagination.members=1"), "imagination.members=1: disagreement needs 2"),
        (("method=residual_chunk", "imagination.recent=0.9"), "shares of the branches"),
        (("method=dsrl_na", "imagination.planning=true"), "method=dsrl_na has no candidates to rank"),
        (
            ("method=expo", "imagination.planning=true", "imagination.ignore_uncertainty=true"),
            "leaves out uncertain candidates: choose one of them",
        ),
        (
            ("method=expo", "imagination.planning=true", "hil=on", "hil.operator=none"),
            "imagination.planning=true needs the model where the policy acts",
        ),
        (("method=residual_chunk", "imagination=remote"), "imagination.address is required"),
        (
            ("method=residual_chunk", "imagination=remote", "imagination.address=ipc:///nowhere/model"),
            "/nowhere does not exist",
        ),
    ],
)
def test_imagination_that_a_method_cannot_use_is_refused(
    options: tuple[str, ...],
    message: str,
    tmp_path: Path,
    robot_rl: RunCommand,
    demonstrations: Path,
    base_run: Path,
) -> None:
    quick = ("method.demo_ratio=0", "method.num_envs=1")
    given = (f"base={base_run}", "imagination=state", "device=cpu", *quick, *options)
    assert_error(message, robot_rl, tmp_path, *given, f"data={demonstrations}")


def test_imagination_needs_a_method_that_learns_from_a_replay(
    tmp_path: Path, robot_rl: RunCommand, base_run: Path
) -> None:
    with pytest.raises(ValueError, match="does not learn from a replay: leave imagination out"):
        robot_rl(
            "train", "method=residual_ppo", f"base={base_run}", "imagination=state", f"runs_dir={tmp_path}"
        )


def test_a_run_with_imagination_writes_what_the_gate_decided(
    tmp_path: Path, robot_rl: RunCommand, demonstrations: Path, base_run: Path
) -> None:
    options = ("refit_every=2", "pool=2", "first_updates=4", "fit_updates=2", "branches=8", "hidden=[16]")
    robot_rl(
        "train", f"runs_dir={tmp_path}", "name=rl", *SMALL_RL, "method=residual_chunk", f"base={base_run}",
        f"data={demonstrations}", "imagination=state", "device=cpu", "method.steps=150",
        "method.warmup_steps=60", "task.horizon=15", "log_every=10", *(f"imagination.{o}" for o in options),
    )  # fmt: skip
    records = [json.loads(line) for line in (tmp_path / "rl" / "imagination.jsonl").read_text().splitlines()]
    assert {"step", "episodes", "share", "passed", "error", "rank", "gap"} <= records[-1].keys()
    assert "learn/imagined_share" in (tmp_path / "rl" / "metrics.csv").read_text()
