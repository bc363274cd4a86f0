"""The values of trials, and which of them are stopped."""

from pathlib import Path

import pytest

from robot_rl.cli.search.advisor import Advisor, Rungs
from robot_rl.cli.search.record import Began, Ended, Evaluated, Record
from robot_rl.cli.search.space import read_space

pytest.importorskip("optuna", reason="the extra `ray` is not installed")

SPACE = read_space(
    {
        "lr": "tag(log,interval(1e-5,1e-3))",
        "size": "int(interval(1,8))",
        "n": "range(4,17,4)",
        "method": "choice(expo,'a b')",
    }
)
RUNGS = Rungs(min_steps=100, reduction=3, steps=1000)


def test_values_are_in_their_ranges_and_follow_from_the_seed(tmp_path: Path) -> None:
    def values(seed: int) -> list[dict[str, str]]:
        advisor = Advisor(SPACE, RUNGS, seed, Record(tmp_path / "none"))
        return [advisor.suggest(number) for number in range(1, 13)]

    found = values(0)
    assert all(1e-5 <= float(one["lr"]) <= 1e-3 for one in found)
    assert {one["size"] for one in found} <= set("12345678")
    assert {one["n"] for one in found} <= {"4", "8", "12", "16"}
    assert {one["method"] for one in found} == {"expo", r"a\ b"}
    assert values(0) == found
    assert values(1) != found


def test_a_trial_that_is_worse_than_the_best_third_is_stopped(tmp_path: Path) -> None:
    advisor = Advisor(SPACE, RUNGS, 0, Record(tmp_path / "none"))
    for number in (1, 2, 3):
        advisor.suggest(number)
    assert not advisor.stops(1, 100, 0.5)
    assert not advisor.stops(2, 50, 0.0), "before min_steps"
    assert advisor.stops(2, 100, 0.4)
    assert not advisor.stops(3, 100, 0.5), "as good as the best"
    assert not advisor.stops(1, 300, 0.9)
    assert not advisor.stops(3, 200, 0.0), "between two rungs"
    assert advisor.stops(3, 300, 0.8)
    assert not advisor.stops(1, 1000, 0.0), "its last step"


def test_a_search_that_goes_on_knows_what_has_happened(tmp_path: Path) -> None:
    record = Record(tmp_path / "trials.jsonl")
    advisor = Advisor(SPACE, RUNGS, 0, record)
    for number, success in ((1, 0.5), (2, 0.1), (3, 0.6)):
        record.add(Began(number, advisor.suggest(number)))
        record.add(Evaluated(number, 100, success))
        assert advisor.stops(number, 100, success) == (number == 2)
        if number < 3:
            record.add(Ended(number, "stopped" if number == 2 else "finished"))
            advisor.end(number, success)
    later = Advisor(SPACE, RUNGS, 0, Record(tmp_path / "trials.jsonl"))
    assert later.suggest(4) == advisor.suggest(4), "as without an interruption"
    assert later.stops(4, 100, 0.52), "the third trial had 0.6"
    later.end(3, 0.6)
    later.end(4, None)
    assert later.suggest(5)["n"] in {"4", "8", "12", "16"}
