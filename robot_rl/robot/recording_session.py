"""Episodes one after the other, by keys or by the clock, and what a person is told of them."""

import time
from collections.abc import Callable, Mapping
from typing import Final

from robot_rl.hardware.recording.client import RecorderProcess
from robot_rl.hardware.recording.recorder import RecorderError
from robot_rl.hardware.recording.records import Outcome
from robot_rl.hardware.recording.requests import Ended, Status
from robot_rl.hardware.teleop.terminal_keys import KeyReader

KEYS: Final[Mapping[str, Outcome]] = {"s": "success", "f": "failure", "d": "discarded"}
HELP: Final = "b begin, s success, f failure, d discard, q quit"
STILL_OPEN: Final = "an episode is open: s, f or d ends it"
_REFRESH = 0.2
_LOOK = 0.05
_FIRST = 20.0
"""s that a camera is given for its first image: its process may just have been started."""
_SILENT = 1000.0
"""ms without a state or an image that a person is told of."""

Labels = Mapping[str, str]
Say = Callable[[str], None]


class KeyedRecorder:
    """A recorder whose episodes begin and end by keys."""

    def __init__(self, recorder: RecorderProcess, labels: Labels, say: Say) -> None:
        """Give it a recorder, labels for each episode, and what prints a line."""
        self._recorder, self._labels, self._say = recorder, labels, say
        self._told: Ended | None = None

    def press(self, key: str) -> Status:
        """Do what a key says, "" for none; how the recorder does after it.

        Raises:
            RecorderError: the recorder has ended.
        """
        try:
            if key == "b":
                self._recorder.begin(self._labels)
            elif key in KEYS:
                self._told = self._recorder.end(KEYS[key])
                self._say(describe(self._told))
        except RecorderError as error:
            if self._recorder.process.poll() is not None:
                raise
            self._say(str(error))
        status = self._recorder.status()
        if status.last != self._told:
            # One that nobody here has ended.
            self._told = status.last
            self._say(describe(status.last) if status.last else "")
        return status


def record_by_keys(
    recorder: RecorderProcess,
    keyboard: KeyReader,
    labels: Labels,
    say: Say,
    show: Say,
    stopped: Callable[[], bool],
) -> None:
    """Begin and end episodes as keys say, until q or `stopped`.

    Args:
        recorder: the process.
        keyboard: whose keys count.
        labels: of each episode.
        say: prints a line.
        show: replaces the line that is there.
    """
    keyed = KeyedRecorder(recorder, labels, say)
    while not stopped():
        key = keyboard.key(_REFRESH)
        status = keyed.press(key)
        if key == "q":
            if not status.episode:
                return
            say(STILL_OPEN)
        show(status_line(status))


def record_by_time(
    recorder: RecorderProcess,
    seconds: float,
    episodes: int,
    outcome: Outcome,
    labels: Labels,
    say: Say,
    stopped: Callable[[], bool],
) -> None:
    """Record so many episodes of so long, once all streams come. One that is stopped is interrupted.

    Raises:
        RecorderError: a camera gives no image, or the recorder has ended.
    """
    deadline = time.monotonic() + _FIRST
    while _missing(recorder.status()) and time.monotonic() < deadline and not stopped():
        time.sleep(_LOOK)
    for _ in range(episodes):
        recorder.begin(labels)
        end = time.monotonic() + seconds
        while not stopped() and time.monotonic() < end:
            time.sleep(max(0.0, min(_LOOK, end - time.monotonic())))
        say(describe(recorder.end("interrupted" if stopped() else outcome)))
        if stopped():
            return


def describe(ended: Ended) -> str:
    """A line about an episode."""
    footer = ended.footer
    counts = ", ".join(f"{count.received} {stream}" for stream, count in footer.counts.items())
    missing = [
        f"{count.lost + count.unwritten} {stream} missing"
        for stream, count in footer.counts.items()
        if count.lost or count.unwritten
    ]
    trouble = "; ".join([*missing, *footer.trouble])
    return (
        f"episode {ended.number}: {footer.outcome}, {ended.seconds:.1f} s, {counts}"
        + (f"; FLAGGED: {trouble}" if footer.flagged else "")
        + f"; committed in {ended.commit_ms:.0f} ms"
    )


def status_line(status: Status) -> str:
    """How it does, in a line."""
    parts = [f"RECORDING {status.seconds:.1f} s" if status.episode else f"ready ({HELP})"]
    parts.append(f"robot {status.mode}" if status.mode else "the robot is silent")
    if status.missing:
        parts.append(f"{status.missing} messages missing")
    if missing := _missing(status):
        parts.append(f"nothing from {', '.join(missing)}")
    if status.notice:
        parts.append(status.notice)
    parts.append(f"{status.free_bytes / 1e9:.1f} GB free")
    return "; ".join(parts)


def _missing(status: Status) -> list[str]:
    """Streams that never rest and do."""
    ages = {name: age for name, age in status.age_ms.items() if name not in ("command", "event")}
    return [name for name, age in ages.items() if age is None or age > _SILENT]
