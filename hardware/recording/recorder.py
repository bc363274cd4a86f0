"""Records the message streams of a robot's server. It only listens, so control never waits for it."""

import os
import time
import uuid
from collections.abc import Iterable, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Final

import msgspec

from robot_rl.hardware.clock import MS, MonotonicClock
from robot_rl.hardware.connection import PROBE_WAIT, Connection, NoAnswer
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
    describe_silences,
    sequence_number,
)
from robot_rl.hardware.recording.stream_listener import ReceivedMessage, StreamListener

_TIMEOUT: Final = 1.0
"""Timeout of requests to the server, s."""
_CHECK_INTERVAL: Final = 100 * MS
_CLOCK_INTERVAL: Final = 1000 * MS


class RecorderError(Exception):
    """A request to the recorder failed."""


class _State(msgspec.Struct):
    """The fields of a state that the recorder reads."""

    src: str
    t_sample: int
    mode: Mode


class Recorder:
    """Receives all streams continuously, and writes them to disk while an episode is open. For one thread."""

    def __init__(
        self,
        address: Address,
        root: Path,
        cameras: Sequence[str] | None = None,
        keys: ClientKeys | None = None,
        insecure: bool = False,
    ) -> None:
        """Connect to the server and start listening.

        Args:
            address: address of the server.
            root: folder of the raw dataset; created if it does not exist.
            cameras: cameras to record; None for all cameras of the robot.
            keys: client keys; required for a network address.
            insecure: use a network without keys.

        Raises:
            RobotError: if there is no server or it refuses the recorder.
            ValueError: if a camera is unknown, a network is used without keys, or another recorder writes
            there. OSError: if the folder cannot be created.
        """
        self.address = address
        self._clock = MonotonicClock()
        self._endpoint = (address, keys, insecure)
        self._connection = self._connect()
        with ExitStack() as taken:
            taken.callback(lambda: self._connection.close())
            self.cameras = self._select_cameras(cameras)
            self.streams = StreamListener(address, self.cameras, keys, insecure, self._clock)
            taken.callback(self.streams.close)
            self.writer = taken.enter_context(RawWriter(root))
            self._taken = taken.pop_all()
        self._decoder = msgspec.msgpack.Decoder(_State)
        self._state: _State | None = None
        self._counters = {stream: StreamCounter(0) for stream in self.streams.names}
        self._episode: EpisodeWriter | None = None
        self._header: Header | None = None
        self._check_due = self._clock_due = 0
        self.last: Ended | None = None
        """The last ended episode."""
        self.notice = ""
        """Problem that occurred outside a request."""

    @property
    def robot(self) -> str:
        """Name of the robot."""
        return self._connection.welcome.spec.name

    @property
    def session(self) -> str:
        """Session of the server."""
        return self._connection.welcome.session

    def close(self) -> None:
        """Stop listening; an open episode is committed as interrupted. Safe to call twice.

        Raises:
            RecorderError: if writing fails.
        """
        with self._taken:
            if self._episode is not None:
                self.end("interrupted")

    # ---- episodes --------------------------------------------------------------------------------------

    def begin(self, labels: Labels | None = None) -> str:
        """Begin an episode with all messages from now on. Returns its uuid.

        Raises:
            RecorderError: if an episode is open, the robot or a camera is silent, or writing fails.
        """
        if self._episode is not None:
            raise RecorderError("an episode is open; end it first")
        self._write(self.streams.take_all())
        if self.streams.silent() or self._changed:
            raise RecorderError(f"{self.robot} at {self.address} is silent; check that the server runs")
        if silent := [camera for camera in self.cameras if self.streams.silent(camera)]:
            raise RecorderError(f"no images from {', '.join(silent)}: wait for them, or record without them")
        welcome = self._connection.welcome
        header = Header(
            format=FORMAT,
            episode=uuid.uuid4().hex,
            t=self._connection.server_time(),
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
            raise RecorderError(f"cannot begin an episode: {error}") from error
        self._header = header
        self._counters = {
            stream: StreamCounter(header.t, counter.next) for stream, counter in self._counters.items()
        }
        self._clock_due = 0
        return header.episode

    def end(self, outcome: Outcome, labels: Labels | None = None) -> Ended:
        """Commit the episode with all messages received until now.

        Raises:
            RecorderError: if no episode is open, or writing fails; what was written stays.
        """
        if self._episode is None:
            raise RecorderError("no episode is open")
        self._write(self.streams.take_all())
        if self._episode is None:
            raise RecorderError(f"the episode has already ended: {self.notice}")
        return self._end(outcome, labels or {})

    def _end(self, outcome: Outcome, labels: Labels, *trouble: str) -> Ended:
        assert self._episode is not None
        assert self._header is not None
        episode, header = self._episode, self._header
        self._episode = self._header = None
        began, t = self._clock.now(), self._connection.server_time()
        counts = {stream: counter.end(t) for stream, counter in self._counters.items()}
        footer = Footer(
            outcome=outcome,
            t=t,
            tw=time.time_ns(),
            counts=counts,
            labels=labels,
            trouble=(*describe_silences(counts, self.cameras), *trouble),
        )
        try:
            number = self.writer.commit(episode, footer)
        except OSError as error:
            raise RecorderError(
                f"{episode.folder} is not committed: {error}; free space, then run `robot-rl data repair`"
            ) from error
        took = (self._clock.now() - began) / MS
        footer = msgspec.structs.replace(footer, trouble=(*footer.trouble, *episode.trouble))
        self.last = Ended(
            episode=header.episode, number=number, seconds=(t - header.t) / 1e9, footer=footer, commit_ms=took
        )
        return self.last

    def status(self) -> Status:
        """Status of the recorder."""
        header = self._header
        counters = self._counters if header else {}
        disk = os.statvfs(self.writer.root)
        ages = {stream: self.streams.age(stream) for stream in self.streams.names}
        return Status(
            mode=None if self._state is None or self.streams.silent() else self._state.mode,
            episode=header.episode if header else "",
            seconds=(self._connection.server_time() - header.t) / 1e9 if header else 0.0,
            received={stream: counter.received for stream, counter in counters.items()},
            missing=sum(counter.lost + counter.unwritten for counter in counters.values()),
            age_ms={stream: None if age is None else age / MS for stream, age in ages.items()},
            newest=self._state.t_sample if self._state else 0,
            free_bytes=disk.f_bavail * disk.f_frsize,
            last=self.last,
            notice=self.notice,
        )

    # ---- streams ---------------------------------------------------------------------------------------

    def wait(self, timeout: int) -> set[int]:
        """Write what arrives within `timeout` [ms]; see `StreamListener.wait`."""
        ready = self.streams.wait(timeout)
        self._write(self.streams.take())
        if self._clock.now() >= self._check_due:
            self._check()
        return ready

    def _write(self, received: Iterable[ReceivedMessage]) -> None:
        for stream, arrived, frame in received:
            try:
                number = sequence_number(stream, frame)
                if stream == "state":
                    self._update_state(self._decoder.decode(frame))
            except (ProtocolError, msgspec.DecodeError, UnicodeDecodeError):
                # A damaged message: its number is missing, so it is counted as lost.
                continue
            counter, t = self._counters[stream], self._connection.to_server(arrived)
            counter.add(number, t)
            if self._episode and not self._episode.write(Received(stream=stream, t=t, frame=frame)):
                counter.unwritten += 1

    def _update_state(self, state: _State) -> None:
        self._state = state
        if self._episode is not None and self._changed:
            self.notice = "the server was restarted"
            try:
                self._end("interrupted", {}, self.notice)
            except RecorderError as error:
                self.notice = str(error)

    @property
    def _changed(self) -> bool:
        """Whether the states come from another server session than the connected one."""
        return self._state is not None and self._state.src != self.session

    def _check(self) -> None:
        """Periodic tasks: reconnect to a restarted server, sync clocks and record the clock offset."""
        now = self._clock.now()
        self._check_due = now + _CHECK_INTERVAL
        if self._changed:
            self._reconnect()
        self._connection.keep_time(PROBE_WAIT)
        if self._episode is not None and now >= self._clock_due:
            self._clock_due = now + _CLOCK_INTERVAL
            known = self._connection.offset()
            self._episode.write(
                Clock(t=self._connection.server_time(), offset=known.offset, bound=known.bound)
            )

    # ---- the server ------------------------------------------------------------------------------------

    def _connect(self) -> Connection:
        connection = Connection(*self._endpoint, _TIMEOUT, self._clock)
        try:
            connection.handshake("recorder", "observer")
        except BaseException:
            connection.close()
            raise
        return connection

    def _reconnect(self) -> None:
        try:
            connection = self._connect()
        except NoAnswer:
            # The server has just started; retried at the next check.
            return
        self._connection.close()
        self._connection = connection

    def _select_cameras(self, cameras: Sequence[str] | None) -> tuple[str, ...]:
        """Select the cameras to record.

        Raises:
            ValueError: if the robot has no such camera, or a camera has the name of a stream.
        """
        known = [camera.name for camera in self._connection.welcome.spec.cameras]
        chosen = tuple(known if cameras is None else cameras)
        if missing := sorted(set(chosen) - set(known)):
            has = ", ".join(known) or "none"
            raise ValueError(f"{self.robot} has no camera {', '.join(missing)}; it has {has}")
        if len(set(chosen)) < len(chosen):
            raise ValueError(f"cameras=[{','.join(chosen)}]: name each once")
        if clash := sorted(set(chosen) & set(MESSAGE_STREAMS)):
            raise ValueError(f"a camera cannot be recorded as {', '.join(clash)}: give it another name")
        return chosen
