"""A recorder's process: `python -m robot_rl.hardware.recording.process <Start, JSON>`; `client.py` starts it.

It ends when its stdin does, however that came about, and commits the open episode first.
"""

import os
import signal
import sys
import time
from contextlib import suppress
from pathlib import Path

import msgspec

from robot_rl.hardware.connection import RobotError
from robot_rl.hardware.protocol.endpoints import parse
from robot_rl.hardware.protocol.security import load_client_keys
from robot_rl.hardware.recording.raw import RawDataset
from robot_rl.hardware.recording.recorder import Recorder, RecorderError
from robot_rl.hardware.recording.requests import Answer, Begin, Begun, End, Ready, Refusal, Request, Start

_LOOK = 100
"""ms that it waits for a message before it looks after other things."""
_NICE = 5
_FIRST = 10.0
"""s that the first state is waited for."""
_REQUESTS = sys.stdin.fileno()


def main() -> int:
    """Record until stdin ends or SIGTERM comes; returns an exit code."""
    start = msgspec.json.decode(sys.argv[1], type=Start)
    # Ctrl-C in a terminal goes to all processes; whoever started this one ends it.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    ended = Ended()
    signal.signal(signal.SIGTERM, ended)
    try:
        keys = load_client_keys(Path(start.keys)) if start.keys else None
        address = parse(start.address)
        recorder = Recorder(address, Path(start.root), start.cameras, keys, start.insecure)
        # Of this thread, which waits for the disk; those that listen have begun already.
        os.nice(_NICE)
        try:
            _serve(recorder, ended)
        finally:
            recorder.close()
    except (RobotError, RecorderError, ValueError, OSError) as error:
        _say(Refusal(reason=str(error)))
        return 1
    return 0


class Ended:
    """Becomes true with a signal."""

    def __init__(self) -> None:
        self._told = False

    def __bool__(self) -> bool:
        return self._told

    def __call__(self, *_: object) -> None:
        self._told = True


def _serve(recorder: Recorder, ended: Ended) -> None:
    deadline = time.monotonic() + _FIRST
    while recorder.streams.silent():
        if time.monotonic() > deadline:
            raise RecorderError(f"{recorder.robot} at {recorder.address} publishes no states")
        recorder.wait(_LOOK)
    recorder.streams.listen_to(_REQUESTS)
    left = len(RawDataset(recorder.writer.root).open)
    _say(Ready(robot=recorder.robot, session=recorder.session, cameras=recorder.cameras, left_open=left))
    unread = b""
    while not ended:
        if _REQUESTS not in recorder.wait(_LOOK):
            continue
        more = os.read(_REQUESTS, 1 << 16)
        if not more:
            return
        *lines, unread = (unread + more).split(b"\n")
        for line in lines:
            _say(_answer(recorder, line))


def _answer(recorder: Recorder, line: bytes) -> Answer:
    try:
        request = msgspec.json.decode(line, type=Request)
        if isinstance(request, Begin):
            return Begun(episode=recorder.begin(request.labels))
        if isinstance(request, End):
            return recorder.end(request.outcome, request.labels)
        return recorder.status()
    except (RecorderError, msgspec.DecodeError, UnicodeDecodeError) as error:
        return Refusal(reason=str(error))


def _say(answer: Answer) -> None:
    # Where nobody hears it any more, stdin will end too.
    with suppress(BrokenPipeError):
        os.write(sys.stdout.fileno(), msgspec.json.encode(answer) + b"\n")


if __name__ == "__main__":
    sys.exit(main())
