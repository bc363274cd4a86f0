"""Recorder, server or both are killed at random: what was committed stays, what was open is recovered."""

import random
import signal
import time
from pathlib import Path

import pytest

from robot_rl.hardware.recording.raw import RawDataset, RawWriter
from robot_rl.hardware.recording.recorder_process import RecorderProcess
from robot_rl.hardware.recording.records import Received
from robot_rl.hardware.recording.requests import Status
from tests.hardware.processes import PATIENCE, eventually
from tests.hardware.recording.conftest import Robot, begin, hears_all


def killed(robot: Robot, root: Path, victim: str, chance: random.Random) -> None:
    """One round: perhaps a commit, then an open episode, then the kill."""
    found = {number: episode.header.episode for number, episode in RawDataset(root).episodes.items()}
    recorder = RecorderProcess(robot.address, root, cameras=["front"])
    try:
        hears_all(recorder)
        if chance.random() < 0.5:
            name = begin(recorder)
            found[recorder.end("success").number] = name
        name = begin(recorder)
        enough = chance.randrange(1, 60)
        eventually(lambda: recorder.status().received["state"] > enough, "states")
        time.sleep(chance.uniform(0, 0.02))
        known = recorder.status()
        if victim != "recorder":
            robot.kill()
        if victim == "server":
            ended = recorder.end("success")
            found[ended.number] = name
            assert ended.footer.counts["state"].received >= known.received["state"]
        else:
            recorder.process.send_signal(signal.SIGKILL)
            assert recorder.process.wait(PATIENCE) == -signal.SIGKILL
    finally:
        recorder.close()
    left = RawDataset(root)
    assert len(left.open) == (victim != "server")
    with RawWriter(root) as writer:
        for number, episode in writer.repair()[0].items():
            assert episode.header.episode == name
            found[number] = name
            assert episode.footer is not None
            assert episode.footer.outcome == "recovered"
    last = RawDataset(root).episodes[max(found)]
    has_all(list(last.messages()), known)
    now = {number: episode.header.episode for number, episode in RawDataset(root).episodes.items()}
    assert now == found


def has_all(messages: list[object], known: Status) -> None:
    """What the recorder had taken before it was killed is there, on however busy a machine."""
    states = [message for message in messages if isinstance(message, Received) and message.stream == "state"]
    assert len(states) >= known.received["state"]
    assert states[-1].t >= known.newest


@pytest.mark.parametrize(
    "victim", [*(pytest.param(one, marks=pytest.mark.full) for one in ("recorder", "server")), "both"]
)
def test_who_is_killed_takes_nothing_along_that_was_written(mortal: Robot, root: Path, victim: str) -> None:
    rounds(mortal, root, [victim] * (2 if victim == "recorder" else 1), 0)


@pytest.mark.full
def test_a_hundred_kills_in_a_row_take_nothing_along(mortal: Robot, root: Path) -> None:
    chance = random.Random(1)
    victims = chance.choices(["recorder", "server", "both"], [6, 2, 2], k=100)
    rounds(mortal, root, victims, 2)


def rounds(robot: Robot, root: Path, victims: list[str], seed: int) -> None:
    chance = random.Random(seed)
    with RawWriter(root):
        pass
    for victim in victims:
        if robot.process.process.poll() is not None:
            robot.begin()
        killed(robot, root, victim, chance)
    assert len(RawDataset(root).episodes) >= len(victims)
