"""Counts received and missing messages of a stream, during recording and when reading it back."""

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
"""Streams other than images; a camera may not have such a name."""
SILENT: Final = 1000 * MS
"""Longest normal gap between states or images, ns; longer ones are reported."""


class _Numbered(msgspec.Struct):
    """The part of a message that the recorder decodes."""

    seq: Natural


_decoder = msgspec.msgpack.Decoder(_Numbered)


def sequence_number(stream: str, frame: memoryview) -> int:
    """Sequence number of a message in its stream.

    Raises:
        ProtocolError: if the message is damaged.
    """
    if stream not in MESSAGE_STREAMS:
        return decode_image(frame)[0].number
    try:
        return _decoder.decode(frame).seq
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise ProtocolError(Code.MALFORMED, str(error)) from None


@dataclass
class StreamCounter:
    """Counts of one stream during one episode."""

    last: int
    """Arrival of the newest message, ns; initially the start of the episode."""
    next: int | None = None
    """Next expected number; None before the first message."""
    received: int = 0
    lost: int = 0
    unwritten: int = 0
    longest: int = 0

    def add(self, number: int, t: int) -> None:
        """Count a message that arrived at `t`. A smaller number than expected: server or camera restarted."""
        if self.next is not None and number > self.next:
            self.lost += number - self.next
        self.next = number + 1
        self.received += 1
        self._advance(t)

    def end(self, t: int) -> Count:
        """Return the counts of the episode, which ends at `t`."""
        self._advance(t)
        return Count(
            received=self.received, lost=self.lost, unwritten=self.unwritten, longest_ns=self.longest
        )

    def _advance(self, t: int) -> None:
        self.longest = max(self.longest, t - self.last)
        self.last = max(self.last, t)


def describe_silences(counts: Mapping[str, Count], cameras: Iterable[str]) -> tuple[str, ...]:
    """Messages to the user about gaps in states and images."""
    return tuple(
        f"{stream}: nothing for {counts[stream].longest_ns / 1e9:.1f} s"
        for stream in ("state", *cameras)
        if counts[stream].longest_ns > SILENT
    )
