"""Which runs of a benchmark are made, and in which order."""

from dataclasses import replace

import pytest

from robot_rl.bench.methods.queue import run_queue, select_runs
from robot_rl.errors import UserError
from tests.robot_rl.bench.methods.protocols import PROTOCOL


def test_queue_is_sorted_by_priority_then_seed_then_budget() -> None:
    longer = replace(PROTOCOL, task="can", steps=400)
    assert [run.label for run in run_queue([longer, PROTOCOL])] == [
        *("lift/good_s0", "lift/other_s0", "can/good_s0", "can/other_s0"),
        *("lift/good_s1", "can/good_s1", "lift/good-less_s0", "can/good-less_s0"),
    ]


def test_runs_are_selected_by_task_entry_and_seed() -> None:
    runs = run_queue([PROTOCOL])
    assert [run.name for run in select_runs(runs, [], ["good*"], [0])] == ["good_s0", "good-less_s0"]
    assert select_runs(runs, ["lift"], [], []) == runs
    with pytest.raises(UserError, match="only=bad: the protocols have no such run; they have good, good-l"):
        select_runs(runs, [], ["bad"], [])
    with pytest.raises(UserError, match=r"tasks=li\*: the protocols have no such run"):
        select_runs(runs, ["li*"], [], [])
