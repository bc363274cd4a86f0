"""Reads and checks the files of a run that its report is built from."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypedDict

import msgspec

from robot_rl.errors import UserError
from robot_rl.evaluation.evaluate import Outcome, read_outcomes
from robot_rl.evaluation.videos import shown_episode
from robot_rl.learning.success_detection import Rates
from robot_rl.report.classifier import read_classifier
from robot_rl.report.deployments import Deployment, read_deployments
from robot_rl.runs import UNDER, check_is_run
from robot_rl.training.logger import Series, read_metrics

POLICIES = ("base", "tuned")


@dataclass(frozen=True)
class Policy:
    """Evaluation result of one policy."""

    name: str
    success: float
    interval: tuple[float, float]
    mean_length: float
    fingerprint: str
    outcomes: dict[int, bool]
    """Success by episode; the same episode of two policies has the same initial state."""
    lengths: dict[int, int]

    @property
    def episodes(self) -> int:
        return len(self.outcomes)

    @property
    def successes(self) -> int:
        return sum(self.outcomes.values())


@dataclass(frozen=True)
class Disturbed:
    """Success of the same policies in the disturbed task."""

    name: str
    text: str
    """What the disturbance does, and how strongly."""
    success: dict[str, tuple[float, tuple[float, float]]]
    """Success and its interval by policy."""


@dataclass(frozen=True)
class RunData:
    """The content of a report."""

    path: Path
    run: dict[str, Any]
    config: str
    metrics: dict[str, Series]
    deployments: tuple[Deployment, ...]
    classifier: Rates | None
    """Of a run of `method=classifier`."""
    states: str
    states_sha256: str
    base: Policy | None
    """None without an evaluation in simulation."""
    tuned: Policy | None
    disturbed: tuple[Disturbed, ...]
    videos: dict[str, bytes]
    """mp4 by policy."""
    sheets: dict[str, bytes]
    """PNG by file stem."""
    video_episode: int | None
    """The evaluation episode that the videos show."""


@dataclass(frozen=True)
class Pairing:
    """Paired outcomes of base and tuned policy on the same initial states."""

    both: int
    only_base: int
    only_tuned: int
    neither: int


def pair(base: Policy, tuned: Policy) -> Pairing:
    """Count the paired outcomes.

    Raises:
        UserError: if the two did not run the same episodes.
    """
    if base.outcomes.keys() != tuned.outcomes.keys():
        raise UserError(
            "eval/episodes.csv: base and tuned did not run the same episodes: run `robot-rl eval` again"
        )
    pairs = [(base.outcomes[i], tuned.outcomes[i]) for i in base.outcomes]
    return Pairing(*(pairs.count(p) for p in ((True, True), (True, False), (False, True), (False, False))))


def read_run(path: Path) -> RunData:
    """Read a run directory: of a classifier, or with episodes, in `eval/`, of training or on a robot.

    Raises:
        UserError: if a file is missing (names the command that writes it), damaged, or contradicts another.
    """
    check_is_run(path)
    run = _json(path / "run.json", "robot-rl train", ())
    try:
        msgspec.convert(run, _Run)
    except msgspec.ValidationError as error:
        raise UserError(f"{path / 'run.json'} is damaged ({error}): run `robot-rl train` again") from None
    config = _existing(path / "config.yaml", "robot-rl train").read_text()
    metrics = read_metrics(path / "metrics.csv")
    deployments, classifier = read_deployments(path), read_classifier(path)
    summary: dict[str, Any] = {"states": ""}
    found: dict[str, Policy] = {}
    if is_evaluated(path):
        summary, found = _evaluation(path)
    elif not (deployments or classifier or metrics.get("train/success")):
        raise UserError(
            f"{path} is not evaluated, and has no episodes on a robot: run `robot-rl eval policy={path}` or "
            f"`robot-rl deploy policy={path}` first"
        )
    videos, shown = path / "videos", shown_episode(path) if found else None
    names = POLICIES if shown is not None else ()
    return RunData(
        path=path,
        run=run,
        config=config,
        metrics=metrics,
        deployments=deployments,
        classifier=classifier,
        states=str(summary["states"]),
        states_sha256=str(summary.get("states_sha256", "")),
        base=found.get("base"),
        tuned=found.get("tuned"),
        disturbed=_disturbed(path, found, summary),
        videos=_files(videos, names, "mp4"),
        sheets=_files(videos, names, "png"),
        video_episode=shown,
    )


def _files(folder: Path, names: Sequence[str], ending: str) -> dict[str, bytes]:
    paths = {name: folder / f"{name}.{ending}" for name in names}
    return {name: path.read_bytes() for name, path in paths.items() if path.is_file()}


def is_evaluated(run: Path) -> bool:
    """Whether a run was evaluated on validation states, if perhaps not to the end."""
    return any((run / "eval" / name).is_file() for name in ("summary.json", "episodes.csv"))


def _evaluation(path: Path) -> tuple[dict[str, Any], dict[str, Policy]]:
    """The summary of `robot-rl eval`, and its policies by name, of which one is the base."""
    summary = _json(path / "eval" / "summary.json", "robot-rl eval", ("states", "policies"))
    episodes = read_outcomes(_existing(path / "eval" / "episodes.csv", "robot-rl eval"))
    if "base" not in summary["policies"]:
        raise UserError(f"{path / 'eval' / 'summary.json'} has no policy `base`: run `robot-rl eval` again")
    known = [name for name in POLICIES if name in summary["policies"]]
    return summary, {name: _policy(path, name, summary, episodes) for name in known}


class _Machine(TypedDict):
    cpu: str
    cores: int
    gpu: str | None
    platform: str


class _Run(TypedDict):
    """The part of `run.json` that a report shows."""

    command: str
    method: str
    task: str
    seed: int
    started: str
    wall_seconds: float
    env_steps: int
    machine: _Machine
    versions: dict[str, str]


def _existing(file: Path, command: str) -> Path:
    if not file.is_file():
        raise UserError(f"{file} is missing: `{command}` writes it")
    return file


def _json(file: Path, command: str, keys: Sequence[str]) -> dict[str, Any]:
    try:
        value = json.loads(_existing(file, command).read_text())
    except (ValueError, RecursionError) as error:
        raise UserError(f"{file} is not JSON ({error}): run `{command}` again") from None
    if not isinstance(value, dict):
        raise UserError(f"{file} is not a JSON object: run `{command}` again")
    if missing := [key for key in keys if key not in value]:
        raise UserError(f"{file} lacks {', '.join(missing)}: run `{command}` again")
    return value


def _policy(
    path: Path, name: str, summary: dict[str, Any], episodes: Mapping[str, Sequence[Outcome]]
) -> Policy:
    rows = episodes.get(name, ())
    try:
        entry = summary["policies"][name]
        policy = Policy(
            name=name,
            success=float(entry["success"]),
            interval=(float(entry["interval"][0]), float(entry["interval"][1])),
            mean_length=float(entry["mean_length"]),
            fingerprint=str(entry["fingerprint"]),
            outcomes={one.episode: one.success for one in rows},
            lengths={one.episode: one.length for one in rows},
        )
    except (KeyError, TypeError, ValueError, IndexError):
        raise UserError(
            f"{path / 'eval' / 'summary.json'}: `{name}` lacks success, interval, mean_length "
            "or fingerprint: run `robot-rl eval` again"
        ) from None
    counted = policy.successes / policy.episodes if policy.episodes else float("nan")
    if len(rows) != policy.episodes or not abs(counted - policy.success) < 1e-6:
        raise UserError(
            f"{path / 'eval'}: summary.json says that {name} succeeds in {policy.success:.1%}, "
            f"episodes.csv has {policy.successes} successes in {len(rows)} rows: run `robot-rl eval` again"
        )
    return policy


def _disturbed(path: Path, policies: Mapping[str, Policy], plain: Mapping[str, Any]) -> tuple[Disturbed, ...]:
    """Results in the disturbed task; those of other policies, states or seeds are of an earlier evaluation.

    `plain` is the summary of the undisturbed task.
    """
    results = []
    for file in sorted((path / "eval" / UNDER).glob("*/summary.json")):
        summary = _json(file, "robot-rl eval", ("disturbance", "episodes", "policies", "states_sha256"))
        try:
            entries = {name: summary["policies"][name] for name in policies}
            fingerprints = {name: entry["fingerprint"] for name, entry in entries.items()}
            success = {
                name: (float(entry["success"]), (float(entry["interval"][0]), float(entry["interval"][1])))
                for name, entry in entries.items()
            }
        except (KeyError, TypeError, ValueError, IndexError):
            raise UserError(
                f"{file}: a policy lacks success, interval or fingerprint: run `robot-rl eval` again"
            ) from None
        same = fingerprints == {name: policy.fingerprint for name, policy in policies.items()}
        counts = {policy.episodes for policy in policies.values()}
        same &= all(summary.get(name) == plain.get(name) for name in ("states_sha256", "seed"))
        if same and counts == {summary["episodes"]}:
            results.append(Disturbed(file.parent.name, str(summary["disturbance"]), success))
    return tuple(results)
