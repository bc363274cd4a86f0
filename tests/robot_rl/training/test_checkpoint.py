"""Checkpoints are complete or absent, and load exactly what was saved."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from robot_rl.runs import list_checkpoints
from robot_rl.training import checkpoint
from robot_rl.training.checkpoint import KEEP, load_checkpoint, save_checkpoint
from tests.hardware.processes import PATIENCE


def assert_same(one: Any, two: Any, where: str = "") -> None:
    assert type(one) is type(two), where
    if isinstance(one, dict):
        assert list(one) == list(two), where
        for key in one:
            assert_same(one[key], two[key], f"{where}/{key}")
    elif isinstance(one, list):
        assert len(one) == len(two), where
        for i, (a, b) in enumerate(zip(one, two, strict=True)):
            assert_same(a, b, f"{where}/{i}")
    elif isinstance(one, torch.Tensor | np.ndarray):
        assert one.dtype == two.dtype, where
        assert one.shape == two.shape, where
        assert one.tobytes() == two.tobytes() if isinstance(one, np.ndarray) else torch.equal(one, two), where
    else:
        assert one == two, where


def trained(fused: bool = True) -> tuple[torch.nn.Module, torch.optim.Optimizer]:
    torch.manual_seed(0)
    network = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.BatchNorm1d(4))
    optimizer = torch.optim.AdamW(network.parameters(), 1e-2, fused=fused)
    for _ in range(3):
        step(network, optimizer)
    return network, optimizer


def step(network: torch.nn.Module, optimizer: torch.optim.Optimizer) -> None:
    optimizer.zero_grad()
    network(torch.randn(5, 3)).square().sum().backward()
    optimizer.step()


def test_loaded_state_is_the_saved_state(tmp_path: Path) -> None:
    network, optimizer = trained()
    generator = np.random.Generator(np.random.PCG64(3))
    generator.normal(size=3)
    state = {
        "network": dict(network.state_dict()),
        "optimizer": {**optimizer.state_dict(), "param_groups": []},
        "rng": generator.bit_generator.state,
        "torch": torch.Generator().manual_seed(4).get_state(),
        "numbers": {"big": 2**127 + 1, "float": 0.1 + 0.2, "none": None, "true": True, "text": "π/2"},
        "keys": {1: "int", "1": "str", 2: {"deep": []}},
        "lists": [1, [2.5, None], {"x": np.arange(4)[::2]}],
        "arrays": {
            "scalar": np.array(2.5),
            "empty": np.zeros((0, 3), np.float32),
            "transposed": np.arange(6.0).reshape(2, 3).T,
            "bool": np.array([True, False]),
            "int8": np.arange(3, dtype=np.int8),
            "uint64": np.array([2**64 - 1], np.uint64),
            "negative zero": np.array([-0.0]),
        },
        "tensors": {"scalar": torch.tensor(3.0), "sliced": torch.arange(9).reshape(3, 3)[:, 1]},
    }
    assert isinstance(state["rng"]["state"]["state"], int)
    loaded = load_checkpoint(save_checkpoint(tmp_path, 1, state))
    assert loaded.keys() == state.keys()
    for key in state:
        expected = dict(state[key]) if isinstance(state[key], dict) else state[key]
        assert_same(loaded[key], expected, key)


@pytest.mark.parametrize("fused", [True, False])
def test_loaded_optimiser_continues_bit_identically(tmp_path: Path, fused: bool) -> None:
    network, optimizer = trained(fused)
    path = save_checkpoint(
        tmp_path,
        3,
        {"net": network.state_dict(), "opt": optimizer.state_dict(), "rng": torch.get_rng_state()},
    )
    step(network, optimizer)
    other, other_optimizer = trained(fused)
    loaded = load_checkpoint(path)
    torch.manual_seed(99)
    other.load_state_dict(loaded["net"])
    other_optimizer.load_state_dict(loaded["opt"])
    torch.set_rng_state(loaded["rng"])
    step(other, other_optimizer)
    assert_same(dict(other.state_dict()), dict(network.state_dict()))


def test_state_without_arrays(tmp_path: Path) -> None:
    assert load_checkpoint(save_checkpoint(tmp_path, 0, {"step": 7})) == {"step": 7}


def test_newest_checkpoints_are_kept_in_order_of_steps(tmp_path: Path) -> None:
    steps = [5, 20, 99_999_999, 100_000_000, 200_000_000]  # longer than the padding
    for step_number in steps:
        save_checkpoint(tmp_path, step_number, {"step": step_number})
    assert KEEP == 2
    assert [load_checkpoint(path)["step"] for path in list_checkpoints(tmp_path)] == steps[-2:]
    assert len(list(tmp_path.iterdir())) == 2


def test_other_files_are_not_listed_as_checkpoints(tmp_path: Path) -> None:
    save_checkpoint(tmp_path, 3, {})
    (tmp_path / "00000009 (copy)").mkdir()
    (tmp_path / "00000010").write_text("")
    assert [path.name for path in list_checkpoints(tmp_path)] == ["00000003"]
    assert list_checkpoints(tmp_path / "none") == []


def test_further_files_appear_with_the_checkpoint(tmp_path: Path) -> None:
    def extra(directory: Path) -> None:
        assert not list_checkpoints(tmp_path)
        (directory / "policy").mkdir()
        (directory / "policy" / "weights").write_text("w")

    path = save_checkpoint(tmp_path, 1, {}, extra)
    assert (path / "policy" / "weights").read_text() == "w"


@pytest.mark.parametrize("error", [OSError(28, "No space left on device"), KeyboardInterrupt()])
def test_failed_save_keeps_older_checkpoints(tmp_path: Path, error: BaseException) -> None:
    for step_number in (1, 2):
        save_checkpoint(tmp_path, step_number, {"step": step_number})

    def fail(directory: Path) -> None:
        (directory / "half").write_text("h")
        raise error

    with pytest.raises(type(error)):
        save_checkpoint(tmp_path, 3, {}, fail)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["00000001", "00000002"]


def test_saving_a_step_again_keeps_the_checkpoint(tmp_path: Path) -> None:
    def fail(directory: Path) -> None:
        raise OSError(28, "No space left on device")

    path = save_checkpoint(tmp_path, 1, {"step": 1})
    assert save_checkpoint(tmp_path, 1, {"step": 1}, fail) == path
    assert load_checkpoint(path) == {"step": 1}


SAVER = """
import sys
from pathlib import Path
import numpy as np
from robot_rl.runs import list_checkpoints
from robot_rl.training.checkpoint import save_checkpoint
directory = Path(sys.argv[1])
found = list_checkpoints(directory)
start = int(found[-1].name) if found else 0
def policy(path):
    for i in range(20):
        (path / f"policy{i}").write_text("p")
for step in range(start + 1, 10**6):
    save_checkpoint(directory, step, {"step": step, "x": np.full(10_000, step)}, policy)
"""


def test_killed_run_leaves_only_complete_checkpoints(tmp_path: Path) -> None:
    newest = 0
    for pause in (0.02, 0.053, 0.111, 0.2):
        command = [sys.executable, "-c", SAVER, str(tmp_path)]
        with subprocess.Popen(command, env={**os.environ, "PYTHONPATH": "."}) as child:
            try:
                deadline = time.monotonic() + PATIENCE
                found: list[Path] = []
                while not found or int(found[-1].name) <= newest + 1:
                    assert time.monotonic() < deadline
                    time.sleep(0.005)
                    found = list_checkpoints(tmp_path)
                time.sleep(pause)
            finally:
                os.kill(child.pid, signal.SIGKILL)
        found = list_checkpoints(tmp_path)
        assert KEEP <= len(found) <= KEEP + 1
        for path in found:
            loaded = load_checkpoint(path)
            assert loaded["step"] == int(path.name)
            np.testing.assert_array_equal(loaded["x"], np.full(10_000, loaded["step"]))
            assert len(list(path.glob("policy*"))) == 20
        assert int(found[-1].name) > newest
        newest = int(found[-1].name)
    save_checkpoint(tmp_path, newest + 1, {})
    assert len(list(tmp_path.iterdir())) == KEEP  # leftovers of killed processes are deleted


def test_interrupted_deletion_leaves_no_incomplete_checkpoint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for step_number in range(KEEP):
        save_checkpoint(tmp_path, step_number, {"step": step_number})

    def killed(path: Path, **_: Any) -> None:
        (Path(path) / "state.safetensors").unlink()
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(checkpoint.shutil, "rmtree", killed)
        with pytest.raises(KeyboardInterrupt):
            save_checkpoint(tmp_path, KEEP, {"step": KEEP})
    assert [load_checkpoint(path)["step"] for path in list_checkpoints(tmp_path)] == [1, 2]


def truncate(name: str) -> Callable[[Path], object]:
    def damage(path: Path) -> None:
        file = path / name
        file.write_bytes(file.read_bytes()[:-20])

    return damage


@pytest.mark.parametrize(
    "damage",
    [
        truncate("state.json"),
        truncate("state.safetensors"),
        lambda path: (path / "state.json").unlink(),
        lambda path: (path / "state.safetensors").unlink(),
        lambda path: (path / "state.json").write_text("[]"),
        lambda path: (path / "state.json").write_bytes(b"\xff\xfe"),
        lambda path: (path / "state.json").write_text('{"format_version": 1}'),
    ],
)
def test_damaged_checkpoint_is_an_error_that_says_what_to_do(
    tmp_path: Path, damage: Callable[[Path], object]
) -> None:
    path = save_checkpoint(tmp_path, 1, {"x": torch.arange(100)})
    damage(path)
    with pytest.raises(ValueError, match=r"00000001 is damaged .*; remove it to resume from an older one"):
        load_checkpoint(path)


def test_newer_format_is_an_error(tmp_path: Path) -> None:
    path = save_checkpoint(tmp_path, 1, {})
    header = json.loads((path / "state.json").read_text())
    (path / "state.json").write_text(json.dumps({**header, "format_version": 2}))
    with pytest.raises(ValueError, match="has format 2; this program reads up to 1"):
        load_checkpoint(path)


def test_error_names_the_leaf_that_cannot_be_saved(tmp_path: Path) -> None:
    with pytest.raises(AssertionError, match="/a/1"):
        save_checkpoint(tmp_path, 1, {"a": [0, object()]})
    with pytest.raises(AssertionError, match="two leaves"):
        save_checkpoint(tmp_path, 1, {"a": {"b": np.zeros(1)}, "a/b": np.ones(1)})
    assert list(tmp_path.iterdir()) == []
