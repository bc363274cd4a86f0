"""A recorder in a process of its own, as its user holds it: a terminal, a teleoperation, an actor, a test."""

import os
import select
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
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

_MODULE = "robot_rl.hardware.recording.process"
_START = 30.0
"""s that the process may take to begin: it imports, and waits for the server."""
_ANSWER = 60.0
"""s that an answer may take: a commit waits for a disk that may be slow."""
_END = 90.0
"""s that it may take to commit what is open, and to end."""

A = TypeVar("A")


class RecorderProcess:
    """Records a robot's streams: `with RecorderProcess(address, root) as r: r.begin(); …; r.end("success")`.

    The process survives nothing but ends well: when its user is killed, it commits the open episode as
    interrupted. All calls raise `RecorderError` with what went wrong.
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
        """Start it.

        Args:
            address: of the robot's server.
            root: folder of the raw dataset, which is made if there is none.
            cameras: those that are recorded; None for all that the robot has.
            keys: the client's file; required where the server's address is on a network.
            insecure: use a network without keys.

        Raises:
            RecorderError: it cannot record.
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
        self._late = 0
        self._decoder: msgspec.json.Decoder[Answer] = msgspec.json.Decoder(Answer)
        try:
            self.ready = self._hear(Ready, _START)
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def begin(self, labels: Mapping[str, str] | None = None) -> str:
        """Record from now on; returns the episode's uuid."""
        return self._ask(Begun, Begin(labels=dict(labels or {}))).episode

    def end(self, outcome: Outcome, labels: Mapping[str, str] | None = None) -> Ended:
        """Commit the episode; it counts when this returns."""
        return self._ask(Ended, End(outcome=outcome, labels=dict(labels or {})))

    def status(self) -> Status:
        """How it does."""
        return self._ask(Status, AskStatus())

    def close(self) -> None:
        """End it; an open episode is committed as interrupted. Safe to call twice."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.close()
        try:
            self.process.wait(_END)
        except subprocess.TimeoutExpired:
            # Its disk does not answer. What it has written is recovered later.
            self.process.kill()
            self.process.wait()
        self.process.stdout.close()

    def _ask(self, answer: type[A], request: Begin | End | AskStatus) -> A:
        assert self.process.stdin is not None
        try:
            self.process.stdin.write(msgspec.json.encode(request) + b"\n")
            self.process.stdin.flush()
        except OSError:
            raise self._gone() from None
        return self._hear(answer, _ANSWER)

    def _hear(self, kind: type[A], timeout: float) -> A:
        assert self.process.stdout is not None
        deadline = time.monotonic() + timeout
        # Answers come in order: those that nobody waited for are first.
        while self._unread.count(b"\n") <= self._late:
            left = deadline - time.monotonic()
            if left <= 0 or not select.select([self.process.stdout], (), (), left)[0]:
                self._late += 1
                raise RecorderError(f"the recorder does not answer within {timeout:g} s")
            more = os.read(self.process.stdout.fileno(), 1 << 16)
            if not more:
                raise self._gone()
            self._unread += more
        *_, line, self._unread = self._unread.split(b"\n", self._late + 1)
        self._late = 0
        answer = self._decoder.decode(line)
        if isinstance(answer, Refusal):
            raise RecorderError(answer.reason)
        assert isinstance(answer, kind), answer
        return answer

    def _gone(self) -> RecorderError:
        code = self.process.wait()
        return RecorderError(
            f"the recorder has ended (exit code {code}); `robot-rl data repair` recovers what it had written"
        )
