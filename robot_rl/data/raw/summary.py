"""Summarizes and validates recordings."""

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import chain

from robot_rl.hardware.recording.episode import Episode
from robot_rl.hardware.recording.raw import RawDataset
from robot_rl.hardware.recording.records import Received
from robot_rl.hardware.recording.stream_counter import sequence_number


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


def find_raw_problems(raw: RawDataset) -> list[str]:
    """Problems of recordings; reads every record."""
    found = [fault for number, episode in raw.episodes.items() for fault in _episode(number, episode)]
    if raw.open or raw.headless:
        left = len(raw.open) + len(raw.headless)
        found.append(
            f"{left} not committed: `robot-rl data repair raw={raw.root}`, unless one is being recorded"
        )
    return found or ([] if raw.episodes else ["it has no episode"])


def _episode(number: int, episode: Episode) -> Iterator[str]:
    try:
        header, footer = episode.header, episode.footer
        if footer is None:
            yield f"episode {number} has no footer: it is damaged"
            return
        yield from (f"episode {number}: {trouble}" for trouble in footer.trouble)
        for stream, count in footer.counts.items():
            if count.lost or count.unwritten:
                yield f"episode {number}: {count.lost + count.unwritten} {stream} missing"
        if torn := episode.torn():
            yield f"episode {number}: {torn} bytes of records that are not whole"
        _read_all(episode, header.cameras)
    except (ValueError, OSError) as error:
        yield f"episode {number}: {error}"


def _read_all(episode: Episode, cameras: tuple[str, ...]) -> None:
    """Raises ValueError if a record differs from what was written."""
    for record in chain(episode.messages(), *map(episode.images, cameras)):
        if isinstance(record, Received):
            # Decoding checks that the message is complete.
            sequence_number(record.stream, record.frame)
