"""Recorder process: `python -m robot_rl.hardware.recording.recorder_main <Start, JSON>`.

Started by `recorder_process.py`. When its stdin is closed for any reason, it commits the open episode and
exits.
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

_POLL_INTERVAL = 100
"""Longest wait for a message between other tasks, ms."""
_NICE = 5
_FIRST_STATE_TIMEOUT = 10.0
"""Timeout of the first state, s."""
_REQUESTS = sys.stdin.fileno()


def main() -> int:
    """Record until stdin is closed or SIGTERM arrives; return the exit code."""
    start = msgspec.json.decode(sys.argv[1], type=Start)
    # Ctrl-C and the end of a terminal go to all of its processes, but the parent ends this one by its stdin.
    for number in (signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    ended = SignalFlag()
    signal.signal(signal.SIGTERM, ended)
    try:
        keys = load_client_keys(Path(start.keys)) if start.keys else None
        address = parse(start.address)
        recorder = Recorder(address, Path(start.root), start.cameras, keys, start.insecure)
        # Lowers only this thread, which writes to disk; the listening threads already run.
        os.nice(_NICE)
        try:
            _serve(recorder, ended)
        finally:
            recorder.close()
    except (RobotError, RecorderError, ValueError, OSError) as error:
        _send(Refusal(reason=str(error)))
        return 1
    return 0


class SignalFlag:
    """Signal handler that is true once its signal has arrived."""

    def __init__(self) -> None:
        self._set = False

    def __bool__(self) -> bool:
        return self._set

    def __call__(self, *_: object) -> None:
        self._set = True


def _serve(recorder: Recorder, ended: SignalFlag) -> None:
    deadline = time.monotonic() + _FIRST_STATE_TIMEOUT
    while recorder.streams.silent():
        if time.monotonic() > deadline:
            raise RecorderError(f"{recorder.robot} at {recorder.address} publishes no states")
        recorder.wait(_POLL_INTERVAL)
    recorder.streams.listen_to(_REQUESTS)
    left = len(RawDataset(recorder.writer.root).open)
    _send(Ready(robot=recorder.robot, session=recorder.session, cameras=recorder.cameras, left_open=left))
    unread = b""
    while not ended:
        if _REQUESTS not in recorder.wait(_POLL_INTERVAL):
            continue
        more = os.read(_REQUESTS, 1 << 16)
        if not more:
            return
        *lines, unread = (unread + more).split(b"\n")
        for line in lines:
            _send(_answer(recorder, line))


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


def _send(answer: Answer) -> None:
    # If the parent has died, stdin is closed as well.
    with suppress(BrokenPipeError):
        os.write(sys.stdout.fileno(), msgspec.json.encode(answer) + b"\n")


if __name__ == "__main__":
    sys.exit(main())
