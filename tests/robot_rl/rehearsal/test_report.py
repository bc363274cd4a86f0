"""The report counts what the simulation knows, and what was lost."""

import json
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from robot_rl.envs.surroundings import TruthChange
from robot_rl.hardware.protocol.large_messages import encode
from robot_rl.hil.link.messages import End
from robot_rl.hil.link.outbox import Spool
from robot_rl.rehearsal.event_log import EventLog
from robot_rl.rehearsal.report import Judged, lost_episodes, make_report, succeeded, write_report

CHANGES = [
    TruthChange("a", 0, False),
    TruthChange("a", 20, True),
    TruthChange("a", 30, False),
    TruthChange("b", 5, True),
]


@pytest.mark.parametrize(
    ("session", "begin", "end", "success"),
    [
        ("a", 1, 19, False),
        ("a", 1, 20, True),
        ("a", 25, 40, True),
        ("a", 31, 99, False),
        ("b", 6, 7, True),
    ],
)
def test_an_episode_succeeds_if_the_task_was_done_at_any_time_of_it(
    session: str, begin: int, end: int, success: bool
) -> None:
    assert succeeded(CHANGES, session, begin, end) is success


@pytest.mark.parametrize(("session", "begin"), [("c", 1), ("b", 4)])
def test_an_unknown_truth_is_an_error_and_no_failure(session: str, begin: int) -> None:
    with pytest.raises(ValueError, match="not known"):
        succeeded(CHANGES, session, begin, 100)


def test_the_verdicts_of_the_classifier_stand_beside_the_truth() -> None:
    figures = Judged([True, True, False, False], [True, False, True, False]).figures()
    assert figures["success"] == 0.5
    assert figures["interval"][0] < 0.5 < figures["interval"][1]
    assert figures["classifier"] == {"success": 0.5, "false_alarms": 1, "missed": 1}


def day(home: Path, learned: int) -> EventLog:
    """Three training episodes seen by the person, and as many as `learned` in the run."""
    events = EventLog(home / "events.jsonl")
    for number, outcome in enumerate(("success", "failure", "interrupted", "success")):
        events.write("episode", number=number, outcome=outcome, duty="intervene")
    run = home / "tuned"
    run.mkdir()
    rows = "".join(
        f"{step},1.0,train/success,1\n{step},1.0,hil/intervention_rate,0\n" for step in range(learned)
    )
    (run / "metrics.csv").write_text("step,seconds,name,value\n" + rows)
    (run / "run.json").write_text(json.dumps({"env_steps": 2400, "finished": True}))
    (run / "interventions.jsonl").write_text("{}\n{}\n{}\n")
    return events


@pytest.mark.parametrize(("learned", "lost"), [(3, 0), (1, 2)])
def test_an_episode_that_the_learner_never_got_is_lost(tmp_path: Path, learned: int, lost: int) -> None:
    events = day(tmp_path, learned)
    assert lost_episodes(tmp_path, events) == {"demonstrate": 0, "intervene": lost, "watch": 0}


def test_an_episode_that_waits_for_the_learner_is_not_lost(tmp_path: Path) -> None:
    events = day(tmp_path, 2)
    spool = Spool(tmp_path / "tuned" / "spool")
    end = End(episode=7, index=0, fields={}, success=True, interrupted="", interventions=0)
    spool.put(7, [encode(end)])
    spool.put(8, [encode(replace(end, episode=8, interrupted="the run pauses"))])
    assert lost_episodes(tmp_path, events)["intervene"] == 0


def test_a_policy_is_reliable_after_18_of_20_episodes_without_help(tmp_path: Path) -> None:
    events = day(tmp_path, 0)
    lines = ["step,seconds,name,value"]
    for episode in range(40):
        # Ten are failures, and in the next two a person helped.
        success, rate = float(episode >= 10), 0.5 * (10 <= episode < 12)
        lines += [f"{episode * 120},1.0,train/success,{success}"]
        lines += [f"{episode * 120},1.0,hil/intervention_rate,{rate}"]
    (tmp_path / "tuned" / "metrics.csv").write_text("\n".join(lines) + "\n")
    events.write("command", command="robot-rl train <x>", code=0, seconds=60.0, log="0.log")
    report: dict[str, Any] = make_report(tmp_path, control_freq=20)
    # Episodes 10 to 29 are the first with 18 of 20.
    assert report["minutes_to_reliable"] == 29 * 120 / 20 / 60
    assert report["minutes_to_reliable_with_imagination"] is None
    assert report["robot_minutes"] == 2.0
    assert report["interventions_per_minute"] == 1.5
    assert report["robot_minutes_with_imagination"] is None
    assert report["base"]["success"] is None
    write_report(tmp_path, report)
    assert json.loads((tmp_path / "report.json").read_text()) == report
    assert "robot-rl train &lt;x&gt;" in (tmp_path / "report.html").read_text()


def test_an_event_log_whose_last_line_was_cut_is_read(tmp_path: Path) -> None:
    events = EventLog(tmp_path / "events.jsonl")
    events.write("killed", name="server")
    with (tmp_path / "events.jsonl").open("a") as file:
        file.write('{"what": "kil')
    assert [line["name"] for line in events.lines("killed")] == ["server"]
    EventLog(tmp_path / "events.jsonl").write("killed", name="camera")
    assert [line["name"] for line in events.lines("killed")] == ["server", "camera"]
