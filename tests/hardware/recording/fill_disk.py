"""Records onto a small disk until it is full, and beyond. `python fill_disk.py FOLDER`, on a separate disk.

Prints `done` if all held.
"""

import os
import signal
import sys
from pathlib import Path

import pytest

from robot_rl.hardware.recording.episode import Episode, EpisodeWriter
from robot_rl.hardware.recording.raw import RawDataset, RawWriter
from robot_rl.hardware.recording.records import Received
from robot_rl.hardware.recording.stream_counter import StreamCounter
from tests.hardware.recording.samples import counters, footer, header, record


def fill(episode: EpisodeWriter, counted: dict[str, StreamCounter], index: int, more: int) -> int:
    """Write until the disk has refused `more` records."""
    refused = 0
    while refused < more:
        mine = record(index)
        counted[mine.stream].add(index, mine.t)
        if not episode.write(mine):
            counted[mine.stream].unwritten += 1
            refused += 1
        index += 1
    return index


def check(episode: Episode, counted: dict[str, StreamCounter], last: int) -> None:
    """It has what the disk took, in order, and nothing that it refused is half there."""
    found = dict.fromkeys(counted, 0)
    logs = [episode.messages(), *(episode.images(camera) for camera in episode.header.cameras)]
    for log in logs:
        mine = [message for message in log if isinstance(message, Received)]
        times = [message.t for message in mine]
        assert times == sorted(set(times))
        for message in mine:
            found[message.stream] += 1
            expected = record(round((message.t - 10**12) / 2_000_000) - 1)
            assert bytes(message.frame) == bytes(expected.frame)
    assert found == {stream: counter.received - counter.unwritten for stream, counter in counted.items()}
    assert sum(counter.received for counter in counted.values()) == last


def main(disk: Path) -> None:
    filler = disk / "filler"
    filler.write_bytes(bytes(2_000_000))
    root = disk / "x.raw"

    with RawWriter(root) as writer:
        # Full in the middle, room again, full at the end: and committed on the full disk.
        counted = counters()
        episode = writer.begin(header())
        last = fill(episode, counted, 0, 40)
        filler.unlink()
        last = fill(episode, counted, last, 40)
        counts = {stream: counter.end(0) for stream, counter in counted.items()}
        assert writer.commit(episode, footer(counts=counts)) == 0
        done = RawDataset(root).episodes[0]
        assert done.footer is not None
        assert (done.footer.outcome, done.footer.flagged) == ("success", True)
        assert done.footer.trouble == ("no space left on device",)
        assert done.footer.counts["front"].unwritten > 5
        check(done, counted, last)

        # No room for another one: said at once, and nothing is left of it.
        with pytest.raises(OSError, match="No space left"):
            writer.begin(header())
        assert RawDataset(root).open == []
        assert not list(root.glob("open-*"))

    # Killed on a full disk, and recovered on it.
    os.truncate(root / "episode_000000" / "front.images", 0)
    child = os.fork()
    if child == 0:
        with RawWriter(root) as writer:
            fill(writer.begin(header()), counters(), 0, 5)
            os.kill(os.getpid(), signal.SIGKILL)
    os.waitpid(child, 0)
    with RawWriter(root) as writer:
        (repaired,) = writer.repair()[0].values()
    assert repaired.footer is not None
    assert repaired.footer.outcome == "recovered"
    assert repaired.footer.counts["front"].received > 5
    assert len(RawDataset(root).episodes) == 2
    print("done")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
