"""Cost of recording: a server with three cameras and a commander, with and without a recorder."""

import math
import os
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from typing import Any, Final

import msgspec
import numpy as np
import yaml

from robot_rl.assets import asset_path
from robot_rl.bench.control import serving
from robot_rl.hardware.cameras.settings import CameraSettings, Custom
from robot_rl.hardware.client import RobotClient
from robot_rl.hardware.connection import NoAnswer
from robot_rl.hardware.protocol.arrays import decode_image
from robot_rl.hardware.protocol.messages import Loop
from robot_rl.hardware.realtime import LATENESS_WINDOW
from robot_rl.hardware.recording.episode import Episode
from robot_rl.hardware.recording.raw import RawDataset
from robot_rl.hardware.recording.recorder_process import RecorderProcess
from robot_rl.hardware.recording.requests import Ended
from robot_rl.hardware.spec import CameraSpec

CAMERAS: Final = ("front", "left", "wrist")
WIDTH, HEIGHT, IMAGES_HZ, STATES_HZ = 640, 480, 30.0, 500.0
_EPISODES: Final = 12
_PATIENCE: Final = 60.0
"""s to wait for the first images of the cameras."""


@dataclass(frozen=True)
class RecordFigures:
    """Measured losses, latencies and load."""

    lost_frames: int
    """Messages of all streams that are missing in the recordings, including images dropped by the cameras."""
    lost_by_stream: dict[str, int]
    dropped_by_cameras: int
    """Images that never reached the server because its camera processes were too slow."""
    commit_ms_p99: float
    cpu_fraction: float
    """Load of one core by the recorder's process."""
    control_lateness_us_p99: float
    """Delay of the ticks' begin while recording: the median of the percentiles of windows of 2000 ticks."""
    control_lateness_us_p99_without: float
    """The same before and after recording."""
    overrun_fraction: float
    """Fraction of ticks that began more than half a period late while recording."""
    overrun_fraction_without: float
    images_hz: float
    """Images of each camera per second of recording."""
    states_hz: float
    written_mb_per_s: float
    seconds: float
    """Recorded time."""

    def plain(self) -> dict[str, Any]:
        """For JSON."""
        return asdict(self)


def measure_record(seconds: float, folder: Path, disk: Path, encoding: str) -> RecordFigures:
    """Measure for `seconds` with a recorder, and half of that before and after it without.

    Args:
        seconds: duration of recording in s.
        folder: an empty folder with a short path, for sockets.
        disk: folder for the recordings; the caller removes them.
        encoding: `raw` or `jpeg` images.
    """
    address = f"ipc://{folder / 'r'}"
    with (
        serving(
            address, f"driver={_robot(folder)}", f"cameras=[{_cameras(folder, encoding)}]", "lease_ms=1000"
        ),
        RobotClient(address, "bench", "operator") as robot,
        _commanding(robot, address),
        RecorderProcess(address, disk / "x.raw") as recorder,
    ):
        # Wait for the cameras before anything is recorded.
        _await_cameras(recorder)
        recorder.close()
        before = _watch(robot, seconds / 2)
        with RecorderProcess(address, disk / "x.raw") as recorder:
            pid = recorder.process.pid
            began, used = time.monotonic(), _cpu_seconds(pid)
            done: list[Ended] = []
            during = _Watch(robot)
            for _ in range(_EPISODES):
                # The server restarts a camera that got no processor time on a busy machine.
                _await_cameras(recorder)
                recorder.begin()
                during.look(seconds / _EPISODES)
                done.append(recorder.end("success"))
            wall, cpu = time.monotonic() - began, _cpu_seconds(pid) - used
        after = _watch(robot, seconds / 2)
    recorded = sum(one.seconds for one in done)
    counts = [one.footer.counts for one in done]
    lost = {name: sum(each[name].lost + each[name].unwritten for each in counts) for name in counts[0]}
    size = sum(path.stat().st_size for path in disk.rglob("*") if path.is_file())
    return RecordFigures(
        lost_frames=sum(lost.values()),
        lost_by_stream=lost,
        dropped_by_cameras=sum(_dropped(episode) for episode in RawDataset(disk / "x.raw").episodes.values()),
        commit_ms_p99=float(np.percentile([one.commit_ms for one in done], 99)),
        cpu_fraction=cpu / wall,
        control_lateness_us_p99=median(during.late),
        control_lateness_us_p99_without=median([*before.late, *after.late]),
        overrun_fraction=during.overrun_fraction,
        overrun_fraction_without=(before.overrun_fraction + after.overrun_fraction) / 2,
        images_hz=sum(each[camera].received for each in counts for camera in CAMERAS)
        / len(CAMERAS)
        / recorded,
        states_hz=sum(each["state"].received for each in counts) / recorded,
        written_mb_per_s=size / recorded / 1e6,
        seconds=recorded,
    )


class _Watch:
    """Observes the delay of the server's ticks."""

    def __init__(self, robot: RobotClient) -> None:
        self._robot = robot
        self._first = self._last = self._newest = self._loop()
        self._late: list[float] = []

    def look(self, seconds: float) -> None:
        """Observe for `seconds`."""
        end = time.monotonic() + seconds
        while (left := end - time.monotonic()) > 0:
            time.sleep(min(left, 0.5))
            self._newest = self._loop()
            if self._newest.ticks - self._last.ticks >= LATENESS_WINDOW:
                self._late.append(self._newest.late_us_p99)
                self._last = self._newest

    @property
    def late(self) -> list[float]:
        """p99 in us of each `LATENESS_WINDOW` ticks; of the newest ticks if there were fewer."""
        return self._late or [self._newest.late_us_p99]

    @property
    def overrun_fraction(self) -> float:
        """Fraction of the observed ticks."""
        first, last = self._first, self._newest
        return (last.overruns - first.overruns) / max(1, last.ticks - first.ticks)

    def _loop(self) -> Loop:
        loop = self._robot.state(math.inf).loop
        assert loop is not None
        return loop


def _watch(robot: RobotClient, seconds: float) -> _Watch:
    watch = _Watch(robot)
    watch.look(seconds)
    return watch


@contextmanager
def _commanding(robot: RobotClient, address: str) -> Iterator[None]:
    """Context in which another process swings the arm."""
    robot.arm()
    command = [sys.executable, "-m", "robot_rl.hardware.swing_client", address]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL) as swing:
        try:
            yield
        finally:
            swing.kill()


def _await_cameras(recorder: RecorderProcess) -> None:
    give_up = time.monotonic() + _PATIENCE
    while any((age := recorder.status().age_ms[camera]) is None or age > 1000 for camera in CAMERAS):
        if time.monotonic() > give_up:
            raise NoAnswer("the cameras give no images")
        time.sleep(0.1)


def _dropped(episode: Episode) -> int:
    """Dropped images of all cameras, from the counts that the server sends with each image."""
    images = ([decode_image(image.frame)[0] for image in episode.images(camera)] for camera in CAMERAS)
    return sum(frames[-1].dropped - frames[0].dropped for frames in images)


def _robot(folder: Path) -> Path:
    """Writes the file of a simulated Panda with faster ticks."""
    robot: Mapping[str, Any] = yaml.safe_load(asset_path("configs", "robot", "sim_panda.yaml").read_text())
    path = folder / "robot.yaml"
    path.write_text(yaml.safe_dump({**robot, "rate": STATES_HZ}, sort_keys=False))
    return path


def _cameras(folder: Path, encoding: str) -> str:
    paths = []
    for name in CAMERAS:
        spec = CameraSpec(name=name, serial=name, width=WIDTH, height=HEIGHT, rate=IMAGES_HZ)
        source = Custom(factory="robot_rl.bench.drawn_camera:DrawnCamera")
        settings = CameraSettings(spec=spec, source=source, encoding=encoding)  # type: ignore[arg-type]
        path = folder / f"{name}.yaml"
        path.write_bytes(msgspec.yaml.encode(settings))
        paths.append(str(path))
    return ",".join(paths)


def _cpu_seconds(pid: int) -> float:
    """Processor time in s of a process with all its threads."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
