"""Resamples one recorded episode to steps with a fixed rate.

Times are device times. A step is at t, the next one at t + 1 / rate:

    observations          at t: joints and tool point interpolated, all else the newest until t
    action                from the arm at t to the newest goal requested until the next step
    applied_action        the same for the goal that was executed
    reward, terminated    1 and true at the last step of a success; truncated at the last step otherwise
    source                who acted, an index into the `sources` of the collection (`mark_handovers`)
    time                  t, ns on the robot's clock
    age_ms.<…>            age of the state, the gripper reading and each camera's image at t
"""

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from robot_rl.data.episode_notes import SOURCE
from robot_rl.data.raw.robot_environment import ActionConverter
from robot_rl.data.raw.timeline import ACTORS, EpisodeSkipped, Timeline, Track
from robot_rl.data.writer import Episode, Streamed
from robot_rl.envs.handover import HOLD_MS, RAMP_MS
from robot_rl.envs.robot_state import RobotState
from robot_rl.hardware.clock import MS
from robot_rl.hardware.connection import RobotError
from robot_rl.hardware.gripper import LONGEST_CALL_S
from robot_rl.hardware.protocol.messages import State

AGE: Final = "age_ms."
_BLOCK: Final = 32
"""Images in memory at a time."""
_TYPES: Final[Mapping[str, Any]] = {"time": np.int64, "source": np.uint8}


class Steps:
    """Steps of one episode."""

    def __init__(
        self,
        timeline: Timeline,
        converter: ActionConverter,
        senses: RobotState,
        tracks: Sequence[Track],
        rate: float,
        max_age_ms: float,
    ) -> None:
        """Compute the times of the steps.

        Args:
            timeline: recorded states and commands.
            converter: makes actions.
            senses: makes observations.
            tracks: images of the cameras.
            rate: steps per second.
            max_age_ms: largest age of a reading, ms; that of the gripper may be 5 s.

        Raises:
            EpisodeSkipped: if the episode is too short.
        """
        self._timeline, self._converter, self._senses, self._tracks = timeline, converter, senses, tracks
        self._rate, self._max_age = rate, max_age_ms
        self._grips = any(state.gripper for state in timeline.states)
        begin = max(timeline.known_from, *(track.times[0] for track in tracks), 0)
        last = timeline.states[-1].t_sample
        if last - timeline.known_until <= max_age_ms * MS:
            last = timeline.known_until
        number = max(0, int((last - begin) * rate / 1e9)) + 1
        times = [begin + round(k * 1e9 / rate) for k in range(number)]
        self._times = [t for t in times if t <= last]
        """Times of the steps and of the end of the last one, ns."""
        if len(self._times) < 2:
            raise EpisodeSkipped("it is shorter than a step")

    @property
    def begin(self) -> int:
        """Time of the first step, ns."""
        return self._times[0]

    def arrays(self, success: bool) -> Episode:
        """Arrays of the episode without images.

        Raises:
            EpisodeSkipped: if data is missing or older than `max_age_ms`.
        """
        times = self._times[:-1]
        rows: dict[str, list[Any]] = {}
        for t, following in zip(times, self._times[1:], strict=True):
            for key, value in self._row(t, following).items():
                rows.setdefault(key, []).append(value)
        arrays: dict[str, Any] = {key: np.array(values, _TYPES.get(key)) for key, values in rows.items()}
        arrays = {key: single(values) for key, values in arrays.items()}
        arrays[SOURCE] = mark_handovers(arrays[SOURCE], self._rate)
        for track in self._tracks:
            chosen = track.before(times)
            ages = [(t - track.times[number]) / MS for t, number in zip(times, chosen, strict=True)]
            arrays[AGE + track.camera] = np.array(ages, np.float32)
        for key, values in arrays.items():
            if key.startswith(AGE) and values.max() > _limit(key, self._max_age):
                raise EpisodeSkipped(f"no {key.removeprefix(AGE)} for {values.max():.0f} ms")
        ends = np.arange(len(times)) == len(times) - 1
        return {
            **arrays,
            "reward": (ends & success).astype(np.float32),
            "terminated": ends & success,
            "truncated": ends & (not success),
        }

    def sensor(self, name: str) -> np.ndarray:
        """The newest reading of a sensor until each step, float64 [T, n].

        Raises:
            EpisodeSkipped: if a state lacks it.
        """
        try:
            return np.array([self._timeline.before(t).sensors[name] for t in self._times[:-1]])
        except KeyError:
            raise EpisodeSkipped(f"a state has no {name}") from None

    def gaps(self, episode: Episode, longest_ms: float) -> dict[str, float]:
        """Sources in `episode` whose data was older than `longest_ms`, with the largest age, ms."""
        ages = {
            key.removeprefix(AGE): float(np.asarray(values).max())
            for key, values in episode.items()
            if key.startswith(AGE)
        }
        return {name: round(age, 1) for name, age in ages.items() if age > _limit(AGE + name, longest_ms)}

    def images(self) -> dict[str, Streamed]:
        """Images of each camera at the steps."""
        times, byte = self._times[:-1], np.dtype(np.uint8)
        return {
            track.camera: Streamed(
                (len(times), *track.size, 3), byte, partial(track.images, track.before(times), _BLOCK)
            )
            for track in self._tracks
        }

    def _row(self, t: int, following: int) -> dict[str, Any]:
        timeline = self._timeline
        state = timeline.at(t, round(self._max_age * MS))
        try:
            row: dict[str, Any] = dict(self._senses.raw(state))
        except RobotError as error:
            raise EpisodeSkipped(str(error)) from error
        row["time"] = t
        row[AGE + "state"] = (t - timeline.before(t).t_sample) / MS
        if self._grips and state.gripper is None:
            raise EpisodeSkipped("the gripper had not been read yet")
        if state.gripper is not None:
            row[AGE + "gripper"] = (t - state.gripper.t) / MS
        return row | self._actions(state, following)

    def _actions(self, state: State, until: int) -> dict[str, Any]:
        timeline, converter = self._timeline, self._converter
        asked = timeline.active_command(until)
        gripper = timeline.before(until).gripper
        applied_opening = gripper.goal if gripper else 1.0
        if gripper and converter.by_sign and gripper.goal == gripper.opening:
            # Not commanded yet: with only two positions, it is at the nearer one.
            applied_opening = float(gripper.opening >= 0.5)
        if asked is None:
            still = converter.action(state, None, _closing(applied_opening))
            return {"action": still, "applied_action": still, "source": 0}
        opening = applied_opening if asked.gripper is None else asked.gripper
        goals = [
            converter.goal(command, values, timeline.before(command.tm))
            for command, values in (
                (asked.newest, asked.newest.data),
                (asked.followed, asked.followed.applied),
            )
        ]
        return {
            "action": converter.action(state, goals[0], _closing(opening)),
            "applied_action": converter.action(state, goals[1], _closing(applied_opening)),
            "source": asked.actor,
        }


def _limit(age: str, limit_ms: float) -> float:
    """Largest value of an array of ages, ms."""
    return max(limit_ms, 1000 * LONGEST_CALL_S) if age == AGE + "gripper" else limit_ms


def mark_handovers(source: NDArray[np.uint8], rate: float) -> NDArray[np.uint8]:
    """Who acted in each step [T] of an episode, with the steps of each return to the policy as `handover`.

    The robot's server counts them as the person's, while the arm holds, and as the policy's, while its action
    is scaled up. Neither shows what should be done.

    Args:
        source: who acted as the server saw it, indices into `ACTORS`.
        rate: steps per second.
    """
    nobody, policy, human, handover = (
        ACTORS.index(name) for name in ("nobody", "policy", "human", "handover")
    )
    hold, ramp = (round(time * rate / 1e3) for time in (HOLD_MS, RAMP_MS))
    marked = source.copy()
    # Between two leases, the arm may be without a command for a moment.
    acting = np.flatnonzero(source != nobody)
    returns = (source[acting[:-1]] == human) & (source[acting[1:]] == policy)
    for step in acting[1:][returns]:
        for part, actor in ((slice(max(step - hold, 0), step), human), (slice(step, step + ramp), policy)):
            marked[part][source[part] == actor] = handover
    return marked


def single(values: np.ndarray) -> np.ndarray:
    """Convert float64 to float32, the dtype of observations and actions."""
    return values.astype(np.float32) if values.dtype == np.float64 else values


def _closing(opening: float) -> float:
    """robosuite's gripper action: -1 opens, 1 closes. A measured opening may be slightly beyond 0 or 1."""
    return 1.0 - 2.0 * min(max(opening, 0.0), 1.0)
