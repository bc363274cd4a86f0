"""`robot-rl bench sim`: what it measures and prints; no timing is asserted."""

import contextlib
import io
import json
import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from robot_rl.bench.sim import TaskSpeed, measure_task, thread_counts
from robot_rl.bench.timing import take_turns
from robot_rl.cli import main as cli
from robot_rl.commands import bench_sim
from robot_rl.graphics import Trial

SPEED = TaskSpeed(8, 2, 1.6, 1.2, 4, 0.6, 180, 6, 9.5, 3.25, 29, 9.5, 3.5, True, 0.0, 400, 0.99)
IMAGES = ("render_stock_ms", "render_ours_ms", "seeing_stock_ms", "seeing_ours_ms", "seeing_decisions_ms")
MACHINE = {"cpu": "a processor", "cores": 4, "versions": {"mujoco": "3.9.0"}}


@pytest.fixture(scope="module")
def output() -> list[str]:
    """Lines printed by a short real run."""
    with contextlib.redirect_stdout(io.StringIO()) as written:
        assert cli.main(["bench", "sim", "--tasks", "Lift", "--seconds", "0.2", "--json"]) == 0
    return written.getvalue().splitlines()


@pytest.mark.full
def test_last_line_is_json(output: list[str]) -> None:
    found = json.loads(output[-1])
    assert list(found) == ["tasks", "threads", "machine"]
    assert list(found["tasks"]) == ["Lift"]
    assert {"1", "2"} <= set(found["threads"])
    assert found["machine"]["cores"] >= 1
    lift = found["tasks"]["Lift"]
    assert lift.pop("equal") is True
    assert lift.pop("max_deviation") == 0
    images = {name: lift.pop(name) for name in IMAGES}
    assert len({value is None for value in images.values()}) == 1
    figures = [*lift.values(), *found["threads"].values(), *filter(None, images.values())]
    assert all(math.isfinite(figure) and figure > 0 for figure in figures)
    assert lift["speedup"] == lift["stock_ms"] / lift["ours_ms"]
    assert lift["limit_fraction"] == lift["physics_ms"] / lift["ours_ms"]
    assert {"asked_ms", "reset_stock_ms", "reset_ours_ms"} <= set(lift)


@pytest.mark.full
def test_table_is_printed_before_the_json(output: list[str]) -> None:
    text = "\n".join(output[:-1])
    for words in ("cores; robot-rl", "ms/step", "stock/ours", "Lift", "equal", "2 threads"):
        assert words in text
    assert not any(line.startswith("{") for line in output[:-1])


@pytest.mark.full
def test_task_with_two_arms_is_measured_without_images() -> None:
    speed = measure_task("TwoArmPegInHole", 0.1, 0, images=False)
    assert speed.equal
    assert all(getattr(speed, name) is None for name in IMAGES)


def test_thread_counts_double_up_to_the_number_of_cores() -> None:
    assert [thread_counts(cores) for cores in (1, 2, 7, 8)] == [[1, 2], [1, 2], [1, 2, 4], [1, 2, 4, 8]]


def test_candidates_take_turns() -> None:
    calls: list[str] = []
    found = take_turns(
        {"a": lambda: calls.append("a"), "b": lambda: calls.append("b")},
        0.0,
        before={"b": lambda: calls.append("-")},
        block=2,
        least=2,
    )
    assert "".join(calls) == "aa-bb" * 2
    assert set(found) == {"a", "b"}


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """Replaces the measurements and records their arguments."""
    asked: dict[str, Any] = {"speed": SPEED, "images": None}

    def measure(task: str, seconds: float, seed: int, *, images: bool) -> TaskSpeed:
        print("robosuite says something")
        asked[task], asked["images"] = seconds, images
        return asked["speed"]

    monkeypatch.setattr(bench_sim, "measure_task", measure)
    monkeypatch.setattr(bench_sim, "measure_threads", lambda counts, seconds, seed: {1: 100.0, 2: 190.0})
    monkeypatch.setattr(bench_sim, "try_backend", lambda backend: Trial(backend, None))
    monkeypatch.setattr(bench_sim, "describe_machine", lambda: MACHINE)
    return asked


@pytest.mark.parametrize(
    "arguments",
    [
        ["--tasks", "Lift,Door", "--seconds", "3", "--json"],
        ["--json", "--tasks=Lift,Door", "seconds=3"],
        ["tasks=[Lift,Door]", "seconds=3", "json=true"],
    ],
)
def test_options_reach_the_measurement(
    quick: dict, capsys: pytest.CaptureFixture[str], arguments: list[str]
) -> None:
    assert cli.main(["bench", "sim", *arguments]) == 0
    assert (quick["Lift"], quick["Door"], quick["images"]) == (3, 3, True)
    out = capsys.readouterr().out
    assert set(json.loads(out.splitlines()[-1])["tasks"]) == {"Lift", "Door"}
    assert "robosuite says" not in out


def test_without_json_only_the_table_is_printed(quick: dict, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["bench", "sim"]) == 0
    out = capsys.readouterr().out
    assert "{" not in out
    row = next(line for line in out.splitlines() if line.startswith("TwoArmTransport"))
    for figure in (
        "8.00",
        "2.00",
        "1.60",
        "1.20",
        "4.00×",
        "60 %",
        "180 → 6.0",
        "9.5 → 3.2",
        "29.0 → 9.5 → 3.5",
        "equal",
    ):
        assert figure in row
    assert "1 thread 100/s, 2 threads 190/s (×1.90)" in out
    assert "busy" not in out


def test_warning_on_a_busy_machine(quick: dict, capsys: pytest.CaptureFixture[str]) -> None:
    quick["speed"] = replace(SPEED, processor_share=0.6)
    assert cli.main(["bench", "sim"]) == 0
    assert "busy: at worst this process had 60 % of a processor" in capsys.readouterr().out


def test_without_rendering_images_are_not_measured(
    quick: dict, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(bench_sim, "try_backend", lambda backend: Trial(backend, "the frame is black"))
    quick["speed"] = replace(SPEED, **dict.fromkeys(IMAGES))
    assert cli.main(["bench", "sim", "--tasks", "Lift", "--json"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert quick["images"] is False
    assert lines[-2] == "no images: the frame is black; see robot-rl doctor"
    assert json.loads(lines[-1])["tasks"]["Lift"]["render_stock_ms"] is None


def test_different_states_fail_the_benchmark(quick: dict, capsys: pytest.CaptureFixture[str]) -> None:
    quick["speed"] = replace(SPEED, equal=False, max_deviation=np.float64(1e-9).item())
    with pytest.raises(SystemExit) as exit_:
        cli.main(["bench", "sim", "--tasks", "Lift", "--json"])
    assert exit_.value.code == 1
    written = capsys.readouterr()
    assert "differ by 1e-09" in written.out
    assert json.loads(written.out.splitlines()[-1])["tasks"]["Lift"]["equal"] is False
    assert "states of ours and stock differ in Lift" in written.err


@pytest.mark.parametrize(
    ("arguments", "answer"),
    [
        (["--tasks", "Lift,Dor"], "tasks=Dor: did you mean Door? robosuite has Door, "),
        (["--tasks", "lift"], "did you mean Lift?"),
        (["--tasks="], "name at least one"),
        (["--tasks", "--json"], "--tasks: the value is missing; write tasks=…"),
        (["--seconds", "0"], "seconds=0: it must be more than 0"),
        (["--seconds", "long"], "seconds=long: the value must be float"),
        (["--second", "3"], "unknown key second; did you mean seconds=3?"),
    ],
)
def test_invalid_options_are_refused(
    capsys: pytest.CaptureFixture[str], arguments: list[str], answer: str
) -> None:
    assert cli.main(["bench", "sim", *arguments]) == 2
    written = capsys.readouterr()
    assert written.out == ""
    assert answer in written.err
    assert written.err.count("\n") == 1
