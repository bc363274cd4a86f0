"""A day of minutes with everything that a long one has. It has to end, and to lose nothing."""

import json
import shlex
import subprocess
from collections.abc import Iterable
from itertools import groupby
from pathlib import Path

import pytest

from robot_rl.hardware.child_process import child_environment, command_line
from tests.hardware.processes import ROOT
from tests.test_tutorials import blocks, name_of

SMALL = (
    "clean=false",
    "demonstrations=4",
    "trials=1",
    "episodes=2",
    "horizon=30",
    'task=["task=lift_image","task.image_size=[32,32]","task.control_freq=5","task.horizon=30"]',
    'robot=["lease_ms=1000"]',
    'derive=["max_age_ms=60000"]',
    'base=["base=diffusion","base.width=32","base.inference_steps=2","method.steps=40","method.batch_size=32"]',
    'classifier=["method.steps=30","method.batch_size=16","method.success_steps=10","method.held_out=0.5"]',
    'rl=["method=residual_chunk","method.encoder=base","method.steps=200","method.warmup_steps=40",'
    '"checkpoint_every=40","method.batch_size=32","device=cpu"]',
)


def commands(lines: Iterable[str]) -> list[tuple[str, set[str]]]:
    """Names of successive commands, and their options; a command that was typed again counts once."""
    words = [shlex.split(line)[1:] for line in lines]
    named = [(name_of(each), {word.partition("=")[0] for word in each if "=" in word}) for each in words]
    return [(name, set.union(*(keys for _, keys in same))) for name, same in groupby(named, lambda x: x[0])]


@pytest.mark.full
def test_a_day_survives_three_kills_and_loses_no_episode(tmp_path: Path) -> None:
    command = command_line(["rehearse", f"runs_dir={tmp_path}", "name=day", *SMALL])
    first = subprocess.run(command, cwd=ROOT, env=child_environment(), capture_output=True, text=True)
    assert first.returncode == 0, first.stdout + first.stderr
    home = tmp_path / "day"
    report = json.loads((home / "report.json").read_text())
    assert sorted(report["killed"]) == ["camera", "learner", "server"]
    assert report["lost_episodes"] == 0, report["lost"]
    assert report["robot_minutes"] == 200 / 5 / 60
    assert report["robot_minutes_with_imagination"] == 200 / 5 / 60
    for policy in ("base", "tuned"):
        figures = report[policy]
        assert figures["episodes"] == 2
        assert figures["interval"][0] <= figures["success"] <= figures["interval"][1]
    events = map(json.loads, (home / "events.jsonl").read_text().splitlines())
    typed = commands(line["command"] for line in events if line["what"] == "command")
    told = commands(
        line for _, info, body in blocks("robot_day") if info == "robot" for line in body.splitlines()
    )
    assert [name for name, _ in told] == [name for name, _ in typed]
    assert [keys - also for (_, keys), (_, also) in zip(told, typed, strict=True)] == [set()] * len(told)
    page = (home / "report.html").read_text()
    assert "deployed/tuned_00.html" in page
    assert (home / "deployed" / "tuned_00.html").is_file()

    again = subprocess.run(command, cwd=ROOT, env=child_environment(), capture_output=True, text=True)
    assert again.returncode == 0, again.stdout + again.stderr
    assert "$ robot-rl" not in again.stdout
    assert json.loads((home / "report.json").read_text()) == report
