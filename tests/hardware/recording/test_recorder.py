"""What a recorder process writes, and what it reports when something is missing."""

import itertools
import os
import signal
import time
from pathlib import Path

import pytest

from robot_rl.hardware.client import CommandRefused
from robot_rl.hardware.protocol.arrays import decode_image, pixels
from robot_rl.hardware.protocol.codec import decode_server
from robot_rl.hardware.protocol.messages import Code, Commanded, Event, State
from robot_rl.hardware.recording.episode import Episode
from robot_rl.hardware.recording.raw import RawDataset
from robot_rl.hardware.recording.recorder import RecorderError
from robot_rl.hardware.recording.recorder_process import RecorderProcess
from robot_rl.hardware.recording.records import Clock, Received
from tests.hardware.cameras.devices_for_tests import number_in
from tests.hardware.processes import PATIENCE, eventually
from tests.hardware.recording.conftest import Record, Robot, begin
from tests.hardware.recording.robot_with_cameras import CAMERAS


def messages(episode: Episode, stream: str) -> list[object]:
    return [
        decode_server(record.frame)
        for record in episode.messages()
        if isinstance(record, Received) and record.stream == stream
    ]


def test_an_episode_holds_all_that_was_published_while_it_was_open(
    robot: Robot, record: Record, root: Path
) -> None:
    recorder = record(robot)
    assert recorder.ready.robot == "sim_panda"
    assert recorder.ready.cameras == CAMERAS
    with robot.client("carl") as client:
        client.arm()
        before = time.monotonic_ns()
        name = begin(recorder, {"operator": "carl", "task": "stay"})
        with client.lease("human"):
            here = list(client.state(10.0).q)
            acks = [client.command("joint_position", here, 0.5, ttl_ms=1000) for _ in range(5)]
            with pytest.raises(CommandRefused, match="shape"):
                client.command("joint_position", here[:3], ttl_ms=1000)
        client.disarm()
        eventually(
            lambda: min(recorder.status().received[stream] for stream in (*CAMERAS, "state")) > 12,
            "some images and states",
        )
        assert recorder.status().episode == name
        ended = recorder.end("success", {"note": "well done"})
        after = time.monotonic_ns()
    assert (ended.number, ended.episode) == (0, name)
    assert ended.commit_ms < 30_000

    episode = RawDataset(root).episodes[0]
    header, footer = episode.header, episode.footer
    assert footer is not None
    assert (header.labels, footer.labels) == ({"operator": "carl", "task": "stay"}, {"note": "well done"})
    assert header.spec.name == "sim_panda"
    assert header.session == recorder.ready.session
    assert before <= header.t < footer.t <= after

    states = messages(episode, "state")
    assert all(isinstance(state, State) for state in states)
    numbers = [state.seq for state in states]  # type: ignore[attr-defined]
    assert numbers == list(range(numbers[0], numbers[0] + len(numbers)))
    commands = messages(episode, "command")
    assert all(isinstance(command, Commanded) for command in commands)
    assert [command.applied for command in commands] == [*(ack.applied for ack in acks), ()]  # type: ignore[attr-defined]
    assert [command.code for command in commands] == [None] * 5 + [Code.SHAPE]  # type: ignore[attr-defined]
    assert {(command.who, command.kind) for command in commands} == {("carl", "human")}  # type: ignore[attr-defined]
    texts = [event.text for event in messages(episode, "event") if isinstance(event, Event)]
    assert any("to carl" in text for text in texts)
    assert any(isinstance(message, Clock) and message.offset == 0 for message in episode.messages())
    for camera in CAMERAS:
        frames = [decode_image(image.frame) for image in episode.images(camera)]
        # The device counts from 1, the server from 0.
        assert {number_in(pixels(*image)) - image[0].number for image in frames} == {1}
        assert footer.counts[camera].received == len(frames)
    assert {stream: count.received for stream, count in footer.counts.items()} == {
        "state": len(states),
        "command": 6,
        "event": len(texts),
        **{camera: len(list(episode.images(camera))) for camera in CAMERAS},
    }


def test_lost_images_are_counted_and_flag_the_episode(robot: Robot, record: Record, root: Path) -> None:
    recorder = record(robot)
    begin(recorder)
    eventually(lambda: recorder.status().received["wrist"] > 20, "images")
    footer = recorder.end("success").footer
    # Its camera loses every seventh.
    assert footer.counts["wrist"].lost >= 2
    assert footer.counts["state"].lost == 0
    assert footer.flagged
    numbers = [decode_image(image.frame)[0].number for image in RawDataset(root).episodes[0].images("wrist")]
    gaps = sum(b - a - 1 for a, b in itertools.pairwise(numbers))
    # And those between the beginning and the first image: one, or more if the camera's process had to wait.
    before = footer.counts["wrist"].lost - gaps
    assert 0 <= before < numbers[0]


def test_only_the_cameras_that_were_chosen_are_recorded(robot: Robot, record: Record, root: Path) -> None:
    recorder = record(robot, cameras=["front"])
    begin(recorder)
    recorder.end("discarded")
    episode = RawDataset(root).episodes[0]
    assert episode.header.cameras == ("front",)
    assert not (episode.folder / "wrist.images").exists()
    assert episode.footer is not None
    assert episode.footer.outcome == "discarded"
    with pytest.raises(RecorderError, match="has no camera left; it has front, wrist"):
        RecorderProcess(robot.address, root.with_name("y.raw"), cameras=["left"])
    with pytest.raises(RecorderError, match="name each once"):
        RecorderProcess(robot.address, root.with_name("z.raw"), cameras=["front", "front"])


def test_what_cannot_be_done_is_refused_in_a_line(robot: Robot, record: Record, root: Path) -> None:
    recorder = record(robot, cameras=[])
    with pytest.raises(RecorderError, match="no episode is open"):
        recorder.end("success")
    begin(recorder)
    with pytest.raises(RecorderError, match="an episode is open; end it first"):
        recorder.begin()
    with pytest.raises(RecorderError, match="Invalid enum value 'perfect'"):
        recorder.end("perfect")  # type: ignore[arg-type]
    with pytest.raises(RecorderError, match="another recorder writes to"):
        RecorderProcess(robot.address, root)
    with pytest.raises(RecorderError, match="no connection from ipc://"):
        RecorderProcess("ipc:///tmp/there-is-none", root.with_name("y.raw"))
    assert recorder.end("failure").number == 0


def test_one_episode_follows_the_other_and_each_has_its_own(robot: Robot, record: Record, root: Path) -> None:
    recorder = record(robot, cameras=["front"])
    for number, outcome in enumerate(("success", "failure", "discarded")):
        begin(recorder)
        eventually(lambda: recorder.status().received["state"] > 3, "states")
        assert recorder.end(outcome).number == number  # type: ignore[arg-type]
    found = RawDataset(root).episodes
    assert [episode.footer.outcome for episode in found.values() if episode.footer] == [
        "success",
        "failure",
        "discarded",
    ]
    spans = [[state.seq for state in messages(episode, "state")] for episode in found.values()]  # type: ignore[attr-defined]
    assert all(a[-1] < b[0] for a, b in itertools.pairwise(spans))


@pytest.mark.parametrize("end", ["its user", "sigterm"])
def test_a_recorder_whose_user_is_gone_commits_what_is_open(
    robot: Robot, record: Record, root: Path, end: str
) -> None:
    recorder = record(robot, cameras=[])
    begin(recorder)
    eventually(lambda: recorder.status().received["state"] > 3, "states")
    if end == "sigterm":
        recorder.process.send_signal(signal.SIGTERM)
        recorder.process.wait(PATIENCE)
    else:
        # What the kernel does with the pipe of a process that was killed.
        recorder.close()
    assert recorder.process.returncode == 0
    episode = RawDataset(root).episodes[0]
    assert episode.footer is not None
    assert episode.footer.outcome == "interrupted"
    assert episode.footer.counts["state"].received > 3


def test_ctrl_c_in_the_terminal_is_left_to_its_user(robot: Robot, record: Record) -> None:
    recorder = record(robot, cameras=[])
    begin(recorder)
    os.kill(recorder.process.pid, signal.SIGINT)
    assert recorder.end("success").number == 0


def test_a_closed_terminal_is_left_to_its_user(robot: Robot, record: Record, root: Path) -> None:
    recorder = record(robot, cameras=[])
    begin(recorder)
    os.kill(recorder.process.pid, signal.SIGHUP)
    # Still there, and what is open is committed at the end of its user.
    assert recorder.status().episode
    recorder.close()
    assert recorder.process.returncode == 0
    footer = RawDataset(root).episodes[0].footer
    assert footer is not None
    assert footer.outcome == "interrupted"


def test_a_recorder_that_died_is_said_once_and_closed_without_another_error(
    robot: Robot, record: Record
) -> None:
    recorder = record(robot, cameras=[])
    recorder.process.kill()
    recorder.process.wait(PATIENCE)
    with pytest.raises(RecorderError, match=r"the recorder has ended \(exit code -9\)"), recorder:
        recorder.status()
    recorder.close()


def test_a_server_that_begins_anew_ends_the_episode_and_the_next_is_of_the_new_one(
    mortal: Robot, record: Record, root: Path
) -> None:
    recorder = record(mortal, cameras=[])
    begin(recorder)
    eventually(lambda: recorder.status().received["state"] > 3, "states")
    mortal.kill()
    eventually(lambda: recorder.status().mode is None, "it is silent")
    mortal.begin()
    ended = eventually(lambda: recorder.status().last, "the episode has ended")
    assert ended.footer.outcome == "interrupted"
    assert "the server was restarted" in ended.footer.trouble
    assert any(line.startswith("state: nothing for") for line in ended.footer.trouble)
    with pytest.raises(RecorderError, match="no episode is open"):
        recorder.end("success")

    begin(recorder)
    recorder.end("success")
    first, second = RawDataset(root).episodes.values()
    assert first.header.session != second.header.session


def test_a_silent_server_is_said_before_an_episode_and_after_it(
    mortal: Robot, record: Record, root: Path
) -> None:
    recorder = record(mortal, cameras=["front"])
    begin(recorder)
    mortal.kill()
    eventually(lambda: recorder.status().mode is None, "it is silent")
    # Its last image may be a little younger than its last state.
    time.sleep(1.0)
    footer = recorder.end("failure").footer
    assert {line.split(":")[0] for line in footer.trouble} == {"state", "front"}
    with pytest.raises(RecorderError, match="is silent; check that the server runs"):
        recorder.begin()
    assert len(RawDataset(root).episodes) == 1
