"""Training with interventions around a base whose chunks arrive with a delay."""

import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from robot_rl.data.replay_buffer import SOURCES
from robot_rl.errors import UserError
from robot_rl.hardware.plugins import VARIABLE
from robot_rl.policy_server.inference import PolicyInference
from robot_rl.policy_server.requests import Query
from robot_rl.policy_server.server import Listen, PolicyServer
from robot_rl.saved_policies.loading import load_networks, trained_execution
from robot_rl.training.logger import read_metrics
from tests.conftest import SMALL_BASE, RunCommand
from tests.robot_rl.hil.training import HUMAN, arguments
from tests.robot_rl.robot.deploy.test_deploy import serving
from tests.robot_rl.training.test_training import assert_same, final_state, metrics

pytestmark = pytest.mark.full
EXECUTE, DELAY, HORIZON = 4, 3, 12
HANDOVER = SOURCES.index("handover")
SLOW = 0.1
"""Time that the served base takes for a chunk, s: two control steps."""


@pytest.fixture(scope="module")
def long_base(tmp_path_factory: pytest.TempPathFactory, robot_rl: RunCommand, demonstrations: Path) -> Path:
    """The run of a base whose chunks are long enough."""
    runs = tmp_path_factory.mktemp("base")
    long = (f"base.horizon={HORIZON}", "method.steps=2", "threads=1")
    robot_rl("train", "method=bc", f"data={demonstrations}", f"runs_dir={runs}", "name=b", *SMALL_BASE, *long)
    return runs / "b"


@pytest.fixture(autouse=True)
def sure_interventions(monkeypatch: pytest.MonkeyPatch) -> None:
    """The operator takes over in each episode."""
    monkeypatch.setenv(VARIABLE, "tests.robot_rl.hil.sure_expert")


class SlowInference(PolicyInference):
    """A base that takes longer than a control step."""

    def infer(self, queries: Sequence[Query]) -> list[dict[str, Any]]:
        time.sleep(SLOW)
        return super().infer(queries)


@pytest.fixture
def slow_base(long_base: Path) -> Iterator[str]:
    """Address of a server of a slow base."""
    networks, meta = load_networks(long_base)
    server = PolicyServer(SlowInference(networks, meta["environment"], 0), Listen())
    try:
        yield f"ws://127.0.0.1:{server.start()}"
    finally:
        server.close()


def test_a_repeated_run_learns_the_same_and_the_replay_holds_what_was_executed(
    robot_rl: RunCommand, demonstrations: Path, long_base: Path, tmp_path: Path
) -> None:
    for name in ("first", "second"):
        more = ("method.steps=260", "hil.lockstep=true", "task.horizon=120")
        delayed = ("asynchronous=naive", f"delay={DELAY}")
        robot_rl("train", *arguments(demonstrations, long_base, tmp_path, name, *more, *delayed))
    state = final_state(tmp_path / "first")
    assert_same(state, final_state(tmp_path / "second"))
    assert metrics(tmp_path / "first") == metrics(tmp_path / "second")
    _, meta = load_networks(tmp_path / "first")
    assert trained_execution(meta).delay == DELAY
    # The base is asked once for each chunk, not at each step.
    queries = [
        value for _, _, value in read_metrics(tmp_path / "first" / "metrics.csv")["train/base_queries"]
    ]
    assert queries
    assert all(1 / 8 < rate < 1 / 2 for rate in queries)

    replay = {name.removeprefix("data."): values for name, values in state["replay"].items()}
    rows = int(replay["count"][0])
    source, last = (replay[name][0, :rows].numpy() for name in ("source", "last"))
    action, samples = (replay[name][0, :rows].numpy() for name in ("action", "base_samples"))
    assert (source == HUMAN).any()
    # After a takeover the arm is held until a chunk is there: in all samples, as in what was executed.
    held = (samples[..., :-1] == 0).all((1, 2, 3)) & (source == HANDOVER) & ~last
    assert held.any()
    np.testing.assert_array_equal(action[held][:, :-1], 0)


def test_a_served_arm_learns_around_a_base_that_is_slower_than_a_control_step(
    robot_rl: RunCommand, demonstrations: Path, slow_base: str, tmp_path: Path
) -> None:
    (tmp_path / "robot").mkdir()
    remote = (f"base.url={slow_base}", "method.demo_ratio=0", "asynchronous=naive")
    with serving(tmp_path / "robot", "task=lift", "states=seeds") as (address, _):
        more = ("method.steps=200", f"hil.robot={address}", "task.horizon=120", *remote)
        with pytest.raises(UserError, match="the actor ended with code 2"):
            robot_rl("train", *arguments(demonstrations, Path("remote"), tmp_path, "late", *more, "delay=1"))
        delayed = (*more, f"delay={DELAY}")
        robot_rl("train", *arguments(demonstrations, Path("remote"), tmp_path, "run", *delayed))
    state = final_state(tmp_path / "run")
    replay = {name.removeprefix("data."): values for name, values in state["replay"].items()}
    rows = int(replay["count"][0])
    assert state["learner"]["updates"] > 100
    assert (replay["source"][0, :rows] == HUMAN).any()
