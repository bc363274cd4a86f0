"""What came of a stream and what did not, while it is recorded and when it is read again."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final

import msgspec

from robot_rl.hardware.clock import MS
from robot_rl.hardware.protocol.arrays import decode_image
from robot_rl.hardware.protocol.codec import ProtocolError
from robot_rl.hardware.protocol.messages import Code, Natural
from robot_rl.hardware.recording.records import Count

MESSAGE_STREAMS: Final = ("state", "command", "event")
"""Streams that are not images; a camera may not have such a name."""
SILENT: Final = 1000 * MS
"""States and images that do not come for so long are trouble, ns."""


class _Numbered(msgspec.Struct):
    """What a recorder must know of a message."""

    seq: Natural


_decoder = msgspec.msgpack.Decoder(_Numbered)


def sequence_number(stream: str, frame: memoryview) -> int:
    """The number of a message in its stream; each is one more than the one before.

    Raises:
        ProtocolError: it is damaged.
    """
    if stream not in MESSAGE_STREAMS:
        return decode_image(frame)[0].number
    try:
        return _decoder.decode(frame).seq
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise ProtocolError(Code.MALFORMED, str(error)) from None


@dataclass
class StreamCounter:
    """Of one stream during one episode."""

    last: int
    """When the newest came, at first when the episode began, ns."""
    next: int | None = None
    """The number that is due; None before the first."""
    received: int = 0
    lost: int = 0
    unwritten: int = 0
    longest: int = 0

    def take(self, number: int, t: int) -> None:
        """One has come at `t`. A number that is too small is one of a server or a camera that began anew."""
        if self.next is not None and number > self.next:
            self.lost += number - self.next
        self.next = number + 1
        self.received += 1
        self._wait_until(t)

    def end(self, t: int) -> Count:
        """The episode ends at `t`."""
        self._wait_until(t)
        return Count(
            received=self.received, lost=self.lost, unwritten=self.unwritten, longest_ns=self.longest
        )

    def _wait_until(self, t: int) -> None:
        self.longest = max(self.longest, t - self.last)
        self.last = max(self.last, t)


def describe_reconnectors(counts: Mapping[str, Count], cameras: Iterable[str]) -> tuple[str, ...]:
    """For people: which of the streams that never rest were silent."""
    return tuple(
        f"{stream}: nothing for {counts[stream].longest_ns / 1e9:.1f} s"
        for stream in ("state", *cameras)
        if counts[stream].longest_ns > SILENT
    )
