"""Timeline of a recorded episode: state and active command of the arm, and camera images, at any time."""

from bisect import bisect_right
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from robot_rl.hardware.cameras.compression import image_of
from robot_rl.hardware.clock import MS
from robot_rl.hardware.protocol.arrays import Frame, decode_image
from robot_rl.hardware.protocol.codec import decode_server
from robot_rl.hardware.protocol.messages import Code, Commanded, Event, Mode, State
from robot_rl.hardware.recording.episode import Episode
from robot_rl.hardware.recording.records import Received
from robot_rl.hardware.state_interpolation import interpolate_state

ACTORS: Final = ("nobody", "policy", "human", "script", "handover")
"""Who acts, by number in the array `source`; `handover` is the return from a person to a policy."""
_ACTING: Final = {Mode.POLICY: 1, Mode.HUMAN: 2, Mode.SCRIPT: 3}
_NO_FORM: Final = (Code.NAN, Code.SHAPE)
"""Refusal codes of commands that describe no motion."""


class EpisodeSkipped(Exception):
    """The episode cannot be part of a dataset; the message says why."""


class Timeline:
    """States and commands of one episode. Times are ns on the server's clock."""

    def __init__(self, episode: Episode) -> None:
        """Read the messages of an episode.

        Raises:
            EpisodeSkipped: if it has no states.
            ValueError: if it is damaged.
        """
        states: list[State] = []
        commands: list[Commanded] = []
        self.events: list[Event] = []
        for record in episode.messages():
            if isinstance(record, Received):
                message = decode_server(record.frame)
                if isinstance(message, State) and message.t_sample:
                    states.append(message)
                elif isinstance(message, Commanded):
                    commands.append(message)
                elif isinstance(message, Event):
                    self.events.append(message)
        self.states = sorted(states, key=lambda state: state.t_sample)
        self.commands = sorted(commands, key=_effective)
        grips: dict[int, float | None] = {}
        self._grips: list[float | None] = []
        for command in self.commands:
            if command.gripper is not None and command.code not in _NO_FORM:
                grips[command.lease] = command.gripper
            self._grips.append(grips.get(command.lease))
        if not self.states:
            raise EpisodeSkipped("it has no measured state")

    def before(self, t: int) -> State:
        """The newest state until `t`, or the first state if none is that old."""
        return self.states[max(0, bisect_right(self.states, t, key=lambda state: state.t_sample) - 1)]

    def at(self, t: int, max_gap: int) -> State:
        """The state at `t`, with continuous quantities interpolated.

        Raises:
            EpisodeSkipped: if the states around it are farther apart than `max_gap` [ns].
        """
        found = interpolate_state(self.states, t, max_gap)
        if isinstance(found, str):
            raise EpisodeSkipped(f"{found}: states are missing")
        return found

    def active_command(self, t: int) -> "ActiveCommand | None":
        """The command in effect at `t`; None while the arm follows no command.

        Raises:
            EpisodeSkipped: if the recording lacks the executed command.
        """
        state = self.before(t)
        if state.mode not in _ACTING or not state.goal_seq:
            return None
        # The time of a simulated arm's state may be before the command that it already follows.
        followed = self._newest(max(t, state.tm), lambda c: c.code is None and c.command == state.goal_seq)
        if followed is None:
            raise EpisodeSkipped(f"command {state.goal_seq} was followed and is missing")
        lease = self.commands[followed].lease
        # A command that arrived after that state takes effect from the next state on.
        since = self._newest(t, lambda c: c.code is None and c.lease == lease, after=state.t_sample)
        followed = followed if since is None else since
        mode = self.commands[followed].mode
        newest = self._newest(t, lambda c: c.lease == lease and c.mode == mode and c.code not in _NO_FORM)
        newest = followed if newest is None else newest
        return ActiveCommand(
            self.commands[newest], self.commands[followed], self._grips[newest], _ACTING[state.mode]
        )

    def _newest(self, t: int, fits: Callable[[Commanded], bool], after: int = 0) -> int | None:
        """Index of the newest fitting command with `after` < time <= `t`, or None."""
        first, end = (bisect_right(self.commands, limit, key=_effective) for limit in (after, t))
        return next((i for i in range(end - 1, first - 1, -1) if fits(self.commands[i])), None)

    @property
    def known_from(self) -> int:
        """Time from which the executed command is known; an earlier one came before the recording.

        Raises:
            EpisodeSkipped: if no executed command is recorded.
        """
        first = self.states[0]
        if first.mode not in _ACTING or not first.goal_seq:
            return first.t_sample
        followed = next((command for command in self.commands if command.code is None), None)
        if followed is None:
            raise EpisodeSkipped("it lacks the commands that were followed")
        return max(first.t_sample, _effective(followed))

    @property
    def known_until(self) -> int:
        """Time until which the executed command is known; a command's message may come after the end."""
        known = {command.command for command in self.commands if command.code is None}
        return next(
            (
                state.t_sample
                for state in reversed(self.states)
                if state.mode not in _ACTING or not state.goal_seq or state.goal_seq in known
            ),
            self.states[-1].t_sample,
        )

    @property
    def modes(self) -> set[str]:
        """Modes of the executed commands."""
        return {command.mode for command in self.commands if command.code is None}


@dataclass(frozen=True)
class ActiveCommand:
    """Newest and executed command at one time."""

    newest: Commanded
    """The newest command of the acting client; it may have been refused."""
    followed: Commanded
    gripper: float | None
    """The newest opening requested under this lease."""
    actor: int
    """Index into `ACTORS`."""


class Track:
    """Images of one camera."""

    def __init__(self, episode: Episode, camera: str) -> None:
        """Read the times and sizes of the images.

        Raises:
            EpisodeSkipped: if there are no images.
            ValueError: if they have several sizes, or are no colour images.
        """
        self.camera = camera
        self._episode = episode
        latency = episode.header.latency
        delay = latency.cameras.get(camera) if latency else None
        self._late = round(delay.ms * MS) if delay else 0
        self.times: list[int] = []
        """Exposure times, ns, corrected for latency."""
        sizes = set()
        for frame, _ in self._frames():
            self.times.append(frame.t_capture - self._late)
            sizes.add((frame.height, frame.width))
            if frame.encoding == "depth16":
                raise ValueError(f"{camera} measures depth; name the other cameras with cameras=[…]")
        if not sizes:
            raise EpisodeSkipped(f"it has no image of {camera}")
        if len(sizes) > 1:
            raise ValueError(f"{episode.folder}: images of {camera} have several sizes, {sorted(sizes)}")
        self.size: tuple[int, int] = sizes.pop()

    def before(self, times: list[int]) -> list[int]:
        """Index of the newest image until each time."""
        return [bisect_right(self.times, t) - 1 for t in times]

    def images(self, wanted: list[int], block: int) -> Iterator[NDArray[np.uint8]]:
        """Images by index, in blocks [b, H, W, 3]; the indices in `wanted` must not decrease."""
        out: list[NDArray[np.uint8]] = []
        place = 0
        for number, (frame, payload) in enumerate(self._frames()):
            if place == len(wanted) or number < wanted[place]:
                continue
            image = image_of(frame, payload)
            while place < len(wanted) and wanted[place] == number:
                out.append(image)
                place += 1
                if len(out) == block:
                    yield np.stack(out)
                    out = []
        assert place == len(wanted)
        if out:
            yield np.stack(out)

    def _frames(self) -> Iterator[tuple[Frame, memoryview]]:
        return (decode_image(record.frame) for record in self._episode.images(self.camera))


def _effective(command: Commanded) -> int:
    """Time from which a command is in effect."""
    return command.t_applied or command.tm
