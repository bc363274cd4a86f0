"""Base policies trained by several processes, which torchrun starts, with gloo on this machine's CPU."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from robot_rl.cli.main import main
from robot_rl.learning.distributed import AccelerateConfig, Accelerated, Processes
from robot_rl.policies.bases.base_policy import random_observations
from robot_rl.policies.bases.imitation import ImitationPolicy
from robot_rl.policies.registry import BASES
from robot_rl.policies.store import load_base
from robot_rl.runs import list_checkpoints
from robot_rl.saved_policies.loading import load_policy
from robot_rl.training.checkpoint import load_checkpoint
from tests.conftest import SMALL_BASE, RunCommand
from tests.hardware.processes import PATIENCE, eventually
from tests.robot_rl.training.small_vla import BATCH, CPU, ROOT, Job, launch, train, write_dataset
from tests.robot_rl.training.test_training import assert_same, final_state, metrics

pytest.importorskip("accelerate", reason="the extra `accelerate` is not installed")

LOSS_TOLERANCE = 1e-5
WEIGHT_TOLERANCE = 1e-5
"""A hundredth of a step."""
KINDS = sorted(set(BASES) - {"uniform"})


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("instructed") / "small.zarr"
    write_dataset(path)
    return path


@pytest.fixture(scope="module")
def alone(dataset: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[float]]:
    """The checkpoint and the losses of one process, without the option."""
    folder = tmp_path_factory.mktemp("alone")
    _, losses = train(Job(str(dataset), str(folder)), Processes())
    return folder, losses


def learned(folder: Path) -> dict[str, Any]:
    state: dict[str, Any] = load_checkpoint(list_checkpoints(folder)[-1])["learner"]
    return state


def assert_close(folder: Path, other: Path) -> None:
    """Check that weights and averages of two checkpoints are nearly equal, and all that is drawn equal."""
    one, two = learned(folder), learned(other)
    for part in ("policy", "ema"):
        assert one[part].keys() == two[part].keys()
        for name, weights in one[part].items():
            compared = [weights, two[part][name]]
            if name.endswith("in_proj_bias"):
                # The bias of attention's keys adds the same to all scores of a query. Its gradient is a
                # rounding error, which Adam makes as large as any other.
                compared = [torch.cat([bias.chunk(3)[0], bias.chunk(3)[2]]) for bias in compared]
            largest = (compared[0].float() - compared[1].float()).abs().max()
            assert largest <= WEIGHT_TOLERANCE, name
    assert one["rng"] == two["rng"]
    assert torch.equal(one["generator"], two["generator"])


def batch_of(policy: ImitationPolicy, rows: int) -> dict[str, Tensor]:
    generator, spec = torch.Generator().manual_seed(3), policy.spec
    mask = torch.arange(spec.horizon) < torch.randint(1, spec.horizon + 1, (rows, 1), generator=generator)
    actions = torch.rand(rows, spec.horizon, spec.action_size, generator=generator) * 2 - 1
    return {**random_observations(policy, rows), "actions": actions, "mask": mask.float()}


def gradients(policy: ImitationPolicy) -> list[Tensor]:
    return [weights.grad for weights in policy.parameters() if weights.grad is not None]


@pytest.mark.parametrize("name", [*KINDS, "flow with prefix"])
def test_the_losses_of_the_parts_of_a_batch_add_up_to_its_loss(name: str) -> None:
    kind = BASES[name.split()[0]].policy
    options = {"max_prefix": 3} if "prefix" in name else {}
    config = kind.for_instructions(BASES[name.split()[0]].config(**options), ["do it"])
    torch.manual_seed(0)
    policy = kind(config, 5, 3, ("front",) if kind.takes_instruction else (), (32, 32))
    assert isinstance(policy, ImitationPolicy)
    batch = batch_of(policy, 6)
    expected = policy.loss(batch, torch.Generator().manual_seed(1))
    expected.backward()
    wanted = gradients(policy)
    policy.zero_grad()
    whole = {**batch, **policy.draw(6, torch.Generator().manual_seed(1))}
    total = torch.zeros(())
    # Unequal parts, so that a mean of means would differ.
    for part in (slice(0, 1), slice(1, 4), slice(4, 6)):
        value = policy.partial_loss({key: rows[part] for key, rows in whole.items()}, policy.totals(whole))
        value.backward()
        total += value.detach()
    torch.testing.assert_close(total, expected.detach())
    torch.testing.assert_close(gradients(policy), wanted, rtol=1e-3, atol=1e-5)


def test_one_process_that_reads_images_from_the_dataset_computes_the_same_bits(
    dataset: Path, alone: tuple[Path, list[float]], tmp_path: Path
) -> None:
    _, losses = train(Job(str(dataset), str(tmp_path)), Accelerated(AccelerateConfig(), CPU))
    assert losses == alone[1]
    assert_same(learned(tmp_path), learned(alone[0]))


def test_accumulated_parts_equal_their_batch(
    dataset: Path, alone: tuple[Path, list[float]], tmp_path: Path
) -> None:
    processes = Accelerated(AccelerateConfig(accumulate=4), CPU)
    _, losses = train(Job(str(dataset), str(tmp_path)), processes)
    assert losses == pytest.approx(alone[1], rel=LOSS_TOLERANCE)
    assert_close(tmp_path, alone[0])


def test_bf16_keeps_weights_average_and_optimiser_in_float32(
    dataset: Path, alone: tuple[Path, list[float]], tmp_path: Path
) -> None:
    processes = Accelerated(AccelerateConfig(mixed_precision="bf16"), CPU)
    learner, losses = train(Job(str(dataset), str(tmp_path)), processes)
    assert losses != alone[1]
    assert losses == pytest.approx(alone[1], rel=0.1)
    moments = [value for state in learner.optimizer.state.values() for value in state.values()]
    kept = [*learner.policy.parameters(), *learner.ema.average.parameters(), *moments]
    assert {value.dtype for value in kept} == {torch.float32}


def test_two_processes_learn_what_one_does_and_each_reads_its_own_half_of_the_images(
    dataset: Path, alone: tuple[Path, list[float]], tmp_path: Path
) -> None:
    losses = launch(Job(str(dataset), str(tmp_path)), 2)
    assert losses == pytest.approx(alone[1], rel=LOSS_TOLERANCE)
    assert_close(tmp_path, alone[0])
    read = [json.loads((tmp_path / f"rows{rank}.json").read_text()) for rank in (0, 1)]
    # Of two cameras; the batch after the last update may have been read already.
    assert max(map(len, read)) <= 7 * BATCH
    rng = np.random.default_rng([0, 2])
    for update in range(6):
        drawn = rng.integers(28, size=BATCH)
        for rank, half in enumerate((drawn[: BATCH // 2], drawn[BATCH // 2 :])):
            assert read[rank][update * BATCH : (update + 1) * BATCH] == [*half, *half]


@pytest.mark.full
@pytest.mark.parametrize("accumulate", [1, 2])
def test_sharded_weights_learn_the_same_and_are_saved_whole(
    dataset: Path, alone: tuple[Path, list[float]], tmp_path: Path, accumulate: int
) -> None:
    options = {"fsdp": True, "accumulate": accumulate}
    losses = launch(Job(str(dataset), str(tmp_path), options), 2)
    assert losses == pytest.approx(alone[1], rel=LOSS_TOLERANCE)
    assert_close(tmp_path, alone[0])
    policies = [load_base(list_checkpoints(folder)[-1] / "policy")[0] for folder in (tmp_path, alone[0])]
    obs = random_observations(policies[0], 3)
    noise = policies[0].draw_noise(3, generator=torch.Generator().manual_seed(0))
    one, other = (policy.sample(obs, noise=noise).actions for policy in policies)
    torch.testing.assert_close(one, other, rtol=0, atol=1e-3)


@pytest.mark.full
@pytest.mark.parametrize("options", [{}, {"fsdp": True}])
def test_the_same_number_of_processes_resumes_exactly(
    dataset: Path, tmp_path: Path, options: Mapping[str, bool]
) -> None:
    whole, part = str(tmp_path / "whole"), str(tmp_path / "part")
    losses = launch(Job(str(dataset), whole, options), 2)
    before = launch(Job(str(dataset), part, options, updates=2), 2)
    after = launch(Job(str(dataset), part, options, updates=4, resume=f"{part}/00000002"), 2)
    assert [*before, *after] == losses
    assert_same(learned(Path(part)), learned(Path(whole)))


def torchrun(*arguments: str, processes: int = 2) -> list[str]:
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    return [*launcher, "--nproc-per-node", str(processes), "-m", "robot_rl", "train", *arguments]


def bc(demonstrations: Path, runs: Path, name: str, steps: int = 12, *more: str) -> list[str]:
    return [
        "method=bc",
        f"data={demonstrations}",
        f"runs_dir={runs}",
        f"name={name}",
        f"method.steps={steps}",
        "method.batch_size=24",
        "device=cpu",
        "log_every=1",
        *SMALL_BASE,
        *more,
    ]


def run(command: Sequence[str], code: int = 0) -> str:
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=600, check=False)
    assert done.returncode == code, done.stderr
    return done.stderr


def losses_of(folder: Path) -> list[float]:
    return [value for _, value in metrics(folder)["learn/loss"]]


@pytest.mark.full
def test_another_number_of_processes_continues_a_run_which_one_process_alone_writes(
    demonstrations: Path, tmp_path: Path, robot_rl: RunCommand
) -> None:
    robot_rl("train", *bc(demonstrations, tmp_path, "alone"))
    shown = run(torchrun(*bc(demonstrations, tmp_path, "run", 4, "accelerate=on")))
    assert shown.count("accelerate: 2 processes") == 1
    run(torchrun(*bc(demonstrations, tmp_path, "run", 8, "accelerate=on"), processes=3))
    more = ("accelerate=on", "accelerate.fsdp=true", "accelerate.accumulate=2")
    run(torchrun(*bc(demonstrations, tmp_path, "run", 10, *more)))
    run(torchrun(*bc(demonstrations, tmp_path, "run", 12, "accelerate=on"), processes=1))
    assert losses_of(tmp_path / "run") == pytest.approx(losses_of(tmp_path / "alone"), rel=LOSS_TOLERANCE)
    saved = [final_state(tmp_path / name)["learner"]["ema"] for name in ("alone", "run")]
    for name, weights in saved[0].items():
        torch.testing.assert_close(weights, saved[1][name], rtol=0, atol=WEIGHT_TOLERANCE)
    # A tracker's file for each of the four starts.
    assert len(list((tmp_path / "run" / "tensorboard").iterdir())) == 4
    assert json.loads((tmp_path / "run" / "run.json").read_text())["processes"] == 1
    load_policy(tmp_path / "run")


def children(parent: int) -> list[int]:
    listed = Path(f"/proc/{parent}/task/{parent}/children").read_text()
    return [int(word) for word in listed.split()]


@pytest.mark.full
@pytest.mark.parametrize("killed", [0, 1])
def test_a_killed_process_ends_the_others_in_one_line_and_the_same_command_resumes(
    demonstrations: Path, tmp_path: Path, killed: int
) -> None:
    command = torchrun(*bc(demonstrations, tmp_path, "run", 100_000, "accelerate=on", "checkpoint_every=10"))
    checkpoints = tmp_path / "run" / "checkpoints"
    with subprocess.Popen(command, cwd=ROOT, stderr=subprocess.PIPE, text=True) as started:
        eventually(lambda: list_checkpoints(checkpoints), "a checkpoint")
        ranks = {int(environment(pid)["RANK"]): pid for pid in children(started.pid)}
        os.kill(ranks[killed], signal.SIGKILL)
        _, shown = started.communicate(timeout=PATIENCE)
    assert started.returncode not in (0, None)
    said = [line for line in shown.splitlines() if line.startswith("robot-rl:")]
    assert said == [
        "robot-rl: another process of this run has ended; the same command goes on from the last checkpoint"
    ]
    step = int(list_checkpoints(checkpoints)[-1].name)
    run(torchrun(*bc(demonstrations, tmp_path, "run", step + 20, "accelerate=on")))
    assert int(list_checkpoints(checkpoints)[-1].name) == step + 20


def environment(pid: int) -> dict[str, str]:
    """Environment variables of a process."""
    pairs = Path(f"/proc/{pid}/environ").read_bytes().decode().split("\0")
    return dict(pair.split("=", 1) for pair in pairs if "=" in pair)


@pytest.mark.full
@pytest.mark.parametrize("asked", ["torchrun", "one process"])
def test_a_stop_request_saves_the_run_of_all(demonstrations: Path, tmp_path: Path, asked: str) -> None:
    command = torchrun(*bc(demonstrations, tmp_path, "run", 100_000, "accelerate=on", "checkpoint_every=10"))
    checkpoints = tmp_path / "run" / "checkpoints"
    with subprocess.Popen(command, cwd=ROOT, stderr=subprocess.PIPE, text=True) as started:
        eventually(lambda: list_checkpoints(checkpoints), "a checkpoint")
        if asked == "torchrun":
            started.send_signal(signal.SIGINT)
        else:
            os.kill(children(started.pid)[1], signal.SIGTERM)
        _, shown = started.communicate(timeout=PATIENCE)
    assert "stopped and saved; the same command goes on from here" in shown
    assert "another process" not in shown
    rows = len(losses_of(tmp_path / "run"))
    assert int(list_checkpoints(checkpoints)[-1].name) == rows


@pytest.mark.parametrize(
    ("arguments", "processes", "message"),
    [
        (
            ("method=bc",),
            2,
            "2 processes were started (WORLD_SIZE), which would train the same: add accelerate=on",
        ),
        (("method=expo",), 2, "start method=expo without torchrun"),
        (
            ("method=expo", "accelerate=on"),
            1,
            "accelerate=on trains base policies (method=bc), not method=expo",
        ),
        (("method=classifier", "accelerate=on"), 1, "not method=classifier"),
        (("method=bc", "accelerate=on", "accelerate.mixed_precision=fp16"), 1, "choose no or bf16"),
        (("method=bc", "accelerate=on", "accelerate.accumulate=0"), 1, "choose 1 or more"),
        (("method=bc", "accelerate=on", "accelerate.accumulate=3"), 1, "choose a multiple of 3"),
        (("method=bc", "accelerate=on", "device=cpu:0"), 1, "leave the number out"),
        (("method=bc", "accelerate=on"), 2, "LOCAL_RANK is not set: start the processes with torchrun"),
        (("-m", "method=bc", "seed=0,1"), 2, "leave --multirun out"),
    ],
)
def test_what_does_not_go_together_is_refused_in_one_line(
    demonstrations: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    arguments: Sequence[str],
    processes: int,
    message: str,
) -> None:
    monkeypatch.setenv("WORLD_SIZE", str(processes))
    base = () if "method=bc" in arguments or "method=classifier" in arguments else ("base=runs/missing",)
    assert main(["train", *arguments, *base, f"data={demonstrations}", f"runs_dir={tmp_path}"]) == 2
    error = capsys.readouterr().err
    assert message in error
    assert len(error.splitlines()) == 1
    assert list(tmp_path.iterdir()) == []


def test_without_accelerate_the_option_is_refused_in_one_line(
    demonstrations: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, "accelerate", None)
    arguments = ["method=bc", "accelerate=on", f"data={demonstrations}", f"runs_dir={tmp_path}"]
    assert main(["train", *arguments]) == 2
    error = capsys.readouterr().err
    assert error == "robot-rl: accelerate=on needs accelerate: pip install accelerate\n"
