"""The section `latency` of a robot's file is replaced, and nothing else is."""

import datetime
from pathlib import Path

import pytest

from robot_rl.hardware.robot_file import load_robot, merged_latencies, with_latency
from robot_rl.hardware.spec import Delay, Latency

CONFIGS = sorted((Path(__file__).resolve().parents[2] / "configs" / "robot").glob("*.yaml"))
TODAY = datetime.date(2026, 11, 21)


def delay(ms: float, correlation: float | None = 0.9912) -> Delay:
    return Delay(ms=ms, spread_ms=1.5, correlation=correlation, measured=TODAY)


FULL = Latency(
    action=delay(64.2),
    state=delay(0.8, None),
    cameras={"front": delay(-3.0), "on": delay(12.5), "7": delay(1)},
)


@pytest.mark.parametrize("path", CONFIGS, ids=lambda path: path.stem)
def test_what_is_written_is_what_is_read(path: Path, tmp_path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    edited = with_latency(text, FULL)
    assert edited.startswith(text)
    copy = tmp_path / path.name
    copy.write_text(edited, encoding="utf-8")
    assert load_robot(copy).latency == FULL
    assert load_robot(copy).spec.sha256 == load_robot(path).spec.sha256
    assert load_robot(path).latency == Latency()


@pytest.mark.parametrize("after", ["", "\n# A comment about what follows.\nnote: 1 # kept\n", "note: 1\n"])
def test_all_else_stays_as_it_was(after: str) -> None:
    before = "# What it is.\nname: it # its name\n\n"
    text = with_latency(before, FULL) + after
    for latency in (Latency(action=delay(1.0)), FULL, Latency()):
        edited = with_latency(text, latency)
        assert edited.startswith(before)
        assert edited.endswith(after)
        assert with_latency(edited, FULL) == text
    assert with_latency(text, FULL) == text


@pytest.mark.parametrize(
    ("section", "says"),
    [
        ("latency:\n  # of the lab in room 3\n  action: {ms: 1}\n", "comments"),
        ("latency: # of room 3\n  action: {ms: 1}\n", "comments"),
        ("{name: it, latency: {}}", "cannot be replaced without"),
        ("? latency\n: {}\n", "cannot be replaced without"),
        ("name: |\n  a\nlatency: {action:\n{ms: 1}}\n", "cannot be replaced without"),
    ],
)
def test_what_cannot_be_replaced_alone_is_refused(section: str, says: str) -> None:
    with pytest.raises(ValueError, match=says):
        with_latency(section, FULL)


def test_what_was_not_measured_anew_stays_known() -> None:
    new = Latency(action=delay(70), cameras={"on": delay(1.0)})
    both = merged_latencies(FULL, new)
    assert both.action == new.action
    assert both.state == FULL.state
    assert both.cameras == {**FULL.cameras, "on": delay(1.0)}


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ("action: {ms: 1}", "spread_ms"),
        ("action: {ms: .nan, spread_ms: 1, measured: 2026-11-21}", ">= -1000"),
        ("action: {ms: 9999, spread_ms: 1, measured: 2026-11-21}", "<= 1000"),
        ("action: {ms: 1, spread_ms: 1, measured: soon}", "date"),
        ("actions: {}", "did you mean action"),
    ],
)
def test_a_latency_that_cannot_be_is_refused(line: str, says: str, tmp_path: Path) -> None:
    path = tmp_path / "robot.yaml"
    path.write_text(CONFIGS[0].read_text(encoding="utf-8") + f"\nlatency:\n  {line}\n", encoding="utf-8")
    with pytest.raises(ValueError, match=says):
        load_robot(path)
