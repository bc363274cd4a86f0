"""Runs are deterministic, and a resumed run ends like an uninterrupted one."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from robot_rl.cli.compose import compose
from robot_rl.cli.main import load_command
from robot_rl.commands._train_config import resolved
from robot_rl.data.replay_buffer import SOURCES
from robot_rl.errors import UserError
from robot_rl.runs import list_checkpoints
from robot_rl.training.checkpoint import load_checkpoint
from robot_rl.training.logger import read_metrics
from robot_rl.training.loop import NotFinite, check_action, check_reward
from robot_rl.training.updater import Updater
from tests.conftest import SMALL_BASE, SMALL_RL, RunCommand
from tests.hardware.processes import PATIENCE


def assert_same(a: Any, b: Any, path: str = "") -> None:
    """Check that two trees are bit-identical."""
    assert type(a) is type(b), path
    if isinstance(a, dict):
        assert a.keys() == b.keys(), path
        for key in a:
            assert_same(a[key], b[key], f"{path}/{key}")
    elif isinstance(a, list):
        assert len(a) == len(b), path
        for i, (x, y) in enumerate(zip(a, b, strict=True)):
            assert_same(x, y, f"{path}/{i}")
    elif isinstance(a, torch.Tensor):
        assert torch.equal(a, b), path
    elif isinstance(a, np.ndarray):
        assert np.array_equal(a, b, equal_nan=True), path
    else:
        assert a == b, path


def final_state(run: Path) -> dict[str, Any]:
    state = load_checkpoint(list_checkpoints(run / "checkpoints")[-1])
    # Seconds differ between runs, and with them the size of metrics.csv; so do the ids of actors' spools.
    del state["logger"]
    for actor in state.get("actors", ()):
        del actor["spool"]
    return state


def metrics(run: Path) -> dict[str, list[tuple[int, float]]]:
    series = read_metrics(run / "metrics.csv")
    return {name: [(step, value) for step, _, value in rows] for name, rows in series.items()}


def bc(demonstrations: Path, runs: Path, name: str, steps: int) -> list[str]:
    return [
        "method=bc",
        f"data={demonstrations}",
        f"runs_dir={runs}",
        f"name={name}",
        f"method.steps={steps}",
        "log_every=5",
        "threads=1",
        *SMALL_BASE,
    ]


def residual(demonstrations: Path, base: Path, runs: Path, name: str, steps: int) -> list[str]:
    return [
        "method=residual",
        f"base={base}",
        f"data={demonstrations}",
        f"runs_dir={runs}",
        f"name={name}",
        f"method.steps={steps}",
        "method.warmup_steps=40",
        "log_every=20",
        # Short episodes, so that several end in each half.
        "task.horizon=30",
        *SMALL_RL,
    ]


def test_resumed_bc_run_ends_like_an_uninterrupted_one(
    tmp_path: Path, robot_rl: RunCommand, demonstrations: Path
) -> None:
    robot_rl("train", *bc(demonstrations, tmp_path, "straight", 40))
    robot_rl("train", *bc(demonstrations, tmp_path, "resumed", 20))
    robot_rl("train", *bc(demonstrations, tmp_path, "resumed", 40))
    assert_same(final_state(tmp_path / "straight"), final_state(tmp_path / "resumed"))
    assert metrics(tmp_path / "straight") == metrics(tmp_path / "resumed")


def test_resumed_rl_run_ends_like_an_uninterrupted_one(
    tmp_path: Path, robot_rl: RunCommand, demonstrations: Path, base_run: Path
) -> None:
    """Bit-identical weights, optimisers, replay, simulators, chunks in execution and generators."""
    robot_rl("train", *residual(demonstrations, base_run, tmp_path, "straight", 160))
    # 90 steps are in the middle of an episode and of a chunk.
    robot_rl("train", *residual(demonstrations, base_run, tmp_path, "resumed", 90))
    robot_rl("train", *residual(demonstrations, base_run, tmp_path, "resumed", 160))
    straight = final_state(tmp_path / "straight")
    assert straight["learner"]["updates"] == 10 + 120
    assert straight["episodes"]["begun"] > 4
    assert_same(straight, final_state(tmp_path / "resumed"))
    assert metrics(tmp_path / "straight") == metrics(tmp_path / "resumed")


@pytest.mark.parametrize("method", ["residual", pytest.param("residual_ppo", marks=pytest.mark.full)])
def test_a_run_does_not_go_on_around_another_base_nor_with_fewer_steps(
    method: str, tmp_path: Path, robot_rl: RunCommand, demonstrations: Path
) -> None:
    runs, base = tmp_path / "runs", tmp_path / "bases"
    robot_rl("train", *bc(demonstrations, base, "b", 2))
    small = ("method.rollout_steps=4", "method.num_envs=2", "method.hidden=[16,16]", "task.horizon=10")
    of_method = {
        "residual": residual(demonstrations, base / "b", runs, "r", 60),
        "residual_ppo": ["method=residual_ppo", f"base={base / 'b'}", f"runs_dir={runs}", "name=r", *small],
    }[method]
    robot_rl("train", *of_method, "method.steps=60")
    written = (runs / "r" / "config.yaml").read_bytes()
    with pytest.raises(UserError, match=r"has made 6\d steps, more than method.steps=48"):
        robot_rl("train", *of_method, "method.steps=48")
    # The base is trained further.
    robot_rl("train", *bc(demonstrations, base, "b", 4))
    with pytest.raises(UserError, match=r"began with another base policy .*: it was trained further"):
        robot_rl("train", *of_method, "method.steps=80")
    assert final_state(runs / "r")["step"] == 60
    assert (runs / "r" / "config.yaml").read_bytes() == written


def test_critics_warm_up_between_two_steps_and_a_stop_during_it_changes_nothing(
    tmp_path: Path,
    robot_rl: RunCommand,
    demonstrations: Path,
    base_run: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    warmup = "method.critic_warmup=80"
    robot_rl("train", *residual(demonstrations, base_run, tmp_path, "straight", 100), warmup)
    straight = final_state(tmp_path / "straight")
    assert straight["learner"]["updates"] == 80 + 60
    # In both environments the base acts during the warm-up and while its last updates are made.
    sources = straight["replay"]["data.source"][:, :40]
    policy = sources == SOURCES.index("policy")
    assert policy.int().argmax(1).max() <= 20 + 3

    learn, made, stops = Updater.update, 0, [20, 50]

    def interrupted(self: Updater, updates: int, step: int) -> None:
        nonlocal made
        learn(self, updates, step)
        made += updates
        if stops and made >= stops[0]:
            del stops[0]
            os.kill(os.getpid(), signal.SIGINT)

    monkeypatch.setattr(Updater, "update", interrupted)
    # The second stop, at the same step, keeps the updates made since the first.
    for least, below in ((20, 50), (50, 80)):
        with pytest.raises(KeyboardInterrupt):
            robot_rl("train", *residual(demonstrations, base_run, tmp_path, "stopped", 100), warmup)
        assert least <= final_state(tmp_path / "stopped")["learner"]["updates"] < below
    robot_rl("train", *residual(demonstrations, base_run, tmp_path, "stopped", 100), warmup)
    assert_same(straight, final_state(tmp_path / "stopped"))


@pytest.mark.full
def test_another_seed_gives_another_run(
    tmp_path: Path, robot_rl: RunCommand, demonstrations: Path, base_run: Path
) -> None:
    """The resumed runs above show that the same seed gives the same run."""
    for name, seed in (("first", 0), ("other", 1)):
        robot_rl("train", *residual(demonstrations, base_run, tmp_path, name, 44), f"seed={seed}")
    first, other = (final_state(tmp_path / name) for name in ("first", "other"))
    assert not torch.equal(first["replay"]["data.state"], other["replay"]["data.state"])


def test_starting_a_finished_run_again_changes_nothing(
    tmp_path: Path, robot_rl: RunCommand, demonstrations: Path
) -> None:
    robot_rl("train", *bc(demonstrations, tmp_path, "run", 20))
    before = {path: path.stat().st_mtime_ns for path in (tmp_path / "run" / "checkpoints").rglob("*")}
    robot_rl("train", *bc(demonstrations, tmp_path, "run", 20))
    after = {path: path.stat().st_mtime_ns for path in (tmp_path / "run" / "checkpoints").rglob("*")}
    assert before == after


@pytest.mark.parametrize("number", [signal.SIGINT, pytest.param(signal.SIGTERM, marks=pytest.mark.full)])
def test_run_stopped_by_a_signal_resumes_exactly(
    tmp_path: Path, robot_rl: RunCommand, demonstrations: Path, number: signal.Signals
) -> None:
    steps = 100_000
    command = [sys.executable, "-m", "robot_rl", "train", *bc(demonstrations, tmp_path, "stopped", steps)]
    environ = {**os.environ, "OMP_NUM_THREADS": "1"}
    child = subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env=environ)
    deadline = time.monotonic() + PATIENCE
    while not (tmp_path / "stopped" / "metrics.csv").exists():
        assert child.poll() is None
        assert time.monotonic() < deadline
        time.sleep(0.02)
    child.send_signal(number)
    _, errors = child.communicate(timeout=PATIENCE)
    assert child.returncode == 130
    assert "the same command goes on from here" in errors
    stopped_at = final_state(tmp_path / "stopped")["step"]
    assert 0 < stopped_at < steps
    robot_rl("train", *bc(demonstrations, tmp_path, "stopped", stopped_at + 20))
    robot_rl("train", *bc(demonstrations, tmp_path, "straight", stopped_at + 20))
    assert_same(final_state(tmp_path / "straight"), final_state(tmp_path / "stopped"))


def test_loss_that_is_not_finite_stops_the_run_and_keeps_the_last_checkpoint(
    tmp_path: Path, robot_rl: RunCommand, demonstrations: Path
) -> None:
    arguments = [*bc(demonstrations, tmp_path, "run", 40), "checkpoint_every=10", "method.lr_warmup=0"]
    with pytest.raises(ValueError, match=r"became NaN or infinite at step 5\d*") as caught:
        robot_rl("train", *arguments, "method.lr=1e30")
    assert "last checkpoint is intact" in str(caught.value)
    assert list_checkpoints(tmp_path / "run" / "checkpoints") == []


def test_update_that_diverges_stops_the_run_and_its_batch_is_written(
    tmp_path: Path, robot_rl: RunCommand, demonstrations: Path, base_run: Path
) -> None:
    arguments = residual(demonstrations, base_run, tmp_path, "run", 160)
    with pytest.raises(ValueError, match=r"critic_loss.* became NaN or infinite at step 4\d") as caught:
        robot_rl("train", *arguments, "checkpoint_every=40", "method.critic_lr=1e30")
    batch = load_file(tmp_path / "run" / "not_finite_batch.safetensors")
    assert "not_finite_batch.safetensors" in str(caught.value)
    # The data are finite, the critics are not.
    assert len(batch["state"]) == len(batch["action"]) == 16
    assert all(value.isfinite().all() for value in batch.values())
    assert [path.name for path in list_checkpoints(tmp_path / "run" / "checkpoints")] == ["00000040"]
    assert final_state(tmp_path / "run")["learner"]["updates"] == 0


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_reward_that_is_not_finite_is_an_error(value: float) -> None:
    with pytest.raises(NotFinite, match="reward became NaN or infinite at step 7"):
        check_reward(np.array([0, value], np.float32), 7)
    check_reward(np.array([0, 1], np.float32), 7)


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_action_that_is_not_finite_is_an_error_that_names_the_loss_that_led_to_it(value: float) -> None:
    action = np.array([[0, value]], np.float32)
    with pytest.raises(NotFinite, match="action became NaN or infinite at step 7; the last checkpoint is"):
        check_action(action, {"critic_loss": torch.zeros(())}, 7)
    with pytest.raises(NotFinite, match="critic_loss became NaN or infinite at step 7"):
        check_action(action, {"critic_loss": torch.tensor(value)}, 7)
    # On a GPU metrics are read when they are logged, and not for each action.
    check_action(np.zeros((1, 2), np.float32), {"critic_loss": torch.tensor(value)}, 7)


def test_options_that_earlier_versions_did_not_have_are_recorded_only_if_they_are_used() -> None:
    """So that runs of earlier versions can be resumed."""
    given = ["method=residual_chunk", "task=lift_image", "base=runs/base"]
    content = resolved(compose(load_command("train"), given))
    assert not {"asynchronous", "delay"} & content.keys()
    assert "randomize" not in content["task"]
    assert "windows" not in content["method"]
    used = ["method.windows=decisions", "task.randomize=[light]"]
    content = resolved(compose(load_command("train"), [*given, *used]))
    assert content["task"]["randomize"] == ["light"]
    assert content["method"]["windows"] == "decisions"
    given = ["method=residual_ppo", "task=lift_image", "base=runs/base"]
    assert "encoder" not in resolved(compose(load_command("train"), given))["method"]
    content = resolved(compose(load_command("train"), [*given, "method.encoder=base"]))
    assert content["method"]["encoder"] == "base"
    given = ["method=bc", "base=diffusion", "task=lift_image", "data=null"]
    assert "encoder" not in resolved(compose(load_command("train"), given))["base"]
    content = resolved(compose(load_command("train"), [*given, "base.encoder=vit"]))
    assert content["base"]["encoder"] == "vit"
