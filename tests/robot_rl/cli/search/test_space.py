"""The ranges of a search, in Hydra's grammar."""

import pytest

from robot_rl.cli.search.space import Interval, Values, corners, read_space, trial_name
from robot_rl.errors import UserError


@pytest.mark.parametrize(
    ("text", "meant"),
    [
        ("tag(log,interval(1e-5,1e-3))", Interval(1e-5, 1e-3, log=True, whole=False)),
        ("interval(0,1)", Interval(0.0, 1.0, log=False, whole=False)),
        ("int(interval(1,8))", Interval(1, 8, log=False, whole=True)),
        ("tag(log,int(interval(1,8)))", Interval(1, 8, log=True, whole=True)),
        ("choice(1,2,4)", Values(("1", "2", "4"), ordered=False)),
        ("expo,'a b'", Values(("expo", "'a b'"), ordered=False)),
        ("[1,2],[3]", Values(("[1,2]", "[3]"), ordered=False)),
        ("range(4,17,4)", Values(("4", "8", "12", "16"), ordered=True)),
        ("range(0.5,2,0.5)", Values(("0.5", "1.0", "1.5"), ordered=True)),
    ],
)
def test_ranges_are_read_as_hydra_does(text: str, meant: Interval | Values) -> None:
    assert read_space({"a": text, "b": "3", "c": "[1,2]", "d": "~/dätä"}) == {"a": meant}


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("interval(1,1)", "a=interval(1,1): the interval is empty"),
        ("interval(2,1)", "the interval is empty; give the smaller end first"),
        ("tag(log,interval(0,1))", "begins above 0"),
        ("tag(lag,interval(1,2))", "the only tag is log"),
        ("tag(log,choice(1,2))", "only an interval has tags"),
        ("range(4,4)", "the range is empty"),
        ("interval(1,", "cannot read the values"),
    ],
)
def test_a_range_that_means_nothing_is_refused(text: str, said: str) -> None:
    with pytest.raises(UserError) as error:
        read_space({"a": text})
    assert said in str(error.value)


def test_corners_have_every_end_and_every_choice() -> None:
    space = read_space({"lr": "interval(0,1)", "utd": "choice(1,2,4)", "n": "range(1,100)"})
    tried = corners(space)
    assert {corner["lr"] for corner in tried} == {"0.0", "1.0"}
    assert {corner["utd"] for corner in tried} == {"1", "2", "4"}
    assert {corner["n"] for corner in tried} == {"1", "99"}
    assert {"lr": "1.0", "utd": "4", "n": "99"} in tried


def test_a_trial_is_named_after_its_number_and_values() -> None:
    values = {"method.actor_lr": "0.00031622776601683794", "method.utd": "2", "base": "'runs/a b'"}
    assert trial_name(7, values) == "007_actor_lr0.000316_utd2_baseruns-a-b"
