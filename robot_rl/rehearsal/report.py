"""The report of a rehearsal: `report.json` and a page, from what the day has left on the disk.

Success is the simulation's own check during the recorded episodes, which no command of the day reads. The
verdict of the classifier, which ended these episodes, stands beside it.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import Any, Final

from robot_rl.data.raw.timeline import Timeline
from robot_rl.envs.surroundings import TruthChange, read_truth
from robot_rl.hardware.recording.raw import RawDataset
from robot_rl.hardware.recording.records import Outcome
from robot_rl.hil.link.messages import End, from_actor
from robot_rl.hil.link.outbox import Spool
from robot_rl.rehearsal.event_log import EventLog
from robot_rl.runs import write_text
from robot_rl.stats import wilson
from robot_rl.training.logger import Series, read_metrics

_FINISHED: Final[tuple[Outcome, ...]] = ("success", "failure")
_SUCCESS = "train/success"
_INTERVENED = "hil/intervention_rate"
"""Metrics that training logs once for each finished episode."""
_WINDOW, _RELIABLE = 20, 18
"""A policy is reliable once it has succeeded in so many of so many successive episodes."""
_UNTIL_RELIABLE: Final = f"… until {_RELIABLE} of {_WINDOW} episodes succeeded without help"
_JUDGED: Final = [
    "policy",
    "success",
    "95 % interval",
    "episodes",
    "by the classifier",
    "false alarms",
    "missed",
]
_LABELS: Final = {
    "judged_seconds": "seconds of a judged episode, at most",
    "robot_minutes": "robot minutes",
    "minutes_to_reliable": _UNTIL_RELIABLE,
    "robot_minutes_with_imagination": "robot minutes with imagination",
    "minutes_to_reliable_with_imagination": _UNTIL_RELIABLE,
    "interventions_per_minute": "interventions per robot minute",
    "lost_episodes": "lost episodes",
    "taken_back": "successes that the operator took back",
    "killed": "killed",
    "clean_environment": "deployed from a new environment",
    "minutes": "minutes of all commands",
}
"""Entries of the report that the page shows as they are."""


@dataclass(frozen=True)
class Judged:
    """Judged episodes of one policy."""

    truth: Sequence[bool]
    """Whether each succeeded by the simulation's own check."""
    verdicts: Sequence[bool]
    """Whether each succeeded by the classifier."""

    def figures(self) -> dict[str, Any]:
        """Entries of the report."""
        count, wins, seen = len(self.truth), sum(self.truth), sum(self.verdicts)
        pairs = list(zip(self.truth, self.verdicts, strict=True))
        return {
            "success": wins / count if count else None,
            "interval": wilson(wins, count) if count else None,
            "episodes": count,
            "classifier": {
                "success": seen / count if count else None,
                "false_alarms": sum(verdict and not truth for truth, verdict in pairs),
                "missed": sum(truth and not verdict for truth, verdict in pairs),
            },
        }


def succeeded(changes: Sequence[TruthChange], session: str, begin: int, end: int) -> bool:
    """Whether the task was done at any time from `begin` to `end` [ns] of a session of the server.

    Raises:
        ValueError: if nothing is known of the session.
    """
    mine = [change for change in changes if change.session == session]
    if not mine or mine[0].t > begin:
        raise ValueError(f"the truth of session {session} is not known at {begin}")
    before = [change.success for change in mine if change.t <= begin]
    return before[-1] or any(change.success for change in mine if begin < change.t <= end)


def judged(home: Path, policy: str) -> Judged:
    """Judged episodes of `base` or `tuned`.

    Raises:
        ValueError: if results and recordings have different episodes.
    """
    changes = read_truth(home / "room")
    truth: list[bool] = []
    verdicts: list[bool] = []
    for path in sorted((home / "deployed").glob(f"{policy}_*.json")):
        results = json.loads(path.read_text())["episodes"]
        numbers = {result["episode"] for result in results}
        recorded = {}
        for raw in RawDataset(path.with_suffix(".raw")).episodes.values():
            # A beginning that the robot refused is a recording without a result, and perhaps without a state.
            if (number := int(raw.header.labels["episode"])) in numbers:
                times = [state.t_sample for state in Timeline(raw).states]
                recorded[number] = succeeded(changes, raw.header.session, times[0], times[-1])
        for result in results:
            if result["episode"] not in recorded:
                raise ValueError(f"{path}: episode {result['episode']} was not recorded")
            truth.append(recorded[result["episode"]])
            verdicts.append(bool(result["success"]))
    return Judged(truth, verdicts)


def lost_episodes(home: Path, events: EventLog) -> dict[str, int]:
    """Number of episodes that the person saw to their end and that are kept nowhere, by stage."""
    seen = [line for line in events.lines("episode") if line["outcome"] in _FINISHED]
    kept = {
        "demonstrate": count_episodes(home / "demos.raw", *_FINISHED),
        "intervene": _kept(home / "tuned") + _kept(home / "imagined"),
        "watch": sum(count_episodes(raw, *_FINISHED) for raw in (home / "deployed").glob("*.raw")),
    }
    # Deployments are watched, and those that a classifier learns from are labelled as well.
    duties = ["watch" if line["duty"] == "label" else line["duty"] for line in seen]
    return {duty: max(0, duties.count(duty) - count) for duty, count in kept.items()}


def make_report(home: Path, control_freq: float) -> dict[str, Any]:
    """The report of a finished day; written by `write_report`."""
    events = EventLog(home / "events.jsonl")
    tuned, imagined = home / "tuned", home / "imagined"
    minutes = _robot_minutes(tuned, control_freq)
    interventions = _lines(home / "tuned" / "interventions.jsonl")
    lost = lost_episodes(home, events)
    commands = events.lines("command")
    environments = [line["clean"] for line in events.lines("environment")]
    return {
        "base": judged(home, "base").figures(),
        "tuned": judged(home, "tuned").figures(),
        "judged_seconds": _judged_seconds(home, control_freq),
        "robot_minutes": minutes,
        "robot_minutes_with_imagination": _robot_minutes(imagined, control_freq),
        "minutes_to_reliable": _minutes_to_reliable(tuned, control_freq),
        "minutes_to_reliable_with_imagination": _minutes_to_reliable(imagined, control_freq),
        "interventions_per_minute": interventions / minutes if minutes else None,
        "lost_episodes": sum(lost.values()),
        "lost": lost,
        "taken_back": len(events.lines("revoked")),
        "killed": [line["name"] for line in events.lines("killed")],
        "clean_environment": environments[-1] if environments else None,
        "commands": [{key: line[key] for key in ("command", "code", "seconds", "log")} for line in commands],
        "minutes": sum(line["seconds"] for line in commands) / 60,
    }


def write_report(home: Path, report: Mapping[str, Any]) -> None:
    """Write `report.json` and `report.html`."""
    write_text(home / "report.json", json.dumps(report, indent=2) + "\n")
    write_text(home / "report.html", _page(home, report))


def _page(home: Path, report: Mapping[str, Any]) -> str:
    pages = [home / "demos.html", *sorted((home / "deployed").glob("*.html"))]
    links = [path.relative_to(home).as_posix() for path in pages if path.is_file()]
    listed = [f'<li><a href="{escape(link)}">{escape(link)}</a></li>' for link in links]
    typed = [
        f"<li><code>{escape(line['command'])}</code> code {line['code']}, {line['seconds']} s, "
        f'<a href="logs/{escape(line["log"])}">output</a></li>'
        for line in report["commands"]
    ]
    return "\n".join(
        [
            "<!doctype html><meta charset=utf-8><title>Rehearsal</title>",
            "<style>body{font:16px sans-serif;max-width:60em;margin:2em auto}",
            "td{text-align:left;padding:0.2em 1.5em 0.2em 0}</style>",
            "<h1>Rehearsal</h1>",
            *_table([_JUDGED, *(_judged_row(policy, report[policy]) for policy in ("base", "tuned"))]),
            "<p>Success is the simulation's own check, which no command of the day reads.",
            "The classifier's verdict ended the episodes.</p>",
            *_table([[label, _cell(report[key])] for key, label in _LABELS.items()]),
            "<h2>What the cameras saw</h2><ul>",
            *listed,
            "</ul><h2>What was typed</h2><ol>",
            *typed,
            "</ol>",
        ]
    )


def _judged_row(policy: str, figures: Mapping[str, Any]) -> list[str]:
    low, high = figures["interval"] or (None, None)
    verdicts = [figures["classifier"][key] for key in ("success", "false_alarms", "missed")]
    interval = f"{_cell(low)} to {_cell(high)}"
    return [policy, _cell(figures["success"]), interval, _cell(figures["episodes"]), *map(_cell, verdicts)]


def _table(rows: Sequence[Sequence[str]]) -> list[str]:
    lines = ["".join(f"<td>{escape(cell)}</td>" for cell in row) for row in rows]
    return ["<table>", *(f"<tr>{line}</tr>" for line in lines), "</table>"]


def _cell(value: Any) -> str:
    if value is None:
        return "–"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, list):
        return ", ".join(map(str, value)) or "none"
    return f"{value:.3g}" if isinstance(value, float) else str(value)


def _judged_seconds(home: Path, control_freq: float) -> float | None:
    """Time limit of a judged episode, s; None for a day of an earlier version."""
    results = sorted((home / "deployed").glob("tuned_*.json"))
    horizon = json.loads(results[0].read_text()).get("horizon") if results else None
    return horizon / control_freq if horizon else None


def _robot_minutes(run: Path, control_freq: float) -> float | None:
    """Minutes in which the robot was moved by a finished run; None if there is none."""
    path = run / "run.json"
    record = json.loads(path.read_text()) if path.is_file() else {}
    return record["env_steps"] / control_freq / 60 if record.get("finished") else None


def _minutes_to_reliable(run: Path, control_freq: float) -> float | None:
    """Minutes of training after which the policy was reliable, by the verdicts that it learned from.

    That is the end of the first `_WINDOW` successive episodes of which `_RELIABLE` succeeded without a
    takeover; None if there are none.
    """
    metrics = _metrics(run)
    wins = [
        (step, bool(success) and rate == 0)
        for (step, _, success), (_, _, rate) in zip(
            metrics.get(_SUCCESS, []), metrics.get(_INTERVENED, []), strict=True
        )
    ]
    for last in range(_WINDOW, len(wins) + 1):
        if sum(win for _, win in wins[last - _WINDOW : last]) >= _RELIABLE:
            return wins[last - 1][0] / control_freq / 60
    return None


def count_episodes(raw: Path, *outcomes: Outcome) -> int:
    """Number of recorded episodes with one of these outcomes; 0 if there are no recordings yet."""
    return RawDataset(raw).count(*outcomes) if raw.is_dir() else 0


def _kept(run: Path) -> int:
    """Number of finished episodes that a run has learned from, or that its actor keeps for the learner.

    A finished run leaves the episodes that ended after its last step with the actor.
    """
    learned = len(_metrics(run).get(_SUCCESS, []))
    if not (folder := run / "spool").is_dir():
        return learned
    spool = Spool(folder)
    ends = [from_actor(spool.get(number)[-1]) for number in spool.episodes]
    return learned + sum(isinstance(end, End) and not end.interrupted for end in ends)


def _metrics(run: Path) -> dict[str, Series]:
    """Metrics of a run; none if there is no such run."""
    path = run / "metrics.csv"
    return read_metrics(path) if path.is_file() else {}


def _lines(path: Path) -> int:
    return len(path.read_text().splitlines()) if path.is_file() else 0
