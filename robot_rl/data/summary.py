"""Summarizes a dataset, recordings or another program's dataset in a few lines."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from robot_rl.data.dataset import FORMAT_VERSION, Dataset
from robot_rl.data.episode_notes import notes_of, outcome_of, steps_by_source
from robot_rl.data.episode_stream import cameras_of, videos_of
from robot_rl.data.kinds import NAMES, kind_of
from robot_rl.hardware.recording.raw import RawDataset


@dataclass(frozen=True)
class Line:
    """One line of a summary."""

    name: str
    text: str


@dataclass(frozen=True)
class RawFacts:
    """Summary of recordings."""

    robots: tuple[str, ...]
    cameras: tuple[str, ...]
    seconds: tuple[float, ...]
    """Duration of each committed episode."""
    outcomes: Counter[str]
    labels: Counter[str]
    """Number of episodes by label, such as `operator=carl`."""
    flagged: tuple[int, ...]
    """Numbers of episodes with missing data."""
    open: int
    """Number of folders that are not committed."""


def raw_facts(raw: RawDataset) -> RawFacts:
    """Summarize headers and footers.

    Raises:
        ValueError: if one is damaged or of a newer version.
    """
    robots: dict[str, None] = {}
    cameras: dict[str, None] = {}
    seconds, flagged = [], []
    outcomes: Counter[str] = Counter()
    labels: Counter[str] = Counter()
    for number, episode in raw.episodes.items():
        header, footer = episode.header, episode.footer
        if footer is None:
            raise ValueError(f"{episode.folder} is damaged: its footer is missing; move the folder away")
        robots[header.spec.name] = None
        cameras |= dict.fromkeys(header.cameras)
        seconds.append((footer.t - header.t) / 1e9)
        outcomes[footer.outcome] += 1
        labels.update(f"{key}={value}" for key, value in {**header.labels, **footer.labels}.items())
        if footer.flagged:
            flagged.append(number)
    left = len(raw.open) + len(raw.headless)
    return RawFacts(tuple(robots), tuple(cameras), tuple(seconds), outcomes, labels, tuple(flagged), left)


def dataset_lines(path: Path) -> list[Line]:
    """Summary of a dataset.

    Raises:
        ValueError: if there is no dataset at `path`, or it is damaged.
    """
    dataset = Dataset(path)
    environment = dataset.environment
    spec = dataset.observation_spec
    lengths = [rows.stop - rows.start for rows in dataset.episodes]
    rate = float(environment.get("control_freq", 0))
    notes = notes_of(dataset)
    outcomes = Counter(outcome_of(dataset, number, note) for number, note in enumerate(notes))
    seconds = f", {dataset.num_steps / rate:.1f} s at {rate:g} steps/s" if rate else ""
    lines = [
        Line("dataset", f"{path}, format {FORMAT_VERSION}, {_size(path)}"),
        Line("episodes", f"{dataset.num_episodes}, {dataset.num_steps} steps{seconds}"),
        *([Line("length", _spread(lengths, "steps"))] if lengths else []),
        Line("outcomes", _counted(outcomes)),
    ]
    if acted := sum(steps_by_source(dataset), Counter[str]()):
        lines.append(Line("steps by", _counted(acted)))
    labels = Counter(f"{key}={value}" for note in notes for key, value in note.get("labels", {}).items())
    lines += _optional("labels", _counted(labels)) if labels else []
    flagged = [str(number) for number, note in enumerate(notes) if note.get("flagged")]
    lines += _optional("flagged", f"something is missing in episode {', '.join(flagged)}") if flagged else []
    if asked := Counter(text for text in dataset.instructions if text):
        lines.append(Line("instructions", "; ".join(f"{count} {text}" for text, count in asked.items())))
    robot = environment.get("real_robot", {}).get("name", environment.get("robot", "?"))
    lines.append(Line("task", f"{environment.get('task', '?')}; robot {robot}"))
    lines.append(
        Line(
            "state",
            ", ".join(f"{key} {dim}" for key, dim in zip(spec.state_keys, spec.state_dims, strict=True)),
        )
    )
    actions = ", ".join(f"{dim.name} ({dim.kind}, {dim.scale:g} {dim.unit})" for dim in dataset.action_spec)
    lines.append(Line("actions", actions))
    height, width = spec.image_size
    kept = set(videos_of(dataset, 0)) if dataset.num_episodes else set()
    cameras = [
        f"{name} {width}x{height}{' as video' if name in kept else ''}" for name in cameras_of(dataset)
    ]
    lines.append(Line("cameras", ", ".join(cameras) or "none"))
    more = sorted(set(dataset.keys) - set(spec.state_keys))
    lines.append(Line("arrays", ", ".join(more)))
    versions = environment.get("versions", {})
    lines += _optional("versions", ", ".join(f"{name} {version}" for name, version in versions.items()))
    lines.append(Line("collected", _collected(dataset)))
    return lines


def raw_lines(path: Path) -> list[Line]:
    """Summary of a folder of recordings.

    Raises:
        ValueError: if they are damaged.
    """
    raw = RawDataset(path)
    facts = raw_facts(raw)
    lines = [
        Line("recordings", f"{path}, {_size(path)}"),
        Line("robot", ", ".join(facts.robots) or "?"),
        Line("cameras", ", ".join(facts.cameras) or "none"),
        Line("episodes", f"{len(facts.seconds)}, {sum(facts.seconds):.1f} s"),
    ]
    if facts.seconds:
        lines += [Line("length", _spread(facts.seconds, "s")), Line("outcomes", _counted(facts.outcomes))]
    lines += _optional("labels", _counted(facts.labels)) if facts.labels else []
    flagged = ", ".join(map(str, facts.flagged))
    lines += _optional("flagged", f"something is missing in episode {flagged}") if flagged else []
    if facts.open:
        lines.append(Line("open", f"{facts.open} not committed: see `robot-rl data repair`"))
    return lines


def _bytes_of(path: Path) -> int:
    if path.is_file():
        return path.stat().st_size
    return sum(file.stat().st_size for file in path.rglob("*") if file.is_file())


def _collected(dataset: Dataset) -> str:
    collection = dataset.collection
    if parts := collection.get("parts"):
        return "from " + ", ".join(f"{part['episodes']} of {part['dataset']}" for part in parts)
    if recorded := collection.get("recorded"):
        return f"recorded from {recorded.get('robot', '?')} in {recorded.get('folder', '?')}"
    if converted := collection.get("converted"):
        return f"converted from {converted.get('file', '?')} ({converted.get('format', '?')})"
    return ", ".join(f"{key}={value}" for key, value in collection.items()) or "?"


def _size(path: Path) -> str:
    size = float(_bytes_of(path))
    for unit in ("bytes", "kB", "MB", "GB"):
        if size < 1000 or unit == "GB":
            return f"{size:.0f} {unit}" if unit == "bytes" else f"{size:.1f} {unit}"
        size /= 1000
    raise AssertionError


def _spread(values: Sequence[float], unit: str) -> str:
    low, middle, high = np.percentile(values, (0, 50, 100))
    return (
        f"{low:g} to {high:g} {unit}, median {middle:g}"
        if unit == "steps"
        else f"{low:.1f} to {high:.1f} {unit}, median {middle:.1f}"
    )


def _counted(counts: Counter[str]) -> str:
    return ", ".join(f"{number} {name}" for name, number in counts.most_common()) or "none"


def _optional(name: str, text: str) -> list[Line]:
    return [Line(name, text)] if text else []


def lines_of(path: Path) -> list[Line]:
    """Summary of a dataset of any kind.

    Raises:
        ValueError: if there is no dataset at `path`, or it is damaged.
    """
    # Import only the libraries that this kind needs.
    match kind_of(path):
        case "raw":
            return raw_lines(path)
        case "robomimic":
            from robot_rl.data.formats.robomimic.file import facts as robomimic_facts

            found = robomimic_facts(path)
        case "lerobot":
            from robot_rl.data.formats.lerobot.files import facts as lerobot_facts

            found = lerobot_facts(path)
        case "dataset":
            return dataset_lines(path)
    return [
        Line("dataset", f"{path}, a {NAMES[kind_of(path)]}, {_size(path)}"),
        *(Line(*one) for one in found.items()),
    ]
