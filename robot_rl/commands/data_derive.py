"""Make a dataset with a fixed rate from recorded episodes.

Recordings are never changed, so several datasets with other rates, cameras or outcomes can be made from them.
For a simulated task served as a robot (`robot-rl robot task=…`), `task=…` makes a dataset of that task.
"""

import sys
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from omegaconf import MISSING

from robot_rl.cli.progress import progress
from robot_rl.data.raw.derive import RATE, DeriveConfig, check_rate, derive
from robot_rl.envs.scene_state import SCENE, SceneState
from robot_rl.envs.task import TaskConfig, without_cameras
from robot_rl.errors import as_user_errors
from robot_rl.factory import make_robosuite_env
from robot_rl.hardware.recording.episode import DamagedEpisode
from robot_rl.hardware.recording.raw import RawDataset
from robot_rl.hardware.recording.records import OUTCOMES, Header

GROUPS = {"task": {"*": TaskConfig}}


@dataclass
class Config:
    raw: str = MISSING
    """Folder of the recordings, as written by `robot-rl record out=…`."""
    out: str = MISSING
    """Dataset to write."""
    task: Any = None
    """Simulated task that was recorded; null for a real or simulated arm."""
    name: str | None = None
    """Name of the task in the dataset, for a real or simulated arm; `robot` if null."""
    rate: float | None = None
    """Steps per second, for a real or simulated arm; 20 if null. With `task`, they are the task's."""
    horizon: int | None = None
    """Time limit of the episodes of policies that learn from this, in steps, for a real or simulated arm; the
    longest recording if null."""
    cameras: list[str] | None = None
    """Cameras of the dataset; null for all recorded ones, or those of task.cameras=[…]; [] for none."""
    images: str = "zarr"
    """Image storage: `zarr`, lossless; or `video`, lossy and much smaller (docs/recording.md)."""
    outcomes: list[str] = field(default_factory=lambda: ["success", "failure"])
    """Episodes to use: success, failure, discarded, interrupted, recovered."""
    max_age_ms: float = 500.0
    """Episodes with a longer gap in states or images are left out, and those without a reading of the gripper
    for longer than 5 s."""
    flag_age_ms: float = 250.0
    """Episodes with a longer gap are flagged; the last known value fills the gap."""

    def __post_init__(self) -> None:
        check_rate(self.rate)
        for name in ("name", "rate", "horizon"):
            if self.task is not None and getattr(self, name) is not None:
                raise ValueError(f"{name}=… is for an arm; task=… says it here: leave it out")
        if not self.max_age_ms > 0:
            raise ValueError(f"max_age_ms={self.max_age_ms:g}: it must be more than 0")
        if not self.flag_age_ms > 0:
            raise ValueError(f"flag_age_ms={self.flag_age_ms:g}: it must be more than 0")
        if self.images not in ("zarr", "video"):
            raise ValueError(f"images={self.images}: choose zarr or video")
        unknown = sorted(set(self.outcomes) - set(OUTCOMES))
        if unknown or not self.outcomes:
            raise ValueError(f"outcomes={self.outcomes}: choose from {', '.join(OUTCOMES)}")


def run(config: Config) -> None:
    with as_user_errors():
        raw = RawDataset(Path(config.raw))
        total = len(raw.episodes)
        with progress(total, "derive", "episodes") as show, ExitStack() as ended:
            derived = derive(raw, Path(config.out), derive_config(config, raw, ended), show.update)
    for number, reason in derived.left_out.items():
        print(f"episode {number} is left out: {reason}", file=sys.stderr)
    for number, gaps in derived.bridged.items():
        told = ", ".join(f"no {name} for {age:.0f} ms" for name, age in gaps.items())
        print(f"episode {number} is flagged: {told}; the last known value fills the gap", file=sys.stderr)
    if raw.open:
        print(f"{len(raw.open)} not committed: see `robot-rl data repair`", file=sys.stderr)
    if config.task is None and (served := _served_task(raw)):
        print(
            f"{config.raw} is of the simulated task {served}, and {config.out} lacks its environment: "
            f"task={served} makes a dataset of the task, with its actions and its environment",
            file=sys.stderr,
        )
    images = f"images of {', '.join(derived.cameras)}" if derived.cameras else "no images"
    print(f"{config.out}: {derived.episodes} of {total} episodes, {derived.steps} steps, {images}")


def derive_config(config: Config, raw: RawDataset, ended: ExitStack) -> DeriveConfig:
    """Options for these recordings; the environment is closed with the stack `ended`."""
    environment, rate, rebuild = None, config.rate or RATE, None
    if config.task is not None:
        task = _with_recorded_cameras(config.task, config.cameras, raw)
        env = make_robosuite_env(task)
        environment, rate = env.describe(), float(task.control_freq)
        env.close()
        if any(SCENE in header.spec.sensors for header in _headers(raw)):
            # Without cameras: states need no rendering.
            env = make_robosuite_env(without_cameras(task), observe_all=True)
            ended.callback(env.close)
            rebuild = SceneState(env).rebuild
    cameras = config.cameras
    if cameras is None and environment is not None:
        cameras = environment["observation_spec"]["cameras"]
    return DeriveConfig(
        rate=rate,
        cameras=None if cameras is None else tuple(cameras),
        outcomes=tuple(config.outcomes),  # type: ignore[arg-type]
        max_age_ms=config.max_age_ms,
        flag_age_ms=config.flag_age_ms,
        images=config.images,  # type: ignore[arg-type]
        horizon=config.horizon,
        task=config.name or "robot",
        rebuild=rebuild,
        environment=environment,
    )


def _served_task(raw: RawDataset) -> str | None:
    """Name of the task that was served as a robot; None for other robots."""
    specs = (header.spec for header in _headers(raw))
    return next((spec.name for spec in specs if spec.driver == "robosuite"), None)


def _headers(raw: RawDataset) -> Iterator[Header]:
    """Headers of the episodes, without damaged ones, which are left out."""
    for episode in raw.episodes.values():
        with suppress(DamagedEpisode):
            if episode.begun:
                yield episode.header


def _with_recorded_cameras(task: TaskConfig, chosen: list[str] | None, raw: RawDataset) -> TaskConfig:
    """The task that was served, with the chosen cameras, or the recorded ones if it names none."""
    header = next(_headers(raw), None)
    if header is None or (task.cameras and chosen is None):
        return task
    sizes = {camera.name: [camera.height, camera.width] for camera in header.spec.cameras}
    names = [name for name in (header.cameras if chosen is None else chosen) if name in sizes]
    if not names:
        return without_cameras(task)
    return replace(task, cameras=names, image_size=sizes[names[0]])
