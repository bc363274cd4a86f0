"""Protocols are read as they are written, and wrong ones are refused."""

from dataclasses import replace
from pathlib import Path

import pytest

from robot_rl.bench.methods.protocol import read_protocols
from robot_rl.errors import UserError
from tests.robot_rl.bench.methods.protocols import BC, PROTOCOL, WITH_BC, YAML, protocol_file

TESTING = ("save_every", "test_episodes", "curve_episodes")


def test_protocol_file_is_read(tmp_path: Path) -> None:
    folder = tmp_path / "protocol"
    assert read_protocols(protocol_file(folder)) == read_protocols(folder) == [PROTOCOL]


def test_ablation_of_bc_baseline_appends_its_options_to_those_of_its_parent(
    tmp_path: Path,
) -> None:
    (protocol,) = read_protocols(protocol_file(tmp_path, WITH_BC))
    *others, bc, exact = protocol.entries
    assert tuple(others) == PROTOCOL.entries
    assert bc == BC
    assert exact.options == ("method=bc", "method.steps=5", "method.lr=1")
    assert exact.collect == ("episodes=9", "noise=0.1", "noise=0")


def test_terms_of_bc_baseline_contain_its_demonstrations_but_not_the_rl_budget() -> None:
    terms = PROTOCOL.terms(BC)
    assert terms["demonstrations"] == ["episodes=9", "noise=0.1"]
    assert terms == replace(PROTOCOL, steps=400).terms(BC)
    assert set(PROTOCOL.terms(PROTOCOL.entries[0])) == {
        *("collect", "base", "eval_episodes", "steps", "eval_every", "options"),
    }


def test_terms_on_test_states_contain_save_interval_and_curve_episodes_but_not_eval_every() -> None:
    tested = replace(PROTOCOL, split="test")
    assert set(tested.terms(PROTOCOL.entries[0])) == {
        *("collect", "base", "test_episodes", "steps", "save_every", "curve_episodes", "options"),
    }
    assert tested.terms(PROTOCOL.entries[0]) == replace(tested, eval_every=200).terms(PROTOCOL.entries[0])


def test_protocol_defaults_for_test_states(tmp_path: Path) -> None:
    text = "\n".join(line for line in YAML.split("\n") if line.partition(":")[0] not in TESTING)
    (protocol,) = read_protocols(protocol_file(tmp_path, text), "test")
    assert (protocol.save_every, protocol.test_episodes, protocol.curve_episodes) == (100, 500, 500)


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("eval_every: 100", "eval_every: 150", "eval_every must be a divisor of steps"),
        ("save_every: 50", "save_every: 150", "save_every must be a divisor of steps"),
        ("save_every: 50", "save_every: 0", "save_every is 0"),
        ("test_episodes: 30", "test_episods: 30", "unknown key test_episods; did you mean test_episodes"),
        ("steps: 200", "steps: many", "steps is 'many'"),
        ("steps: 200", "step: 200", "unknown key step; did you mean steps"),
        ("collect: episodes=3\n", "", "collect is missing"),
        ("good-less", "bad-less", "ablation of bad, which must be an earlier entry"),
        ("method.utd=1", "seed=3", "seed is set by the protocol"),
        ("method.utd=1", "method.utd", "method.utd is not key=value"),
        ("[0, 1]", "[0, 0]", "a seed is repeated"),
        ("[0, 1]", "3", r"seeds must be a list such as \[0, 1, 2\]"),
        ("method=rlpd", "method=bc", "method=bc needs collect"),
        ("{options: method=rlpd", "{collect: , options: method=rlpd", "other methods must not have it"),
        ("{options: method=rlpd", "{collect: seed=1, options: method=bc", "seed is set by the protocol"),
        ("{options: method=rlpd", "{colect: , options: method=bc", "unknown key colect; did you mean col"),
        ("priority: 2", "priority: soon", "priority must be a whole number"),
        ("  good:", "  a/b:", "a name has letters"),
        ("entries:", "entries: [", "is not YAML"),
        ("  other:", "  good:", "'good' is given twice"),
        ("eval_episodes: 20", "eval_episodes: 101", "eval_episodes is 101; it must be at most 100"),
        ("test_episodes: 30", "test_episodes: 501", "test_episodes is 501; it must be at most 500"),
        ("curve_episodes: 10", "curve_episodes: 31", "curve_episodes is 31; it must be at most 30"),
    ],
)
def test_invalid_protocol_is_refused(tmp_path: Path, old: str, new: str, message: str) -> None:
    with pytest.raises(UserError, match=message):
        read_protocols(protocol_file(tmp_path, YAML.replace(old, new)))


def test_missing_protocol_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="there is no protocol"):
        read_protocols(tmp_path)
