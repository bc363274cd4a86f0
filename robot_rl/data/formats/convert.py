"""Converts datasets between formats; the source stays, the result appears complete or not at all."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, Final

from robot_rl.assets import asset_path
from robot_rl.cli.compose import load_group
from robot_rl.data.dataset import Dataset
from robot_rl.data.episode_stream import videos_of
from robot_rl.data.kinds import HDF5_SUFFIXES, NAMES, Kind, kind_of
from robot_rl.data.merge import Part, rewrite
from robot_rl.data.playback import playback_env
from robot_rl.envs.robosuite_env import RobosuiteEnv
from robot_rl.envs.task import TaskConfig, without_cameras
from robot_rl.factory import make_robosuite_env, task_of
from robot_rl.files.durable import atomic_outputs

FORMATS: Final = ("dataset", "robomimic", "lerobot")
IMAGES: Final = ("zarr", "video", "image")
Show = Callable[[int], None]


@dataclass(frozen=True)
class ConvertResult:
    """Result of a conversion."""

    episodes: int
    steps: int
    notices: tuple[str, ...] = ()
    """What was lost or changed."""


@dataclass(frozen=True)
class ConvertRequest:
    """A conversion to perform; see `robot-rl data convert --help`.

    Raises:
        ValueError: if there is nothing to convert, or the conversion is not supported.
    """

    source: Path
    out: Path
    to: str | None = None
    images: str | None = None
    task: TaskConfig | None = None
    success: bool | None = None
    accept: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if self.kind == "raw":
            raise ValueError(
                f"{self.source} holds recordings: `robot-rl data derive` makes a dataset of them"
            )
        if self.kind != "dataset" and self.target != "dataset":
            raise ValueError(
                f"{self.source} is a {NAMES[self.kind]}: make a dataset of it (out=x.zarr), and convert that"
            )
        of_kinds: tuple[tuple[str, object, Kind], ...] = (
            ("success", self.success, "lerobot"),
            ("task", self.task, "robomimic"),
        )
        for name, given, kind in of_kinds:
            if given is not None and self.kind != kind:
                raise ValueError(
                    f"{name}=… is for a {NAMES[kind]}, and {self.source} is not one: leave it out"
                )
        allowed = {"dataset": ("zarr", "video"), "robomimic": (), "lerobot": ("video", "image")}[self.target]
        if self.kind == "robomimic" and self.images == "video":
            raise ValueError("images=video: make a dataset of the file first, and convert that once more")
        if self.images is not None and self.images not in allowed:
            choice = (
                f"choose {' or '.join(allowed)}"
                if allowed
                else "robomimic keeps images as arrays; leave it out"
            )
            raise ValueError(f"images={self.images}: {choice}")

    @cached_property
    def kind(self) -> Kind:
        """Kind of the source."""
        return kind_of(self.source)

    @cached_property
    def target(self) -> str:
        """Target format."""
        if self.to is not None:
            return self.to
        if self.out.suffix in HDF5_SUFFIXES:
            return "robomimic"
        if self.out.suffix == ".zarr":
            return "dataset"
        raise ValueError(f"out={self.out}: its ending does not tell the format; give to={'|'.join(FORMATS)}")

    @cached_property
    def episodes(self) -> int:
        """Number of episodes to convert."""
        match self.kind:
            case "robomimic":
                from robot_rl.data.formats.robomimic.file import RobomimicFile

                with RobomimicFile(self.source) as file:
                    return len(file.demos)
            case "lerobot":
                from robot_rl.data.formats.lerobot.files import LeRobotFiles

                return len(LeRobotFiles(self.source).episodes)
        return Dataset(self.source).num_episodes


def convert(request: ConvertRequest, show: Show) -> ConvertResult:
    """Convert a dataset; nothing is left behind after an error.

    Raises:
        ValueError: if the source lacks something, or is of another environment.
        OSError: if the disk is full.
    """
    with atomic_outputs(request.out) as (building,):
        match request.kind, request.target:
            case "robomimic", _:
                with _named(request.source):
                    return _from_robomimic(request, building, show)
            case "lerobot", _:
                with _named(request.source):
                    return _from_lerobot(request, building, show)
            case _, "robomimic":
                return _to_robomimic(request, building, show)
            case _, "lerobot":
                return _to_lerobot(request, building, show)
        dataset = _filled(request)
        made = rewrite(
            [Part(dataset, range(dataset.num_episodes))],
            building,
            images=request.images or "same",  # type: ignore[arg-type]
            show=show,
        )
        return ConvertResult(made.num_episodes, made.num_steps)


@contextmanager
def _named(source: Path) -> Iterator[None]:
    """Name the file in errors that do not, as those of a writer of what was read from it."""
    try:
        yield
    except ValueError as error:
        if str(source) in str(error):
            raise
        raise ValueError(f"{source}: {error}") from error


def _to_robomimic(request: ConvertRequest, building: Path, show: Show) -> ConvertResult:
    from robot_rl.data.formats.robomimic.exporter import export

    dataset = _filled(request)
    env: RobosuiteEnv | None = None
    notices: list[str] = []
    if "sim_state" in dataset.keys:
        env = playback_env(dataset, request.accept)
    elif "env" in dataset.environment:
        # Recorded from a served task without saved states: nothing will be simulated or rendered.
        env = RobosuiteEnv(without_cameras(task_of(dataset.environment)), observe_all=True)
        notices.append(
            "there is no simulator's state: robomimic can train on the file and act in its task, "
            "but not play an episode back"
        )
    else:
        notices.append("it was made in no simulator: robomimic can train on the file, but not act")
    if env is not None and env.poses:
        env.close()
        raise ValueError(
            f"{request.source} has absolute actions, as positions and axes; robomimic's are of another "
            "form, which is not written"
        )
    if dataset.environment.get("render") == "quick":
        notices.append(
            "images were drawn without shadows; robomimic would draw them with: see task.render=robosuite"
        )
    if videos_of(dataset, 0):
        notices.append("videos become arrays of the images that they show")
    try:
        notices += export(dataset, building, env, show)
    finally:
        if env is not None:
            env.close()
    return ConvertResult(dataset.num_episodes, dataset.num_steps, tuple(notices))


def _from_robomimic(request: ConvertRequest, building: Path, show: Show) -> ConvertResult:
    from robot_rl.data.formats.robomimic.file import RobomimicFile
    from robot_rl.data.formats.robomimic.importer import import_foreign, import_own

    with RobomimicFile(request.source) as file:
        if file.own is not None:
            if request.task is not None:
                raise ValueError(
                    f"task=…: {request.source} says itself in which task it was made; leave it out"
                )
            made = import_own(file, building, show)
            return ConvertResult(made.episodes, made.steps)
        env = _env_for(request, file.environment)
        try:
            made = import_foreign(file, building, env, request.accept, show)
        finally:
            env.close()
    cut = sum(made.cut.values())
    notices = ["saved states were rebuilt: `robot-rl replay` tells how far acting again leads from them"]
    if cut:
        notices.append(f"{cut} steps after the first success of {len(made.cut)} episodes are cut")
    return ConvertResult(made.episodes, made.steps, tuple(notices))


def _env_for(request: ConvertRequest, told: dict[str, Any]) -> RobosuiteEnv:
    """Build the environment of the task that a file was made in."""
    if told.get("type", 1) != 1:
        raise ValueError(
            f"{request.source} was not made with robosuite (env_args has the type {told['type']}): "
            "its states mean nothing here"
        )
    if request.task is not None:
        return make_robosuite_env(request.task, observe_all=True)
    from robot_rl.data.formats.robomimic.importer import input_type, robots_of

    env = str(told["env_name"])
    # An image task has the name of its task, of which it observes less.
    found = [name for name, task in _tasks().items() if task.env == env and task.name == name]
    if len(found) > 1:
        raise ValueError(
            f"{request.source} is of robosuite's {env}, and so are several tasks ({', '.join(found)}): "
            "give task=…"
        )
    task = _tasks()[found[0]] if found else TaskConfig(env=env)
    return make_robosuite_env(
        replace(task, input_type=input_type(told), robots=robots_of(told)), observe_all=True
    )


def _tasks() -> dict[str, TaskConfig]:
    names = sorted(path.stem for path in asset_path("configs", "task").glob("*.yaml"))
    return {name: load_group("task", name, TaskConfig) for name in names}


def _to_lerobot(request: ConvertRequest, building: Path, show: Show) -> ConvertResult:
    from robot_rl.data.formats.lerobot.exporter import export

    dataset = _filled(request)
    notices = export(dataset, building, request.images == "image", show)
    return ConvertResult(dataset.num_episodes, dataset.num_steps, tuple(notices))


def _from_lerobot(request: ConvertRequest, building: Path, show: Show) -> ConvertResult:
    from robot_rl.data.formats.lerobot.files import LeRobotFiles
    from robot_rl.data.formats.lerobot.importer import import_files

    made, lost = import_files(
        LeRobotFiles(request.source), building, request.images == "video", request.success, show
    )
    return ConvertResult(made.num_episodes, made.num_steps, tuple(lost))


def _filled(request: ConvertRequest) -> Dataset:
    dataset = Dataset(request.source)
    if not dataset.num_episodes:
        raise ValueError(f"{request.source} has no episode")
    return dataset
