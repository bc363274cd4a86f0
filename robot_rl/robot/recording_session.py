"""Records a series of episodes, started and ended by keys or by time, and formats their status."""

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Final

from robot_rl.envs.instruction import INSTRUCTION, encode_instruction
from robot_rl.hardware.recording.recorder import RecorderError
from robot_rl.hardware.recording.recorder_process import RecorderProcess
from robot_rl.hardware.recording.records import Outcome
from robot_rl.hardware.recording.requests import Ended, Status
from robot_rl.hardware.teleop.terminal_keys import KeyReader

KEYS: Final[Mapping[str, Outcome]] = {"s": "success", "f": "failure", "d": "discarded"}
NEXT: Final = "n"
"""Key that chooses the next of several instructions."""
HELP: Final = "b begin, s success, f failure, d discard, q quit"
STILL_OPEN: Final = "an episode is open: s, f or d ends it"
_REFRESH = 0.2
_POLL_INTERVAL = 0.05
_FIRST_IMAGE_TIMEOUT = 20.0
"""Timeout of a camera's first image, s: its process may have just started."""
_SILENCE_LIMIT = 1000.0
"""Time without a state or image that is reported to the user, ms."""

Labels = Mapping[str, str]
Say = Callable[[str], None]


def with_instruction(labels: Labels, instruction: str | None) -> dict[str, str]:
    """Labels of an episode, with the instruction that is given beside them, if there is one.

    Raises:
        ValueError: if the labels have another one, or it cannot be stored.
    """
    asked = labels.get(INSTRUCTION) if instruction is None else instruction
    if asked is None:
        return dict(labels)
    if labels.get(INSTRUCTION, asked) != asked:
        raise ValueError(
            f"instruction={asked} and labels.{INSTRUCTION}={labels[INSTRUCTION]}: give one of them"
        )
    encode_instruction(asked)
    return {**labels, INSTRUCTION: asked}


class KeyedRecorder:
    """Recorder whose episodes begin and end by key presses."""

    def __init__(
        self,
        recorder: RecorderProcess,
        labels: Labels,
        say: Say,
        instructions: Sequence[str] = (),
        first: int = 0,
    ) -> None:
        """Wrap a recorder.

        Args:
            recorder: the recorder process.
            labels: labels of each episode.
            say: prints a line.
            instructions: of successive episodes, in turns, which the key n skips; that of a discarded or
                interrupted one is asked again.
            first: number of earlier episodes that were a success or failure, which says whose turn it is.
        """
        self._recorder, self._labels, self._say = recorder, labels, say
        self._instructions, self._turn = instructions, first
        self._described: Ended | None = None

    @property
    def instruction(self) -> str:
        """Instruction of the open episode, or of the next one; "" without instructions."""
        return self._instructions[self._turn % len(self._instructions)] if self._instructions else ""

    @property
    def chooses(self) -> bool:
        """Whether there are several instructions to choose from."""
        return len(self._instructions) > 1

    def press(self, key: str) -> Status:
        """Handle a key ("" for none) and return the recorder's status afterwards.

        Raises:
            RecorderError: if the recorder process has ended.
        """
        try:
            if key == "b":
                asked = {INSTRUCTION: self.instruction} if self.instruction else {}
                self._recorder.begin({**self._labels, **asked})
            elif key == NEXT and self.chooses:
                if self._recorder.status().episode:
                    self._say("the instruction of an open episode cannot be changed")
                else:
                    self._turn += 1
            elif key in KEYS:
                self._described = self._recorder.end(KEYS[key])
                self._say(describe(self._described))
                self._turn += KEYS[key] != "discarded"
        except RecorderError as error:
            if self._recorder.process.poll() is not None:
                raise
            self._say(str(error))
        status = self._recorder.status()
        if status.last != self._described:
            # The recorder ended this episode without a request.
            self._described = status.last
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
    """Begin and end episodes by keys, until q or `stopped`.

    Args:
        recorder: the recorder process.
        keyboard: source of the keys.
        labels: labels of each episode.
        say: prints a line.
        show: replaces the status line.
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
    """Record a number of episodes of fixed duration, once all streams arrive.

    An episode that is stopped early is interrupted.

    Raises:
        RecorderError: if a camera gives no images, or the recorder has ended.
    """
    deadline = time.monotonic() + _FIRST_IMAGE_TIMEOUT
    while _silent_streams(recorder.status()) and time.monotonic() < deadline and not stopped():
        time.sleep(_POLL_INTERVAL)
    for _ in range(episodes):
        recorder.begin(labels)
        end = time.monotonic() + seconds
        while not stopped() and time.monotonic() < end:
            time.sleep(max(0.0, min(_POLL_INTERVAL, end - time.monotonic())))
        say(describe(recorder.end("interrupted" if stopped() else outcome)))
        if stopped():
            return


def describe(ended: Ended) -> str:
    """Format a summary line of an episode."""
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
    """Format a status line of the recorder."""
    parts = [f"RECORDING {status.seconds:.1f} s" if status.episode else f"ready ({HELP})"]
    parts.append(f"robot {status.mode}" if status.mode else "the robot is silent")
    if status.missing:
        parts.append(f"{status.missing} messages missing")
    if silent := _silent_streams(status):
        parts.append(f"nothing from {', '.join(silent)}")
    if status.notice:
        parts.append(status.notice)
    parts.append(f"{status.free_bytes / 1e9:.1f} GB free")
    return "; ".join(parts)


def _silent_streams(status: Status) -> list[str]:
    """Streams that should never be silent but are."""
    ages = {name: age for name, age in status.age_ms.items() if name not in ("command", "event")}
    return [name for name, age in ages.items() if age is None or age > _SILENCE_LIMIT]
