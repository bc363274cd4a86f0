"""Derives a dataset with a fixed rate from recordings; the same recordings give the same bytes."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Literal

import numpy as np
from numpy.typing import NDArray

from robot_rl.data.raw.robot_environment import ActionConverter, make_action_converter, robot_environment
from robot_rl.data.raw.steps import Steps
from robot_rl.data.raw.timeline import ACTORS, EpisodeSkipped, Timeline, Track
from robot_rl.data.writer import DatasetWriter
from robot_rl.envs.instruction import INSTRUCTION, encode_instruction
from robot_rl.envs.observation import IMAGE_PREFIX, ObservationSpec
from robot_rl.envs.robot_state import RobotState
from robot_rl.envs.scene_state import REBUILT, SCENE
from robot_rl.files.durable import atomic_outputs
from robot_rl.hardware.protocol.codec import ProtocolError
from robot_rl.hardware.recording.episode import DamagedEpisode
from robot_rl.hardware.recording.episode import Episode as Raw
from robot_rl.hardware.recording.raw import RawDataset
from robot_rl.hardware.recording.records import Count, Outcome
from robot_rl.hardware.spec import RobotSpec

_EVENTS: Final = 100
"""Most events per episode stored in a dataset; the recording has all."""


RATE: Final = 20.0
"""Steps per second where nothing else is asked for."""


def check_rate(rate: float | None) -> None:
    """Raises ValueError if these are no steps per second."""
    if rate is not None and not 0 < rate < float("inf"):
        raise ValueError(f"rate={rate:g}: it must be more than 0")


@dataclass(frozen=True)
class DeriveConfig:
    """Options of `derive`."""

    rate: float
    """Steps per second."""
    cameras: tuple[str, ...] | None = None
    """Cameras to include; None for all that were recorded."""
    outcomes: tuple[Outcome, ...] = ("success", "failure")
    max_age_ms: float = 500.0
    """An episode with a state, gripper reading or image older than this is skipped, ms."""
    flag_age_ms: float = 250.0
    """An episode with data older than this is flagged, ms."""
    images: Literal["zarr", "video"] = "zarr"
    """Image storage: lossless arrays, or much smaller, lossy videos."""
    horizon: int | None = None
    """Longest episode in steps of policies that learn from it, if `environment` is None; if None that of the
    longest recorded one."""
    task: str = "robot"
    """Name of the task if `environment` is None."""
    rebuild: Callable[[NDArray[np.float64]], NDArray[np.float64]] | None = None
    """Makes full simulator states [T, K] from recorded scenes (`robot_rl.envs.scene_state`)."""
    environment: Mapping[str, Any] | None = None
    """Environment description of the served simulated task; None for a real robot."""

    def __post_init__(self) -> None:
        if self.cameras is not None and len(set(self.cameras)) < len(self.cameras):
            raise ValueError(f"cameras=[{','.join(self.cameras)}]: name each once")
        if self.horizon is not None and self.horizon < 1:
            raise ValueError(f"horizon={self.horizon}: choose 1 or more")


@dataclass(frozen=True)
class DeriveResult:
    """Result of `derive`."""

    episodes: int
    steps: int
    left_out: Mapping[int, str]
    """Reason for each skipped episode, by number of the recorded episode."""
    bridged: Mapping[int, Mapping[str, float]]
    """Data older than `flag_age_ms`, and its age [ms], by number of the recorded episode."""
    cameras: tuple[str, ...]
    """Cameras of the dataset."""


def derive(
    raw: RawDataset, out: Path, config: DeriveConfig, show: Callable[[int], None] = lambda done: None
) -> DeriveResult:
    """Derive the dataset, which appears complete or not at all.

    Args:
        raw: the recordings.
        out: path of the dataset, which must not exist.
        config: options.
        show: called with the number of recordings processed.

    Raises:
        ValueError: if `out` exists, no episode can be used, or one differs from the others.
        OSError: if the disk is full.
    """
    with atomic_outputs(out) as (building,):
        return _Derivation(raw, building, config).run(show)


class _Derivation:
    def __init__(self, raw: RawDataset, building: Path, config: DeriveConfig) -> None:
        self._raw, self._building, self._config = raw, building, config
        self._writer: DatasetWriter | None = None
        self._robot: RobotSpec | None = None
        self._environment: dict[str, Any] = {}
        self._left_out: dict[int, str] = {}
        self._bridged: dict[int, dict[str, float]] = {}
        self._used: list[dict[str, Any]] = []
        self._longest = 0
        self._asked: list[str] = []
        """Instructions of the episodes that are used."""
        self._cameras: tuple[str, ...] = ()
        self._rebuilt = False

    def run(self, show: Callable[[int], None]) -> DeriveResult:
        for done, (number, raw) in enumerate(self._raw.episodes.items(), 1):
            try:
                self._add(number, raw)
            except (EpisodeSkipped, DamagedEpisode, ProtocolError) as reason:
                self._left_out[number] = str(reason)
            show(done)
        if self._writer is None or not self._writer.num_episodes:
            why = "; ".join(f"episode {number}: {reason}" for number, reason in self._left_out.items())
            raise ValueError(f"{self._raw.root} has no episode that can be used ({why or 'it has none'})")
        self._environment.setdefault("horizon", self._config.horizon or self._longest)
        if self._asked:
            self._environment.setdefault("instructions", list(dict.fromkeys(self._asked)))
        self._writer.describe(self._environment, self._collection())
        return DeriveResult(
            self._writer.num_episodes, self._writer.num_steps, self._left_out, self._bridged, self._cameras
        )

    def _add(self, number: int, raw: Raw) -> None:
        footer, header = raw.footer, raw.header
        if footer is None:
            raise DamagedEpisode(f"{raw.folder} is damaged: its footer cannot be read")
        if footer.outcome not in self._config.outcomes:
            raise EpisodeSkipped(footer.outcome)
        if self._robot is not None and header.spec.sha256 != self._robot.sha256:
            raise ValueError(f"{raw.folder} is of another robot, or another setting of it, than those before")
        names = header.cameras if self._config.cameras is None else self._config.cameras
        if missing := sorted(set(names) - set(header.cameras)):
            has = ", ".join(header.cameras) or "no camera"
            raise ValueError(f"{raw.folder} has no images of {', '.join(missing)}; it has {has}")
        timeline = Timeline(raw)
        converter = self._converter(header.spec, timeline)
        tracks = [Track(raw, name) for name in names]
        labels = {**header.labels, **footer.labels}
        environment = self._describe(header.spec, converter, tracks, INSTRUCTION in labels)
        asked = self._instruction(labels, environment)
        if self._environment and environment != self._environment:
            raise ValueError(f"{raw.folder} has other commands or other images than those before")
        success = footer.outcome == "success"
        senses = RobotState(header.spec, ObservationSpec.from_dict(environment["observation_spec"]))
        steps = Steps(timeline, converter, senses, tracks, self._config.rate, self._config.max_age_ms)
        episode, images = steps.arrays(success), steps.images()
        if self._config.rebuild is not None and SCENE in header.spec.sensors:
            episode = {**episode, "sim_state": self._config.rebuild(steps.sensor(SCENE))}
            self._rebuilt = True
        if asked is not None:
            episode = {
                **episode,
                INSTRUCTION: np.tile(encode_instruction(asked), (len(episode["action"]), 1)),
            }
        if self._writer is None:
            self._writer = DatasetWriter(self._building, environment, self._collection(), durable=False)
        if self._config.images == "video":
            self._writer.append(episode, success=success, seed=number, videos=images)
        else:
            arrays = {IMAGE_PREFIX + camera: streamed for camera, streamed in images.items()}
            self._writer.append({**episode, **arrays}, success=success, seed=number)
        # An episode whose images cannot be decoded says nothing about the others.
        self._robot, self._environment, self._cameras = header.spec, environment, tuple(names)
        if asked is not None:
            self._asked.append(asked)
        gaps = steps.gaps(episode, self._config.flag_age_ms)
        if gaps:
            self._bridged[number] = gaps
        self._longest = max(self._longest, len(episode["action"]))
        self._used.append(
            {
                "number": number,
                "episode": header.episode,
                "outcome": footer.outcome,
                "labels": labels,
                "flagged": footer.flagged or bool(gaps),
                **({"bridged_ms": gaps} if gaps else {}),
                "lost": {name: lost for name, count in footer.counts.items() if (lost := _lost(count))},
                "events": _events(timeline, steps.begin),
            }
        )

    def _converter(self, robot: RobotSpec, timeline: Timeline) -> ActionConverter:
        try:
            return make_action_converter(robot, timeline.modes, self._config.rate, self._config.environment)
        except ValueError as error:
            raise EpisodeSkipped(str(error)) from error

    def _instruction(self, labels: Mapping[str, str], environment: Mapping[str, Any]) -> str | None:
        """The instruction of an episode: its label, or the only one of the task; None if none is observed."""
        instructed = environment["observation_spec"].get("instruction", False)
        if self._environment and instructed != self._environment["observation_spec"].get(
            "instruction", False
        ):
            has = "no label instruction" if not instructed else "the label instruction"
            raise EpisodeSkipped(f"it has {has}, unlike those before")
        if not instructed:
            return None
        known = environment.get("instructions", [])
        if INSTRUCTION not in labels and len(known) != 1:
            raise EpisodeSkipped("it has no label instruction, which the task's observations have")
        asked = str(labels.get(INSTRUCTION, known[0] if known else ""))
        try:
            encode_instruction(asked)
        except ValueError as error:
            raise EpisodeSkipped(f"its label cannot be an instruction: {error}") from None
        return asked

    def _describe(
        self, robot: RobotSpec, converter: ActionConverter, tracks: Sequence[Track], instructed: bool
    ) -> dict[str, Any]:
        config = self._config
        if config.environment is None:
            sizes = {track.camera: track.size for track in tracks}
            made = robot_environment(robot, config.task, config.rate, sizes, converter.spec)
            if instructed:
                made["observation_spec"]["instruction"] = True
            return made
        observed = ObservationSpec.from_dict(config.environment["observation_spec"])
        for track in tracks:
            if track.size != observed.image_size:
                raise ValueError(
                    f"images of {track.camera} are {track.size} (height, width), "
                    f"the task's are {observed.image_size}"
                )
        return dict(config.environment)

    def _collection(self) -> dict[str, Any]:
        config = self._config
        return {
            "recorded": {
                "folder": self._raw.root.name,
                "robot": self._robot.name if self._robot else "",
                "spec_sha256": self._robot.sha256 if self._robot else "",
                "rate": config.rate,
                "outcomes": list(config.outcomes),
                "max_age_ms": config.max_age_ms,
                "flag_age_ms": config.flag_age_ms,
                "episodes": self._used,
                "left_out": {str(number): reason for number, reason in self._left_out.items()},
            },
            "sources": list(ACTORS),
            **({"states": REBUILT} if self._rebuilt else {}),
        }


def _lost(count: Count) -> int:
    return count.lost + count.unwritten


def _events(timeline: Timeline, begin: int) -> list[list[Any]]:
    """The first events: seconds since the first step, kind, and text."""
    return [[round((one.tm - begin) / 1e9, 3), one.what, one.text] for one in timeline.events[:_EVENTS]]
