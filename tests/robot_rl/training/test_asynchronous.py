"""Training with a base whose chunks arrive with a delay."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from robot_rl.errors import UserError
from robot_rl.policies.asynchronous import AsyncOptions
from robot_rl.policies.bases.generative import GenerativePolicy
from robot_rl.saved_policies.loading import load_networks, trained_execution
from robot_rl.training.logger import read_metrics
from tests.conftest import SMALL_BASE, SMALL_RL, RunCommand
from tests.robot_rl.training.test_training import assert_same, final_state

DELAY, EXECUTE, HORIZON = 2, 4, 10
NUM_ENVS = 2


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory, robot_rl: RunCommand, demonstrations: Path) -> Path:
    """The run of a base whose chunks are long enough."""
    runs = tmp_path_factory.mktemp("base")
    long = (f"base.horizon={HORIZON}", f"base.max_prefix={DELAY}", "method.steps=2", "threads=1")
    robot_rl("train", "method=bc", f"data={demonstrations}", f"runs_dir={runs}", "name=b", *SMALL_BASE, *long)
    return runs / "b"


def options(base: Path, demonstrations: Path, runs: Path, name: str, steps: int) -> list[str]:
    return [
        "method=residual_chunk",
        f"base={base}",
        f"data={demonstrations}",
        f"runs_dir={runs}",
        f"name={name}",
        f"method.steps={steps}",
        "method.warmup_steps=20",
        "method.candidates=3",
        "asynchronous=prefix",
        f"delay={DELAY}",
        "log_every=20",
        "task.horizon=30",
        *SMALL_RL,
    ]


@pytest.fixture(scope="module")
def run(
    tmp_path_factory: pytest.TempPathFactory, robot_rl: RunCommand, demonstrations: Path, base: Path
) -> Path:
    """A run with a delay."""
    runs = tmp_path_factory.mktemp("runs")
    robot_rl("train", *options(base, demonstrations, runs, "rl", 90))
    return runs / "rl"


def test_the_replay_holds_what_the_policy_chose_from_and_the_base_saw_an_earlier_observation(
    run: Path, base: Path
) -> None:
    networks, _ = load_networks(base)
    assert isinstance(networks, GenerativePolicy)
    replay: dict[str, Tensor] = {
        name.removeprefix("data."): values[0]
        for name, values in final_state(run)["replay"].items()
        if name.startswith("data.")
    }
    checked = 0
    ends = replay["last"].nonzero().flatten().tolist()
    for begin, end in zip([0, *(row + 1 for row in ends)], ends, strict=False):
        for row in range(begin, end):
            # A chunk requested at the start is executed for h steps, each later one from d steps after.
            since = row - begin
            requested = begin if since < EXECUTE else row - DELAY - since % EXECUTE
            state = replay["state"][requested][None, None]
            noise = replay["base_sample_noise"][row][None]
            if requested == begin and since < EXECUTE:
                chunk = networks.sample({"state": state}, noise=noise, num_samples=3)
            else:
                # What was executed until the chunk arrived, exploration noise included.
                prefix = replay["action"][requested : requested + DELAY][None]
                chunk = networks.sample_after({"state": state}, prefix, noise=noise, num_samples=3)
            at = row - requested
            torch.testing.assert_close(
                replay["base_samples"][row][None], chunk.actions[:, :, at : at + EXECUTE], atol=1e-4, rtol=0
            )
            checked += 1
    assert checked > 2 * EXECUTE


def test_the_base_is_asked_once_for_each_executed_chunk(run: Path) -> None:
    rates = [value for _, _, value in read_metrics(run / "metrics.csv")["train/base_queries"]]
    assert max(rates) < 0.5


def test_a_resumed_run_ends_like_an_uninterrupted_one(
    tmp_path: Path, robot_rl: RunCommand, demonstrations: Path, base: Path, run: Path
) -> None:
    """Also the chunks that are executed and requested when it is saved."""
    robot_rl("train", *options(base, demonstrations, tmp_path, "rl", 54))
    robot_rl("train", *options(base, demonstrations, tmp_path, "rl", 90))
    assert_same(final_state(run), final_state(tmp_path / "rl"))


def test_a_policy_is_evaluated_with_the_delay_that_it_was_trained_with(
    run: Path, robot_rl: RunCommand, capsys: pytest.CaptureFixture[str]
) -> None:
    def summary(folder: str, *more: str) -> dict[str, Any]:
        robot_rl("eval", f"policy={run}", "episodes=1", "num_envs=1", *more)
        found: dict[str, Any] = json.loads((run / "eval" / folder / "summary.json").read_text())
        return found

    trained = summary("")
    assert (trained["asynchronous"], trained["delay"]) == ("prefix", DELAY)
    assert capsys.readouterr().err.count("trained with") == 0
    assert "asynchronous" not in summary("off", "asynchronous=off")
    assert (
        "was trained with asynchronous=prefix delay=2, and acts with asynchronous=off"
        in capsys.readouterr().err
    )


SMALL_PPO = ("method.num_envs=2", "method.rollout_steps=10", "method.minibatches=2", "method.hidden=[16,16]")


@pytest.mark.full
@pytest.mark.parametrize("method", ["expo", "residual", "ibrl", "rlpd", "residual_ppo"])
def test_the_other_methods_train_with_a_delay_too(
    method: str, tmp_path: Path, robot_rl: RunCommand, demonstrations: Path, base: Path
) -> None:
    small = [*SMALL_RL, "method.warmup_steps=20", f"data={demonstrations}"]
    given = [*SMALL_PPO] if method == "residual_ppo" else small
    common = [f"base={base}", f"runs_dir={tmp_path}", "name=rl", "asynchronous=naive", f"delay={DELAY}"]
    robot_rl("train", f"method={method}", *common, "method.steps=60", "task.horizon=30", *given)
    assert trained_execution(load_networks(tmp_path / "rl")[1]) == AsyncOptions("naive", DELAY)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (("method=dsrl",), "method=dsrl chooses the noise of the base from the newest observation"),
        (("method=dsrl_na",), "method=dsrl_na chooses the noise"),
        (("method=expo", "method.base_lr=1e-4"), "method=expo runs the base in its updates"),
        (("method=expo", "method.faster=true"), "method.faster=true ranks seeds"),
        (("method=expo", "method.windows=decisions"), "asks it once per chunk already: leave method.windows"),
        (("method=expo", "imagination=state"), "imagination asks the base at imagined states"),
        (("method=bc",), "is for methods that act, method=bc learns from data"),
        (("method=expo", "delay=3"), f"the base predicts {HORIZON} steps.*it needs 11"),
        (("method=expo", "asynchronous=off"), "delay=2 is for asynchronous=naive, blend, prefix or guided"),
    ],
)
def test_what_cannot_learn_with_a_delay_is_refused(
    given: tuple[str, ...],
    message: str,
    tmp_path: Path,
    robot_rl: RunCommand,
    demonstrations: Path,
    base: Path,
) -> None:
    common = [
        "asynchronous=naive",
        f"delay={DELAY}",
        f"data={demonstrations}",
        f"runs_dir={tmp_path}",
        "name=rl",
    ]
    learner = [] if "method=bc" in given else [f"base={base}"]
    with pytest.raises((UserError, ValueError), match=message) as caught:
        robot_rl("train", *common, *learner, *given)
    assert "\n" not in str(caught.value)
    assert not (tmp_path / "rl").exists()
