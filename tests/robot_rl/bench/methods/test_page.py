"""The tables and plots that are made of result files."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from robot_rl.bench.methods.page import BEGIN, END
from robot_rl.bench.methods.protocol import read_protocols
from robot_rl.bench.methods.queue import PlannedRun
from robot_rl.bench.methods.result_writer import COLUMNS
from robot_rl.bench.methods.results import read_result, read_rows
from robot_rl.cli import main as cli
from tests.robot_rl.bench.methods.protocols import (
    BC,
    PROTOCOL,
    WITH_BC,
    bench,
    protocol_file,
    write_result_files,
)


def table(workspace: Path) -> int:
    return cli.main(
        [
            *("bench", "table", f"protocols=[{workspace / 'protocol'}]", f"results={workspace / 'results'}"),
            *(f"out={workspace / 'page.md'}", f"plots={workspace / 'plots'}"),
        ]
    )


def test_table_of_results(workspace: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Two runs of 0.9 and 1.0 have an IQM of 0.95, and resampled IQMs from 0.9 to 1.0."""
    assert table(workspace) == 0
    page = (workspace / "page.md").read_text()
    assert "page.md: 3 of 4 runs have results" in capsys.readouterr().out
    good = (
        "| `good` | 321 | 0.50 | **0.950** [0.900, 1.000] | 0.90, 1.00 | 100, 200 | –, 200 "
        "| -0.20 at 120 (-0.15) | 1.5 min | 2 |"
    )
    assert page.count(good) == 2  # again above its ablations
    assert "| `good-less` | 321 | 0.55 | failed | failed | – | – | – | – | 0 of 1, 1 failed |" in page
    assert "| `other` |  |  | not run |  |  |  |  |  | 0 of 1 |" in page
    assert "Trained on: a card; a processor." in page
    assert "The runs have 2 different bases" in page
    assert "`good-less_s0` failed: loss became NaN.\n" in page
    assert "/somewhere" not in page
    assert "![Success, Lift](plots/protocol/lift.png)" in page
    assert [path.name for path in (workspace / "plots" / "protocol").iterdir()] == ["lift.png"]


@pytest.mark.usefixtures("undrawn")
def test_demonstration_steps_of_another_machine_are_marked_as_approximate(workspace: Path) -> None:
    (protocol,) = read_protocols(workspace / "protocol")
    write_result_files(
        workspace / "results",
        PlannedRun(protocol, protocol.entries[2], 0),
        [0.5, 0.5],
        config={"data_sha256": "b"},
    )
    assert table(workspace) == 0
    assert "| `other` | ≈ 321 | 0.50 |" in (workspace / "page.md").read_text()


@pytest.mark.usefixtures("undrawn")
def test_results_on_test_states_have_separate_tables(
    workspace: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (protocol,) = read_protocols(workspace / "protocol", "test")
    success = [0.6, 0.85, 0.92, 0.88]
    write_result_files(
        workspace / "results",
        PlannedRun(protocol, protocol.entries[0], 1),
        success,
        every=protocol.save_every,
    )
    assert table(workspace) == 0
    assert "page.md: 1 of 2 runs have results on test states" in capsys.readouterr().out
    page = (workspace / "page.md").read_text()
    tested = page[page.index("## Lift, test states") : page.index("## Lift, validation states")]
    assert "200 environment steps, evaluated on 30 test states; policies saved every 50 steps on" in tested
    assert (
        "| `good` | 321 | 0.50 | **0.880** | 0.88 | 150 | – | -0.20 at 120 (-0.15) | 1.0 min | 1 of 2 |"
        in tested
    )
    assert "other" not in tested
    assert "![Success, Lift](plots/protocol/test/lift.png)" in tested
    assert "| `good` | 321 | 0.50 | **0.950**" in page[page.index("## Lift, validation states") :]


@pytest.mark.usefixtures("undrawn")
def test_a_variant_measured_on_test_states_without_its_entry_is_in_the_table(workspace: Path) -> None:
    (protocol,) = read_protocols(workspace / "protocol", "test")
    run = PlannedRun(protocol, protocol.entries[1], 0)
    write_result_files(workspace / "results", run, [0.6, 0.7, 0.8, 0.9], every=protocol.save_every)
    assert table(workspace) == 0
    page = (workspace / "page.md").read_text()
    tested = page[page.index("## Lift, test states") : page.index("## Lift, validation states")]
    assert "| `good-less` | 321 | 0.50 | **0.900** |" in tested
    assert "![Success, Lift](plots/protocol/test/lift.png)" in tested
    assert "Variants" not in tested


@pytest.mark.usefixtures("undrawn")
def test_ablations_on_test_states_are_compared_by_when_their_success_stays(workspace: Path) -> None:
    (protocol,) = read_protocols(workspace / "protocol", "test")
    for entry, success in ((0, [0.95, 0.8, 0.9, 0.9]), (1, [0.9, 0.92, 0.95, 0.7])):
        planned = PlannedRun(protocol, protocol.entries[entry], 0)
        write_result_files(workspace / "results", planned, success, every=protocol.save_every)
    assert table(workspace) == 0
    page = (workspace / "page.md").read_text()
    assert "| entry | steps | steps of `good` | ratio of the means |" in page
    assert "| `good-less` | 50 | > 200 | **0.250** |" in page
    # A run that failed counts with its whole budget.
    edit(
        workspace / "results" / "protocol" / "test" / "lift" / "good-less_s0.json",
        status="failed",
        reason="diverged",
    )
    assert table(workspace) == 0
    assert "| `good-less` | > 200 | > 200 | **1.000** |" in (workspace / "page.md").read_text()
    assert page.index("ratio of the means") < page.index("## Lift, validation states")


def test_same_results_give_the_same_bytes(workspace: Path) -> None:
    table(workspace)
    files = [workspace / "page.md", workspace / "plots" / "protocol" / "lift.png"]
    before = [path.read_bytes() for path in files]
    table(workspace)
    assert [path.read_bytes() for path in files] == before


@pytest.mark.usefixtures("undrawn")
def test_only_text_between_the_markers_is_replaced(
    workspace: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    page = workspace / "page.md"
    page.write_text(f"before\n{BEGIN}\nold table\n{END}\nafter\n")
    assert table(workspace) == 0
    text = page.read_text()
    assert text.startswith(f"before\n{BEGIN}\n")
    assert text.endswith(f"{END}\nafter\n")
    assert "old table" not in text
    page.write_text("no markers\n")
    assert table(workspace) == 2
    assert "between which the table is written" in capsys.readouterr().err
    assert page.read_text() == "no markers\n"


@pytest.mark.usefixtures("undrawn")
def test_table_over_all_tasks_has_the_iqm_over_all_runs(workspace: Path) -> None:
    """0.9 and 1.0 on one task, 0.0 and 0.1 on another: the mean of the middle two of four."""
    can = replace(PROTOCOL, task="can")
    protocol_file(workspace / "protocol", task="can")
    for seed, success in enumerate((0.0, 0.1)):
        write_result_files(workspace / "results", PlannedRun(can, can.entries[0], seed), [success] * 2)
    assert table(workspace) == 0
    page = (workspace / "page.md").read_text()
    assert (
        "| `good` | **0.500** [0.450, 0.550] |"
        in page[page.index("## All tasks of `protocol`, validation states") :]
    )
    assert "`other`" not in page[page.index("## All tasks of `protocol`, validation states") :]


def test_bc_baseline_is_shown_at_the_steps_of_its_demonstrations(workspace: Path) -> None:
    protocol_file(workspace / "protocol", WITH_BC)
    table(workspace)
    page, plot = (
        (workspace / "page.md").read_text(),
        (workspace / "plots" / "protocol" / "lift.png").read_bytes(),
    )
    assert "| `bc` |  |  | not run |" in page
    assert "Behaviour cloning" not in page
    (protocol,) = read_protocols(workspace / "protocol")
    nothing: dict[str, Any] = {"training": {"lowest": None}}
    for seed, (success, steps) in enumerate(((0.92, 1200), (1.0, 1300))):
        write_result_files(
            workspace / "results", PlannedRun(protocol, BC, seed), [success], every=steps, **nothing
        )
    assert table(workspace) == 0
    page = (workspace / "page.md").read_text()
    row = "| 0.92, 1.00 | 1.2k, 1.3k | –, 1.3k | – | 1.0 min | 2 |"
    assert f"| `bc` | 321 | 0.50 | **0.960** [0.920, 1.000] {row}" in page
    assert "demonstrations: `bc` (episodes=9 noise=0.1: 1.2k, 1.3k steps). Steps are those of the" in page
    bc = next(row for row in read_rows(protocol, workspace / "results") if row.entry == BC)
    assert bc.curve()[0].tolist() == [1250]
    assert (workspace / "plots" / "protocol" / "lift.png").read_bytes() != plot


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda path: path.write_text("{"), "is damaged"),
        (lambda path: path.write_text("[]"), "is damaged"),
        (lambda path: path.with_suffix(".csv").unlink(), "is damaged"),
        (lambda path: path.with_suffix(".csv").write_text("step\n1\n"), "does not have the columns"),
        (lambda path: path.with_suffix(".csv").write_text(",".join(COLUMNS) + "\n"), "is damaged"),
        (lambda path: edit(path, final={"success": 0.1}), "final success differs"),
        (lambda path: edit(path, format=2), "has format 2"),
        (lambda path: edit(path, protocol={}), "belongs to another protocol"),
        (lambda path: edit(path, machine=None), "is damaged"),
        (lambda path: edit(path, split="test"), "was evaluated on test states"),
    ],
)
def test_damaged_result_is_refused_in_one_line(
    workspace: Path, capsys: pytest.CaptureFixture[str], change: Any, message: str
) -> None:
    path = workspace / "results" / "protocol" / "validation" / "lift" / "good_s0.json"
    change(path)
    assert table(workspace) == 2
    error = capsys.readouterr().err
    assert error.count("\n") == 1
    assert message in error
    assert str(path) in error
    assert "remove it to run it again" in error
    assert bench(workspace) == 2  # it is neither run again nor skipped
    assert not (workspace / "page.md").exists()


def edit(path: Path, **changes: Any) -> None:
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))


def test_result_is_read_as_it_was_written(workspace: Path) -> None:
    result = read_result(PlannedRun(PROTOCOL, PROTOCOL.entries[0], 1), workspace / "results")
    assert result is not None
    assert (result.final, result.first_at(0.7), result.first_at(1.1)) == (1.0, 100, None)
    assert [point.wall_seconds for point in result.curve] == [30, 60]
    assert result.hardware == "a card"
