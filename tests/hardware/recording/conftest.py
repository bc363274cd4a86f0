"""A robot with cameras, and recorders of it."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from pathlib import Path

import pytest

from robot_rl.hardware.client import RobotClient
from robot_rl.hardware.recording.recorder import RecorderError
from robot_rl.hardware.recording.recorder_process import RecorderProcess
from tests.hardware.processes import Process, eventually


class Robot:
    """The process, which can be killed and begun again at the same address."""

    def __init__(self, folder: Path) -> None:
        self.address = f"ipc://{folder / 'r'}"
        self.begin()

    def begin(self) -> None:
        self.process = Process(["-m", "tests.hardware.recording.robot_with_cameras", self.address], "ready")

    def kill(self) -> None:
        self.process.kill()

    def client(self, name: str = "operator") -> RobotClient:
        return RobotClient(self.address, name, "operator", timeout=30.0)


Record = Callable[..., RecorderProcess]


@pytest.fixture(scope="module")
def robot(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Robot]:
    """One for all tests of a module, which leave it alive and disarmed."""
    robot = Robot(tmp_path_factory.mktemp("r"))
    yield robot
    robot.kill()


@pytest.fixture
def mortal(tmp_path: Path) -> Iterator[Robot]:
    """One that a test may kill."""
    robot = Robot(tmp_path)
    yield robot
    robot.kill()


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return tmp_path / "x.raw"


@pytest.fixture
def record(root: Path) -> Iterator[Record]:
    """Begins a recorder of a robot, which hears all of its streams."""
    with ExitStack() as stack:

        def make(robot: Robot, **options: object) -> RecorderProcess:
            recorder = RecorderProcess(robot.address, root, **options)  # type: ignore[arg-type]
            stack.callback(recorder.close)
            hears_all(recorder)
            return recorder

        yield make


def begin(recorder: RecorderProcess, labels: Mapping[str, str] | None = None) -> str:
    """Begin an episode; on a busy machine a stream may be silent at first. Returns its uuid."""

    def begun() -> str:
        try:
            return recorder.begin(labels)
        except RecorderError as error:
            if "silent" in str(error) or "no images" in str(error):
                return ""
            raise

    found: str = eventually(begun, "no stream is silent")
    return found


def hears_all(recorder: RecorderProcess) -> None:
    """Cameras take a while to begin."""
    rare = {"command", "event"}

    def all_came() -> bool:
        ages = recorder.status().age_ms
        return all(ages[stream] is not None and ages[stream] < 1000 for stream in ages.keys() - rare)  # type: ignore[operator]

    eventually(all_came, "states and images of all cameras")
