"""`robot-rl bench gpu`, the CPU compared with itself."""

import json
from pathlib import Path

import pytest
import torch

from robot_rl.bench.devices import Case, Difference, cases, compare
from robot_rl.bench.image_run import measure_image_run
from robot_rl.bench.update import Size
from robot_rl.cli import main as cli
from robot_rl.commands import bench_gpu
from robot_rl.methods.registry import METHODS

CPU = torch.device("cpu")
CHEAP = ("bc", "residual_ppo", "rlpd_images_base")


def test_every_method_has_a_case() -> None:
    assert {case.partition("_images_")[0] for case in cases()} == set(METHODS)


@pytest.mark.parametrize(
    "case", [pytest.param(case, marks=() if case in CHEAP else pytest.mark.full) for case in cases()]
)
def test_the_cpu_equals_itself(case: str) -> None:
    found = compare(cases()[case], CPU)
    assert (found.metrics, found.weights) == (0, 0)
    assert found.equal


class OneWeight:
    """A learner that each update moves by a step."""

    def __init__(self, step: float, loss: float) -> None:
        self.value, self.step, self.loss = torch.zeros(3), step, loss

    def state_dict(self) -> dict[str, object]:
        return {"net": {"weight": self.value.clone()}, "optimizer": {"param_groups": [], "state": {}}}

    def update(self) -> dict[str, torch.Tensor]:
        self.value += self.step
        return {"loss": torch.tensor(self.loss), "grad": torch.tensor(0.0)}


@pytest.mark.parametrize(
    ("step", "loss", "equal"),
    [
        (1.0, 2.0, True),
        (1.001, 2.0001, True),
        (1.1, 2.0, False),
        (1.0, 2.01, False),
        (1.0, float("nan"), False),
        (float("nan"), 2.0, False),
    ],
)
def test_other_updates_are_found(step: float, loss: float, equal: bool) -> None:
    learners = iter([OneWeight(1.0, 2.0), OneWeight(step, loss)])

    def make(device: torch.device) -> Case:
        learner = next(learners)
        return Case(learner, learner.update)

    assert compare(make, CPU).equal is equal


@pytest.fixture
def few(monkeypatch: pytest.MonkeyPatch) -> None:
    """One case of each part."""
    monkeypatch.setattr(bench_gpu, "cases", lambda: {"rlpd": cases()["rlpd"]})
    monkeypatch.setattr(bench_gpu, "off_policy_methods", list)
    monkeypatch.setattr(bench_gpu, "_SIZES", (Size(8, 2, 8),))


def test_results_are_written_as_json(few: None, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    options = ("device=cpu", "seconds=0.01", "image_run=false", f"out={tmp_path}")
    assert cli.main(["bench", "gpu", *options]) == 0
    assert "1 of 1 updates equal the CPU's" in capsys.readouterr().out
    found = json.loads((tmp_path / "cpu.json").read_text())
    assert found["updates"]["rlpd"]["equal"] is True
    assert found["update_ms"]["sac_8_e2"] > 0
    assert found["machine"]["versions"]["torch"]


def test_a_different_update_fails_the_check(
    few: None, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bench_gpu, "compare", lambda make, device: Difference(0.0, 0.9, "loss"))
    with pytest.raises(SystemExit) as exit_:
        cli.main(["bench", "gpu", "device=cpu", "seconds=0.01", "image_run=false", f"out={tmp_path}"])
    assert exit_.value.code == 1
    assert "updates differ from the CPU's: rlpd" in capsys.readouterr().err


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_without_a_gpu_one_line_says_so(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["bench", "gpu", f"out={tmp_path / 'results'}"]) == 2
    written = capsys.readouterr()
    assert "there is no CUDA GPU here" in written.err
    assert written.err.count("\n") == 1
    assert not (tmp_path / "results").exists()


@pytest.mark.full
def test_run_from_images() -> None:
    found = measure_image_run("cpu", 600, episodes=1, cloning_steps=2, steps=60)
    assert found.train_s > 0
