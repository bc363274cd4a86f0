"""Records what happens on a bridge. It only listens: control never waits for it, nor knows of it."""

import os
import time
import uuid
from collections.abc import Iterable, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Final

import msgspec

from robot_rl.hardware.clock import MS, MonotonicClock
from robot_rl.hardware.connection import Connection, NoAnswer
from robot_rl.hardware.protocol.codec import ProtocolError
from robot_rl.hardware.protocol.endpoints import Address
from robot_rl.hardware.protocol.messages import Mode
from robot_rl.hardware.protocol.security import ClientKeys
from robot_rl.hardware.recording.episode import EpisodeWriter
from robot_rl.hardware.recording.raw import RawWriter
from robot_rl.hardware.recording.records import FORMAT, Clock, Footer, Header, Labels, Outcome, Received
from robot_rl.hardware.recording.requests import Ended, Status
from robot_rl.hardware.recording.stream_counter import (
    MESSAGE_STREAMS,
    StreamCounter,
    describe_reconnectors,
    sequence_number,
)
from robot_rl.hardware.recording.stream_listener import ReceivedMessage, StreamListener

_TIMEOUT: Final = 1.0
"""s that the server's answer is waited for."""
_LOOK_EVERY: Final = 100 * MS
_CLOCK_EVERY: Final = 1000 * MS


class RecorderError(Exception):
    """The recorder did not do what it was asked for."""


class _Seen(msgspec.Struct):
    """What the recorder itself wants to know of a state."""

    src: str
    t_sample: int
    mode: Mode


class Recorder:
    """Hears all streams all the time, and writes them down while an episode is open. For one thread."""

    def __init__(
        self,
        address: Address,
        root: Path,
        cameras: Sequence[str] | None = None,
        keys: ClientKeys | None = None,
        insecure: bool = False,
    ) -> None:
        """Listen from now on.

        Args:
            address: of the server.
            root: folder of the raw dataset, which is made if there is none.
            cameras: those that are recorded; None for all that the robot has.
            keys: required where the server's address is on a network.
            insecure: use a network without keys.

        Raises:
            RobotError: there is no server, or it does not let the recorder in.
            ValueError: no such camera, a network without keys, or another recorder writes there.
            OSError: the folder cannot be made.
        """
        self.address = address
        self._clock = MonotonicClock()
        self._greeting = (address, keys, insecure)
        self._line = self._greet()
        with ExitStack() as taken:
            taken.callback(lambda: self._line.close())
            self.cameras = self._chosen(cameras)
            self.streams = StreamListener(address, self.cameras, keys, insecure, self._clock)
            taken.callback(self.streams.close)
            self.writer = taken.enter_context(RawWriter(root))
            self._taken = taken.pop_all()
        self._decoder = msgspec.msgpack.Decoder(_Seen)
        self._seen: _Seen | None = None
        self._counters = {stream: StreamCounter(0) for stream in self.streams.names}
        self._episode: EpisodeWriter | None = None
        self._header: Header | None = None
        self._look_due = self._clock_due = 0
        self.last: Ended | None = None
        """The newest episode that was ended."""
        self.notice = ""
        """What went wrong without anybody asking."""

    @property
    def robot(self) -> str:
        """Its name."""
        return self._line.welcome.spec.name

    @property
    def session(self) -> str:
        """Of the server."""
        return self._line.welcome.session

    def close(self) -> None:
        """Listen no more; an open episode is committed as interrupted. Safe to call twice.

        Raises:
            RecorderError: the disk does not take it.
        """
        with self._taken:
            if self._episode is not None:
                self.end("interrupted")

    # ---- episodes --------------------------------------------------------------------------------------

    def begin(self, labels: Labels | None = None) -> str:
        """Write down everything that comes from now on. Returns the episode's uuid.

        Raises:
            RecorderError: one is open already, the robot is silent, or the disk takes nothing.
        """
        if self._episode is not None:
            raise RecorderError("an episode is open; end it first")
        self._write(self.streams.take_all())
        if self.streams.silent() or self._changed:
            raise RecorderError(f"{self.robot} at {self.address} is silent; see whether the server runs")
        if silent := [camera for camera in self.cameras if self.streams.silent(camera)]:
            raise RecorderError(
                f"no images come of {', '.join(silent)}: wait for them, or record without them"
            )
        welcome = self._line.welcome
        header = Header(
            format=FORMAT,
            episode=uuid.uuid4().hex,
            t=self._line.server_time(),
            tw=time.time_ns(),
            session=welcome.session,
            boot_id=welcome.boot_id,
            spec=welcome.spec,
            latency=welcome.latency,
            cameras=self.cameras,
            labels=labels or {},
        )
        try:
            self._episode = self.writer.begin(header)
        except OSError as error:
            raise RecorderError(f"no episode can be begun: {error}") from error
        self._header = header
        self._counters = {
            stream: StreamCounter(header.t, counter.next) for stream, counter in self._counters.items()
        }
        self._clock_due = 0
        return header.episode

    def end(self, outcome: Outcome, labels: Labels | None = None) -> Ended:
        """Commit the episode with all that has come until now.

        Raises:
            RecorderError: none is open, or the disk does not take it; what is there stays.
        """
        if self._episode is None:
            raise RecorderError("no episode is open")
        self._write(self.streams.take_all())
        if self._episode is None:
            raise RecorderError(f"the episode has ended before: {self.notice}")
        return self._end(outcome, labels or {})

    def _end(self, outcome: Outcome, labels: Labels, *trouble: str) -> Ended:
        assert self._episode is not None
        assert self._header is not None
        episode, header = self._episode, self._header
        self._episode = self._header = None
        began, t = self._clock.now(), self._line.server_time()
        counts = {stream: counter.end(t) for stream, counter in self._counters.items()}
        footer = Footer(
            outcome=outcome,
            t=t,
            tw=time.time_ns(),
            counts=counts,
            labels=labels,
            trouble=(*describe_reconnectors(counts, self.cameras), *trouble),
        )
        try:
            number = self.writer.commit(episode, footer)
        except OSError as error:
            raise RecorderError(
                f"{episode.folder} is not committed: {error}; free some space, then `robot-rl data repair`"
            ) from error
        took = (self._clock.now() - began) / MS
        footer = msgspec.structs.replace(footer, trouble=(*footer.trouble, *episode.trouble))
        self.last = Ended(
            episode=header.episode, number=number, seconds=(t - header.t) / 1e9, footer=footer, commit_ms=took
        )
        return self.last

    def status(self) -> Status:
        """How it does."""
        header = self._header
        counters = self._counters if header else {}
        disk = os.statvfs(self.writer.root)
        ages = {stream: self.streams.age(stream) for stream in self.streams.names}
        return Status(
            mode=None if self._seen is None or self.streams.silent() else self._seen.mode,
            episode=header.episode if header else "",
            seconds=(self._line.server_time() - header.t) / 1e9 if header else 0.0,
            received={stream: counter.received for stream, counter in counters.items()},
            missing=sum(counter.lost + counter.unwritten for counter in counters.values()),
            age_ms={stream: None if age is None else age / MS for stream, age in ages.items()},
            newest=self._seen.t_sample if self._seen else 0,
            free_bytes=disk.f_bavail * disk.f_frsize,
            last=self.last,
            notice=self.notice,
        )

    # ---- streams ---------------------------------------------------------------------------------------

    def wait(self, timeout: int) -> set[int]:
        """Write down what comes within `timeout` [ms]; see `StreamListener.wait`."""
        ready = self.streams.wait(timeout)
        self._write(self.streams.take())
        if self._clock.now() >= self._look_due:
            self._look()
        return ready

    def _write(self, heard: Iterable[ReceivedMessage]) -> None:
        for stream, came, frame in heard:
            try:
                number = sequence_number(stream, frame)
                if stream == "state":
                    self._see(self._decoder.decode(frame))
            except (ProtocolError, msgspec.DecodeError, UnicodeDecodeError):
                # It is damaged: its number never comes, so it is counted as lost.
                continue
            counter, t = self._counters[stream], self._line.to_server(came)
            counter.take(number, t)
            if self._episode and not self._episode.write(Received(stream=stream, t=t, frame=frame)):
                counter.unwritten += 1

    def _see(self, seen: _Seen) -> None:
        self._seen = seen
        if self._episode is not None and self._changed:
            self.notice = "the server began anew"
            try:
                self._end("interrupted", {}, self.notice)
            except RecorderError as error:
                self.notice = str(error)

    @property
    def _changed(self) -> bool:
        """Whether the states are those of another server than the one that was greeted."""
        return self._seen is not None and self._seen.src != self.session

    def _look(self) -> None:
        """What is to be done now and then."""
        now = self._clock.now()
        self._look_due = now + _LOOK_EVERY
        if self._changed:
            self._greet_anew()
        self._line.keep_time()
        if self._episode is not None and now >= self._clock_due:
            self._clock_due = now + _CLOCK_EVERY
            known = self._line.offset()
            self._episode.write(Clock(t=self._line.server_time(), offset=known.offset, bound=known.bound))

    # ---- the server ------------------------------------------------------------------------------------

    def _greet(self) -> Connection:
        line = Connection(*self._greeting, _TIMEOUT, self._clock)
        try:
            line.handshake("recorder", "observer")
        except BaseException:
            line.close()
            raise
        return line

    def _greet_anew(self) -> None:
        try:
            line = self._greet()
        except NoAnswer:
            # It has only just begun: there is a next time.
            return
        self._line.close()
        self._line = line

    def _chosen(self, cameras: Sequence[str] | None) -> tuple[str, ...]:
        """The cameras to record.

        Raises:
            ValueError: the robot has no such camera, or one that is called like a stream.
        """
        known = [camera.name for camera in self._line.welcome.spec.cameras]
        chosen = tuple(known if cameras is None else cameras)
        if missing := sorted(set(chosen) - set(known)):
            has = ", ".join(known) or "none"
            raise ValueError(f"{self.robot} publishes no camera {', '.join(missing)}; it has {has}")
        if clash := sorted(set(chosen) & set(MESSAGE_STREAMS)):
            raise ValueError(f"a camera cannot be recorded as {', '.join(clash)}: give it another name")
        return chosen
