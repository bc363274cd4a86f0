"""Kills writers of one raw dataset at random points, and looks after each at what is left.

`python kill_writers.py FOLDER KILLS SEED` prints how many were killed where, as JSON; whatever is wrong with
the dataset is an AssertionError. A writer is forked, so that many are killed in a second. Where it is then
depends on the machine: more are killed until each place was met by a tenth of KILLS.
"""

import itertools
import json
import mmap
import os
import random
import signal
import struct
import sys
import time
from collections import Counter
from pathlib import Path

from robot_rl.hardware.recording.episode import Episode
from robot_rl.hardware.recording.raw import RawDataset, RawWriter
from robot_rl.hardware.recording.records import Received
from tests.hardware.recording.samples import footer, header, record

_STEPS = 120
"""After so many steps of a writer at the latest it is killed, however fast the machine is."""
_LOOK = 1e-4
_PLACE = struct.Struct("<Q32sQ?")
"""What a writer says in shared memory: steps so far, episode, its records that are written, whether it is
being committed."""
RECORDS = [record(index) for index in range(60)]


class Told:
    """What a writer said of its work before it was killed."""

    def __init__(self) -> None:
        self.memory = mmap.mmap(-1, _PLACE.size)
        self.read_end, self.write_end = os.pipe()

        self._steps = 0

    def say(self, episode: str, written: int, *, committing: bool = False) -> None:
        self._steps += 1
        self.memory[:] = _PLACE.pack(self._steps, episode.encode(), written, committing)

    def progress(self) -> tuple[int, str, int, bool]:
        steps, episode, written, committing = _PLACE.unpack(self.memory[:])
        return steps, episode.rstrip(b"\0").decode(), written, committing

    def commits(self) -> list[tuple[str, int, int]]:
        """Episode, number and length of each commit that has returned."""
        os.close(self.write_end)
        with os.fdopen(self.read_end) as lines:
            return [(words[0], int(words[1]), int(words[2])) for words in map(str.split, lines)]


def write_until_killed(root: Path, told: Told, seed: int) -> None:
    chance = random.Random(seed)
    with RawWriter(root) as writer:
        if chance.random() < 0.5:
            writer.repair()
        while True:
            head = header()
            episode = writer.begin(head)
            length = chance.randrange(len(RECORDS))
            for index in range(length):
                told.say(head.episode, index)
                assert episode.write(RECORDS[index])
            told.say(head.episode, length, committing=True)
            number = writer.commit(episode, footer(labels={"length": str(length)}))
            os.write(told.write_end, f"{head.episode} {number} {length}\n".encode())


def kill_one(root: Path, seed: int, steps: int) -> Told:
    """Begin a writer and kill it when it has made so many steps."""
    told = Told()
    child = os.fork()
    if child == 0:
        try:
            write_until_killed(root, told, seed)
        finally:
            os._exit(1)
    while told.progress()[0] < steps:
        time.sleep(_LOOK)
    os.kill(child, signal.SIGKILL)
    _, status = os.waitpid(child, 0)
    assert os.WIFSIGNALED(status), "a writer ended by itself"
    return told


def length_of(episode: Episode) -> int:
    """How many records it has, which must be the first so many."""
    found = [record for record in episode.messages() if isinstance(record, Received)]
    for camera in episode.header.cameras:
        found += episode.images(camera)
    found.sort(key=lambda record: record.t)
    for mine, expected in zip(found, RECORDS, strict=False):
        assert (mine.stream, mine.t) == (expected.stream, expected.t)
        assert bytes(mine.frame) == bytes(expected.frame)
    return len(found)


def main(root: Path, kills: int, seed: int) -> None:
    chance = random.Random(seed)
    with RawWriter(root):
        pass
    where: Counter[str] = Counter()
    committed: dict[str, tuple[int, int]] = {}
    written: dict[str, int] = {}
    for kill in itertools.count():
        if kill >= kills and min(where["write"], where["commit"]) > kills // 10:
            break
        assert kill < 20 * kills, where
        told = kill_one(root, seed + kill, max(0, chance.randrange(-_STEPS // 8, _STEPS)))
        for name, number, length in told.commits():
            committed[name] = number, length
        _, name, count, committing = told.progress()
        if name:
            written[name] = count
        where["none" if not name else "commit" if committing else "write"] += 1
        # It opens, including unfinished writes.
        dataset = RawDataset(root)
        numbers = dataset.episodes
        assert {number for number, _ in committed.values()} <= numbers.keys()
        for episode in dataset.open:
            assert length_of(episode) >= written.get(episode.header.episode, 0)
        where["left open"] += len(dataset.open)
    with RawWriter(root) as writer:
        where["repaired at the end"] = len(writer.repair()[0])
        assert writer.repair() == ({}, {})
    dataset = RawDataset(root)
    assert dataset.open == []
    found = {}
    for number, episode in dataset.episodes.items():
        assert episode.footer is not None
        length = length_of(episode)
        name = episode.header.episode
        assert name not in found
        found[name] = number, length
        if episode.footer.outcome == "success":
            assert length == int(episode.footer.labels["length"])
        else:
            assert episode.footer.outcome == "recovered"
            assert sum(count.received for count in episode.footer.counts.values()) == length
            where["recovered"] += 1
    assert committed.items() <= found.items(), "a committed episode was lost or has changed"
    # A write that had not returned may be there or not.
    assert all(count <= found[name][1] <= count + 1 for name, count in written.items() if name in found)
    assert all(name in found for name, count in written.items() if count)
    where["committed"] = len(found)
    print(json.dumps(where))


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]))
