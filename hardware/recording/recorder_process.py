"""Client of a recorder process: starts it, sends requests and reads its answers."""

import os
import select
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Self, TypeVar

import msgspec

from robot_rl.hardware.child_process import child_environment
from robot_rl.hardware.recording.recorder import RecorderError
from robot_rl.hardware.recording.records import Outcome
from robot_rl.hardware.recording.requests import (
    Answer,
    AskStatus,
    Begin,
    Begun,
    End,
    Ended,
    Ready,
    Refusal,
    Start,
    Status,
)

_MODULE = "robot_rl.hardware.recording.recorder_main"
_START_TIMEOUT = 30.0
"""Timeout of the start, s, which includes imports and waiting for the server."""
_ANSWER_TIMEOUT = 60.0
"""Timeout of an answer, s; a commit waits for the disk."""
_EXIT_TIMEOUT = 90.0
"""Timeout of the final commit and exit, s."""

A = TypeVar("A")


class RecorderProcess:
    """Records a robot's streams: `with RecorderProcess(address, root) as r: r.begin(); …; r.end("success")`.

    If the program that uses it is killed, the process commits the open episode as interrupted and exits. All
    calls raise `RecorderError` on failure.
    """

    def __init__(
        self,
        address: str,
        root: Path,
        *,
        cameras: Sequence[str] | None = None,
        keys: Path | None = None,
        insecure: bool = False,
    ) -> None:
        """Start the process.

        Args:
            address: address of the robot's server.
            root: folder of the raw dataset; created if it does not exist.
            cameras: cameras to record; None for all cameras of the robot.
            keys: file of client keys; required for a network address.
            insecure: use a network without keys.

        Raises:
            RecorderError: if it cannot record.
        """
        start = Start(
            address=address,
            root=str(root.absolute()),
            cameras=None if cameras is None else tuple(cameras),
            keys=str(keys.absolute()) if keys else None,
            insecure=insecure,
        )
        self.process = subprocess.Popen(
            [
                sys.executable,
                "-P",
                "-m",
                _MODULE,
                msgspec.json.encode(start).decode(),
            ],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=child_environment(),
        )
        self._unread = b""
        self._skipped = 0
        self._decoder: msgspec.json.Decoder[Answer] = msgspec.json.Decoder(Answer)
        try:
            self.ready = self._receive(Ready, _START_TIMEOUT)
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def begin(self, labels: Mapping[str, str] | None = None) -> str:
        """Begin an episode and return its uuid."""
        return self._ask(Begun, Begin(labels=dict(labels or {}))).episode

    def end(self, outcome: Outcome, labels: Mapping[str, str] | None = None) -> Ended:
        """Commit the episode; it is on disk when this returns."""
        return self._ask(Ended, End(outcome=outcome, labels=dict(labels or {})))

    def status(self) -> Status:
        """Status of the recorder."""
        return self._ask(Status, AskStatus())

    def close(self) -> None:
        """Stop the process; an open episode is committed as interrupted. Safe to call twice."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        # A recorder that died has not read the last request, which closing would send again.
        with suppress(BrokenPipeError):
            self.process.stdin.close()
        try:
            self.process.wait(_EXIT_TIMEOUT)
        except subprocess.TimeoutExpired:
            # The disk does not respond. What was written can be recovered later.
            self.process.kill()
            self.process.wait()
        self.process.stdout.close()

    def _ask(self, answer: type[A], request: Begin | End | AskStatus) -> A:
        assert self.process.stdin is not None
        try:
            self.process.stdin.write(msgspec.json.encode(request) + b"\n")
            self.process.stdin.flush()
        except OSError:
            raise self._ended_error() from None
        return self._receive(answer, _ANSWER_TIMEOUT)

    def _receive(self, kind: type[A], timeout: float) -> A:
        assert self.process.stdout is not None
        deadline = time.monotonic() + timeout
        # Answers arrive in order: skip those of requests that timed out.
        while self._unread.count(b"\n") <= self._skipped:
            left = deadline - time.monotonic()
            if left <= 0 or not select.select([self.process.stdout], (), (), left)[0]:
                self._skipped += 1
                raise RecorderError(f"the recorder did not answer within {timeout:g} s")
            more = os.read(self.process.stdout.fileno(), 1 << 16)
            if not more:
                raise self._ended_error()
            self._unread += more
        *_, line, self._unread = self._unread.split(b"\n", self._skipped + 1)
        self._skipped = 0
        answer = self._decoder.decode(line)
        if isinstance(answer, Refusal):
            raise RecorderError(answer.reason)
        assert isinstance(answer, kind), answer
        return answer

    def _ended_error(self) -> RecorderError:
        code = self.process.wait()
        return RecorderError(
            f"the recorder has ended (exit code {code}); `robot-rl data repair` recovers what it has written"
        )
